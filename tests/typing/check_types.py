"""What type checkers know about tasks and jobs. Never run: mypy reads it with everything else, and each line can fail.

A wrong call carries a `type: ignore`, which mypy reports as needless should the call become possible.
"""

from __future__ import annotations

from typing import Any, assert_type

from relevo import Job, JobInfo, Lease, Progress, Relevo, State, Task

app = Relevo("shop")


@app.task
def price(cents: int, *, pieces: int = 1) -> int:
    return cents * pieces


@app.task
async def ship(parcel: str) -> bytes:
    return parcel.encode()


@app.task(retries=3, timeout="30s")
def charge(invoice: int) -> str:
    return f"charged {invoice}"


@app.task(name="shop.refund", retries=3)
async def refund(invoice: int) -> list[str]:
    return [f"refunded {invoice}"]


def plain(number: int) -> float:
    return number / 2


async def plain_async(number: int) -> float:
    return number / 2


def tasks_keep_their_signature() -> None:
    assert_type(price.enqueue(1), Job[int])
    assert_type(price.enqueue(1, pieces=2), Job[int])
    assert_type(price.delay(1), Job[int])
    assert_type(ship.enqueue("a"), Job[bytes])
    assert_type(charge.enqueue(7), Job[str])
    assert_type(refund.enqueue(7), Job[list[str]])
    price.enqueue("1")  # type: ignore[arg-type]
    price.enqueue()  # type: ignore[call-arg]
    price.enqueue(1, peices=2)  # type: ignore[call-arg]
    ship.enqueue(1)  # type: ignore[arg-type]
    charge.enqueue("7")  # type: ignore[arg-type]
    refund.enqueue("7")  # type: ignore[arg-type]


async def tasks_keep_their_signature_in_async_code() -> None:
    assert_type(await price.aenqueue(1, pieces=2), Job[int])
    assert_type(await ship.aenqueue("a"), Job[bytes])
    assert_type(await refund.aenqueue(7), Job[list[str]])
    await ship.aenqueue(1)  # type: ignore[arg-type]


def other_options_change_no_types() -> None:
    assert_type(price.using(delay="5m").enqueue(1, pieces=2), Job[int])
    assert_type(ship.using(priority=50).using(name="x").enqueue("a"), Job[bytes])
    price.using(delay="5m").enqueue("1")  # type: ignore[arg-type]


def many_jobs_are_typed() -> None:
    assert_type(price.enqueue_many([((1,), {"pieces": 2})]), list[Job[int]])


async def many_jobs_are_typed_in_async_code() -> None:
    assert_type(await ship.aenqueue_many([(("a",), {})]), list[Job[bytes]])


async def results_are_typed() -> None:
    assert_type(price.enqueue(1).result(timeout=10), int)
    assert_type(await price.enqueue(1).aresult(), int)
    assert_type(await ship.enqueue("a").aresult(), bytes)


async def functions_are_typed_like_tasks() -> None:
    assert_type(app.enqueue(plain, 1), Job[float])
    assert_type(app.enqueue(plain_async, 1), Job[float])
    assert_type(app.enqueue(price, 1, pieces=2), Job[int])
    assert_type(await app.aenqueue(plain_async, 1), Job[float])
    assert_type(await app.aenqueue(ship, "a"), Job[bytes])
    assert_type(app.function(plain_async).enqueue(1).result(), float)
    app.enqueue(plain, "1")  # type: ignore[call-overload]


def a_task_says_what_it_is() -> None:
    number: Task[[int], str] = charge
    number.enqueue(7)


def handles_are_typed() -> None:
    job = app.job("01k9q4w2zhq3mf7d0a2f")
    assert_type(job, Job[Any])
    assert_type(job.status(), State)
    assert_type(job.info(), JobInfo)
    assert_type(job.logs(), str)
    assert_type(job.progress(), Progress | None)
    assert_type(job.cancel(), bool)
    assert_type(app.queue().take(), list[Lease])
