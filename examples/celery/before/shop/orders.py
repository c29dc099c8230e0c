from celery import chain

from shop import app as project
from shop.app import app
from shop.bank import BankAway
from shop.stock import NotInStock, find_parcel


@app.task(
    bind=True,
    autoretry_for=(BankAway,),
    retry_backoff=True,
    retry_backoff_max=600,
    max_retries=5,
    soft_time_limit=20,
    time_limit=30,
    rate_limit="10/s",
)
def charge(self, order, cents):
    number = project.bank.pay(order, cents, first_try=self.request.retries == 0)
    return {"order": order, "cents": cents, "number": number}


@app.task(bind=True, max_retries=None)
def pack(self, payment):
    try:
        parcel = find_parcel(payment["order"])
    except NotInStock as error:
        raise self.retry(exc=error, countdown=60)
    return {**payment, "parcel": parcel}


@app.task
def send_receipt(parcel):
    return f"order {parcel['order']}: {parcel['cents']} cents paid ({parcel['number']}), {parcel['parcel']} sent"


@app.task
def cancel_order(request, exc, traceback, order):
    print(f"order {order} is cancelled")


def place(order, cents):
    steps = chain(charge.s(order, cents), pack.s(), send_receipt.s())
    return steps.apply_async(link_error=cancel_order.s(order))
