"""Its tasks, found by workers through autodiscovery."""

from __future__ import annotations

import threading

from django.db import connection, connections, transaction
from django.db.models import F
from django.utils import translation

from relevo.django import app
from relevo.django.site_task import SiteTask as SiteTask
from tests.django.shop.models import Order


@app.task(retries=0)
def pay(id: int) -> int:
    if not Order.objects.filter(pk=id).update(paid=F("paid") + 1):
        raise LookupError(f"no order {id}")
    return Order.objects.get(pk=id).paid


@app.task(retries=0, result_ttl=0)
def pay_and_forget(id: int) -> None:
    """Nothing on the server says that it has run."""
    Order.objects.filter(pk=id).update(paid=F("paid") + 1)


@app.task(retries=0)
async def apay(id: int) -> int:
    await Order.objects.filter(pk=id).aupdate(paid=F("paid") + 1)
    return (await Order.objects.aget(pk=id)).paid


@app.task(retries=0, executor="process")
def pay_apart(id: int) -> int:
    return int(pay(id))


@app.task(cron="*/30 * * * *", priority=75)
def tidy() -> None:
    """Run by the clock."""


@app.task(retries=0)
def speak(language: str | None) -> str:
    before = translation.get_language()
    if language is not None:
        translation.activate(language)
    return before or ""


@app.task(retries=0)
def left_in_transaction() -> None:
    """What is left of a task that was stopped inside `atomic`."""
    transaction.atomic().__enter__()
    Order.objects.create(name="never committed")


@app.task(retries=0)
def is_in_transaction() -> bool:
    return bool(connection.in_atomic_block)


@app.task(retries=0, on_commit=False)
def at_once() -> None:
    """Sent at once, whatever transaction is open."""


@app.task(retries=0)
def file_away(name: str) -> None:
    with transaction.atomic(using="archive"):
        Order.objects.using("archive").create(name=name)


@app.task(retries=0)
def stumble() -> None:
    raise ValueError("over a stone")


@app.task(retries=0, secret=["card"])
def charge_card(card: str, *, password: str = "") -> None:
    """What it is called with is nobody's business."""


#: Set by a test: all who meet have their connection open at the same time.
meeting = threading.Barrier(1)


@app.task(retries=0)
def meet() -> int:
    Order.objects.count()
    meeting.wait()
    return sum(one.connection is not None for one in connections.all(initialized_only=True))


def mark(id: int) -> None:
    """A plain function, called by its path (`allow`)."""
    Order.objects.filter(pk=id).update(paid=F("paid") + 1)


def fail(id: int) -> None:
    raise ConnectionError(f"no order {id}")


def mark_broken(task: str, context: dict[str, object]) -> None:
    Order.objects.create(name=f"broken {context['argv']} {task}")
