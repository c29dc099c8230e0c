"""The outbox: a job is stored in the transaction itself, and comes to its queue exactly once, whatever dies."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from django.db import connections, transaction
from django.test import override_settings

from relevo import State
from relevo.django.checks import check_settings
from relevo.django.outbox.duty import OutboxDuty
from relevo.django.outbox.models import OutboxJob
from relevo.django.outbox.relay import databases, relay
from relevo.django.site_app import SiteApp
from relevo.errors import OptionError
from tests.conftest import PATIENT
from tests.django.mails import tasks as mails
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.django.worker_process import ROOT, environment, worker_process
from tests.eventually import eventually
from tests.working import drained


def paid(orders: list[Order]) -> list[int]:
    return list(Order.objects.filter(pk__in=[one.pk for one in orders]).order_by("pk").values_list("paid", flat=True))


def in_one_transaction(count: int) -> list[Order]:
    with transaction.atomic():
        orders = [Order.objects.create() for _ in range(count)]
        for one in orders:
            tasks.pay_and_forget.enqueue(one.pk)
        assert OutboxJob.objects.count() == count
    return orders


def run_duty(app: SiteApp) -> int:
    return asyncio.run(OutboxDuty(app.engine).run_once())


def test_job_is_stored_with_the_transaction_and_moved_when_it_commits(outbox: SiteApp) -> None:
    orders = in_one_transaction(3)
    assert OutboxJob.objects.count() == 0
    assert outbox.queue().stats().ready == 3
    drained(outbox)
    assert paid(orders) == [1, 1, 1]


def test_rolled_back_job_is_nowhere(outbox: SiteApp) -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        job = tasks.pay.enqueue(1)
        raise ZeroDivisionError
    assert not OutboxJob.objects.exists()
    assert job.state() is State.UNKNOWN


def test_options_of_a_job_survive_the_outbox(outbox: SiteApp) -> None:
    first = tasks.pay.using(name="held").enqueue(1)
    with transaction.atomic():
        job = tasks.pay.using(delay="1h", priority=7, tags=["a"], expires="2h", tenant="acme").enqueue(1)
        named = tasks.pay.using(name="held").enqueue(2)
    info = job.info()
    assert (info.state, info.priority, info.tags, info.tenant) == (State.SCHEDULED, 7, ("a",), "acme")
    assert (named.id, named.created) == (first.id, False)


def test_thousands_of_jobs_of_one_transaction(outbox: SiteApp) -> None:
    with transaction.atomic():
        jobs = tasks.pay.enqueue_many([((n,), {}) for n in range(1000)])
    assert outbox.queue().stats().ready == 1000
    assert [row.id for row in outbox.queue().jobs(limit=3)] == [job.id for job in jobs[:3]]


def test_outside_a_transaction_nothing_is_stored(outbox: SiteApp) -> None:
    assert tasks.pay.enqueue(1).state() is State.READY


def test_tasks_of_django_go_through_it(outbox: SiteApp) -> None:
    with transaction.atomic():
        result = mails.add.enqueue(1, 2)
        assert OutboxJob.objects.filter(pk=result.id).exists()
    assert result.enqueued_at is not None
    drained(outbox)
    result.refresh()
    assert result.return_value == 3


def test_each_database_has_its_own(outbox: SiteApp) -> None:
    assert databases() == ["default", "archive"]
    with transaction.atomic(using="archive"):
        job = tasks.pay.using(on_commit="archive").enqueue(1)
        assert OutboxJob.objects.using("archive").filter(pk=job.id).exists()
    assert job.state() is State.READY


def test_job_that_depends_on_another_is_refused(outbox: SiteApp) -> None:
    parent = tasks.pay.enqueue(1)
    with pytest.raises(OptionError, match="on_commit=False"), transaction.atomic():
        tasks.pay.using(depends_on=parent).enqueue(2)


def test_server_that_is_away_is_waited_for(outbox: SiteApp) -> None:
    away = {"name": outbox.name, "env": "test", "outbox": True, "connect_timeout": "1s"}
    with override_settings(RELEVO=away, REDIS_URL="redis://127.0.0.1:1"):
        orders = in_one_transaction(3)  # and no error
        assert OutboxJob.objects.count() == 3
    assert run_duty(outbox) == 3
    drained(outbox)
    assert paid(orders) == [1, 1, 1]


def test_jobs_of_another_app_are_left_alone(outbox: SiteApp) -> None:
    row = OutboxJob.objects.create(id="0" * 20, app="another", queue="default", job="{}")
    assert run_duty(outbox) == 0
    row.delete()


def test_worker_relays_what_is_left(outbox: SiteApp, tmp_path: Path) -> None:
    left = dies_at(outbox, "outbox_stored", "enqueue", "2")
    assert OutboxJob.objects.count() == 2
    with worker_process(outbox, tmp_path, SHOP_OUTBOX="1"):
        eventually(lambda: [order.paid for order in left()] == [1, 1], what="both are paid")


def dies_at(app: SiteApp, point: str, *arguments: str):  # type: ignore[no-untyped-def]
    """Run a process that is killed (-9) at this point; gives a function for the orders that it made."""
    before = Order.objects.count()
    command = [sys.executable, "-m", "tests.django.outbox_process", *arguments]
    variables = environment(app, SHOP_OUTBOX="1", RELEVO_FAULT=point)
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return lambda: list(Order.objects.order_by("pk")[before:])


@pytest.mark.parametrize("meanwhile_they_run", [False, True], ids=["still queued", "run already"])
@pytest.mark.parametrize(
    "point", ["outbox_stored", "outbox_locked", "outbox_pushed", "outbox_deleted", "outbox_committed"]
)
class TestKills:
    def test_of_the_process_that_enqueues(self, outbox: SiteApp, point: str, meanwhile_they_run: bool) -> None:
        made = dies_at(outbox, point, "enqueue", "3")
        if meanwhile_they_run:
            drained(outbox)  # with a relay of its own
        run_duty(outbox)
        drained(outbox)
        assert [order.paid for order in made()] == [1, 1, 1]

    def test_of_the_relay(self, outbox: SiteApp, point: str, meanwhile_they_run: bool) -> None:
        made = dies_at(outbox, "outbox_stored", "enqueue", "3")
        if point != "outbox_stored":
            dies_at(outbox, point, "relay")
        if meanwhile_they_run:
            with override_settings(RELEVO={"name": outbox.name, "env": "test", **PATIENT}):
                drained(outbox)  # without a relay
        for _ in range(2):
            run_duty(outbox)
            drained(outbox)
        assert [order.paid for order in made()] == [1, 1, 1]


def test_process_killed_before_the_commit_leaves_nothing(outbox: SiteApp) -> None:
    code = (
        "from relevo.django.set_up import app\n"
        "import os\n"
        "from django.db import transaction\n"
        "from tests.django.shop import tasks\n"
        "with transaction.atomic():\n"
        "    tasks.pay.enqueue(1)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(outbox, SHOP_OUTBOX="1"))
    assert done.returncode == -signal.SIGKILL
    assert (run_duty(outbox), outbox.queue().stats().ready) == (0, 0)


def test_many_relays_at_once_move_each_job_once(outbox: SiteApp) -> None:
    away = {"name": outbox.name, "env": "test", "outbox": True, "connect_timeout": "1s"}
    with override_settings(RELEVO=away, REDIS_URL="redis://127.0.0.1:1"):
        orders = in_one_transaction(200)
    moved: list[int] = []

    def work() -> None:
        while some := len(relay(outbox.engine, "default")):
            moved.append(some)
        connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(moved) == 200
    drained(outbox)
    assert paid(orders) == [1] * 200


def test_check_wants_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps

    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "relevo.django.outbox" and installed(name))
    assert check_settings() == []
    with override_settings(RELEVO={"name": "shop", "outbox": True}):
        assert [message.id for message in check_settings()] == ["relevo.E002"]
