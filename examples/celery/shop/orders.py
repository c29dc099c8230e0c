"""Orders: a chain with retries."""

from __future__ import annotations

from msgspec import Struct
from relevo import Backoff, Snooze, Workflow, chain, current_job

from shop.app import app
from shop.bank import Bank, BankAway


class Payment(Struct):
    """What was paid."""

    order: int
    cents: int
    number: str


class Parcel(Struct):
    """What is sent for a payment."""

    payment: Payment
    name: str


@app.task(
    retry_on=BankAway,
    backoff=Backoff.exponential("500ms", cap="10m"),
    retries=5,
    soft_timeout="20s",
    timeout="30s",
    rate="10/s",
)
def charge(order: int, cents: int) -> Payment:
    """Take the money for an order."""
    bank: Bank = current_job().state
    return Payment(order, cents, bank.pay(order, cents, first_try=current_job().attempt == 1))


@app.task
def pack(payment: Payment) -> Parcel:
    """Pack what was paid; at first it is not in stock."""
    if not current_job().history:
        raise Snooze("500ms", "not in stock")
    return Parcel(payment, f"parcel {payment.order}")


@app.task
def send_receipt(parcel: Parcel) -> str:
    """The text of the receipt."""
    paid = parcel.payment
    return f"order {paid.order}: {paid.cents} cents paid ({paid.number}), {parcel.name} sent"


@app.task
def cancel_order(order: int) -> str:
    """Called once if an order did not go through."""
    return f"order {order} is cancelled"


def place(order: int, cents: int) -> Workflow[str]:
    """Charge, pack, send a receipt."""
    steps = chain(charge.s(order, cents), pack.s(), send_receipt.s())
    return steps.on_failure(cancel_order.si(order)).enqueue()
