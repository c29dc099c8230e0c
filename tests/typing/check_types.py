"""What type checkers know about tasks and jobs. Never run: mypy reads it with everything else, and each line can fail.

A wrong call carries a `type: ignore`, which mypy reports as needless should the call become possible.
"""

from __future__ import annotations

from typing import Any, Never, assert_type

from relevo import Depends, Job, JobInfo, Lease, Progress, Relevo, State, Task
from relevo.workflows.steps import Chain, Flow, Group, Step, chain, group

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


def get_db() -> bytes:
    return b""


@app.task
def store(order: int, *, db: bytes = Depends(get_db)) -> str:
    return f"{order} {db!r}"


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
    assert_type(store.enqueue(7), Job[str])  # the worker fills `db` in
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
    assert_type(job.state(), State)
    assert_type(job.info(), JobInfo)
    assert_type(job.logs(), str)
    assert_type(job.progress(), Progress | None)
    assert_type(job.cancel(), bool)
    assert_type(app.queue().take(), list[Lease])


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int], *, scale: int = 1) -> int:
    return sum(numbers) * scale


@app.task
def mixed(parts: list[int | str]) -> None: ...


@app.task
def greet(name: str = "you", *, loud: bool = False) -> str:
    return f"hello {name}"


@app.task
def stop() -> None: ...


@app.task
def named(*, key: int) -> None: ...


def steps_know_what_they_take_and_give() -> None:
    assert_type(add.s(1), Step[int, int])
    assert_type(add.s(y=1), Step[int, int])
    assert_type(ship.s(), Step[str, bytes])
    assert_type(total.s(scale=2), Step[list[int], int])
    assert_type(price.using(priority=5).s(pieces=2), Step[int, int])
    # with all arguments there is no place for a result
    assert_type(add.s(1, 2), Step[Never, int])
    assert_type(refund.s(7), Step[Never, list[str]])
    assert_type(stop.s(), Step[Never, None])
    assert_type(named.s(key=1), Step[Never, None])
    # behind everything, for it takes nothing
    assert_type(add.si(1, 2), Step[object, int])
    add.s("1")  # type: ignore[call-overload]
    add.s(1, 2, 3)  # type: ignore[call-overload]
    total.s(scle=2)  # type: ignore[call-overload]
    add.si(1)  # type: ignore[call-arg]
    add.si("1", 2)  # type: ignore[arg-type]


def chains_hand_on_results() -> None:
    assert_type(chain(add.s(1, 2)), Chain[Never, int])
    assert_type(chain(add.s(1, 2), price.s(pieces=2), charge.s()), Chain[Never, str])
    assert_type(add.s(1, 2) | price.s(pieces=2) | charge.s() | ship.s(), Chain[Never, bytes])
    assert_type(add.s(1, 2).then(charge.s()), Chain[Never, str])
    assert_type(price.s() | charge.s(), Chain[int, str])
    assert_type(add.s(1, 2) | (price.s() | charge.s()), Chain[Never, str])
    assert_type(ship.s("a") | add.si(1, 2) | stop.si(), Chain[Never, None])
    assert_type(greet.s() | ship.s(), Chain[str, bytes])  # in front it greets you
    chain(charge.s(7), price.s())  # type: ignore[misc]
    chain(add.s(1, 2), charge.s(), price.s())  # type: ignore[misc]
    charge.s(7) | price.s()  # type: ignore[operator]
    charge.s(7).then(price.s())  # type: ignore[arg-type]
    charge.s(7) | (price.s() | charge.s())  # type: ignore[operator]
    add.s(1, 2) | add.s(1, 2)  # type: ignore[operator]
    add.s(1, 2) | stop.s()  # type: ignore[operator]
    add.s(1, 2) | named.s(key=1)  # type: ignore[operator]
    add.s(1, 2) | price  # type: ignore[operator]
    price | add.s(1)  # type: ignore[operator]
    chain(add.s(1, 2), price)  # type: ignore[call-overload]
    chain()  # type: ignore[call-overload]


def groups_give_lists() -> None:
    assert_type(group(price.s(i) for i in range(9)), Group[Never, list[int]])
    assert_type(group([charge.s(), charge.s()]), Group[int, list[str]])
    assert_type(group(price.s(1), add.s(1, 2)), Group[Never, list[int]])
    assert_type(group(price.s(1), charge.s(1)), Group[Never, list[int | str]])
    assert_type(group(price.s(1), price.s(2), price.s(3), price.s(4)), Group[Never, list[int]])
    assert_type(group(group(price.s(1)), group(price.s(2))), Group[Never, list[list[int]]])
    assert_type(group(price.s(i) for i in range(9)).then(total.s()), Chain[Never, int])
    assert_type(group(price.s(1), charge.s(1)) | mixed.s(), Chain[Never, None])
    assert_type(group() | total.s(), Chain[object, int])
    assert_type(add.s(1, 2) | group(price.s(), charge.s()), Chain[Never, list[int | str]])
    assert_type(group(price.s(1), price.s(2)) | group(total.s(), total.s()) | total.s(), Chain[Never, int])
    group(price.s(i) for i in range(9)) | price.s()  # type: ignore[operator]
    group(charge.s(i) for i in range(9)).then(total.s())  # type: ignore[arg-type]
    charge.s(7) | group(price.s(), ship.s())  # type: ignore[arg-type]
    group(price, price)  # type: ignore[call-overload]


def flows_of_unknown_length_are_typed() -> None:
    steps = [price.s(), price.s(pieces=2)]
    assert_type(chain(*steps), Chain[int, Any])
    assert_type(group(*steps), Group[int, list[int]])
    flow: Chain[Any, int] = chain(add.s(1, 2))
    for step in steps:
        flow = flow | step
    whole: Flow[Any, int] = flow.on_success(stop.si()).on_failure(stop.si()).on_complete(stop.si())
    assert_type(whole.then(charge.s()), Chain[Any, str])


def tasks_of_unknown_type_fit_everywhere(task: Task[..., Any]) -> None:
    assert_type(task.s(1, a=2), Step[Any, Any])
    assert_type(charge.s(7) | task.s() | price.s(), Chain[Never, int])
