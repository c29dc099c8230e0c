"""The project as it was with Celery, for comparison. It is not run here."""

from celery import Celery
from celery.schedules import crontab
from celery.signals import worker_process_init, worker_process_shutdown

from shop.bank import Bank

app = Celery(
    "shop",
    broker="redis://localhost:6379/0",
    backend="redis://localhost:6379/1",
    include=["shop.orders", "shop.pictures", "shop.reports"],
)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={"visibility_timeout": 3600},
    timezone="Europe/Madrid",
    beat_schedule={
        "nightly-report": {"task": "shop.reports.report", "schedule": crontab(hour=2, minute=30)},
        "stock": {"task": "shop.reports.sync_stock", "schedule": 5.0},
    },
)
app.conf.task_routes = {"shop.pictures.*": {"queue": "pictures"}}

bank = None


@worker_process_init.connect
def connect(**kwargs):
    global bank
    bank = Bank.connected()


@worker_process_shutdown.connect
def disconnect(**kwargs):
    bank.close()
