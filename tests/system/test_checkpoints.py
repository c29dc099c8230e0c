"""Checkpoints in detail: what is kept and how, what is refused, and what ends a loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo import Job, JobContext, Relevo, State, current_job
from relevo.checkpoints.position import Position
from relevo.checkpoints.store import kept
from relevo.engine.carried import bag
from relevo.engine.turn import Limits, Moved, Settled, turn
from relevo.errors import (
    ConfigurationError,
    JobCancelled,
    JobFailed,
    OptionError,
    PayloadError,
    PayloadTooLarge,
    ServerUnavailable,
    StoreError,
)
from relevo.store.plan import Call
from relevo.testing import bind
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.working import drain, working


def position(app: Relevo, job: str, name: str = "items") -> bytes | None:
    """What is kept of a loop."""
    return app.engine.run(kept(app.engine.keys_of("default"), job, "p", name))


def is_there(app: Relevo, job: str) -> bool:
    """Whether anything is kept of a job."""
    return bool(app.engine.run(Call([b"EXISTS", bag(app.engine.keys_of("default"), job)])))


def looping(
    source: Any, visit: Callable[[int], Any], *, holds: Any = lambda n: False, ended: Any = repr, **options: Any
) -> dict[str, Any]:
    """The same loop as a coroutine and as a plain function; an item is in hand for as long as `holds` says."""

    async def on_the_loop() -> None:
        try:
            async for n in current_job().iterate(source, **options):
                visit(n)
                await asyncio.sleep(0.001)
                while holds(n):
                    await asyncio.sleep(0.001)
        except BaseException as error:
            ended(error)
            raise

    def in_a_thread() -> None:
        try:
            for n in current_job().iterate(source, **options):
                visit(n)
                time.sleep(0.001)
                while holds(n):
                    time.sleep(0.001)
        except BaseException as error:
            ended(error)
            raise

    return {"async": on_the_loop, "thread": in_a_thread}


class Stopping:
    """A worker that stops at the end of its block."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self._app = app
        self._worker = Worker(app, **options)

    async def __aenter__(self) -> Worker:
        self._running = asyncio.create_task(self._worker.run())
        return self._worker

    async def __aexit__(self, *_: object) -> None:
        if not self._worker.is_stopping:  # a second call would not wait for what runs
            self._worker.stop()
        await asyncio.wait_for(self._running, PATIENCE)


async def failing_once(app: Relevo, body: Callable[[JobContext], Any]) -> list[Any]:
    """Run a body in two attempts, of which the first fails after it: what it gave in both."""
    given: list[Any] = []

    @app.task(name="failing_once", retries=1, backoff=0, result_ttl=60)
    async def twice() -> None:
        job = current_job()
        result = body(job)
        given.append(await result if asyncio.iscoroutine(result) else result)
        if job.attempt == 1:
            raise ConnectionError("the first time never works")

    async with working(app):
        await (await twice.aenqueue()).aresult(timeout=PATIENCE)
    return given


async def refused(app: Relevo, body: Callable[[JobContext], Any]) -> BaseException:
    """Run a body in a job: the error it raised."""
    raised: list[BaseException] = []

    @app.task(name="refused", retries=0)
    async def once() -> None:
        try:
            result = body(current_job())
            if asyncio.iscoroutine(result):
                await result
        except BaseException as error:
            raised.append(error)

    await once.aenqueue()
    await drain(app)
    (error,) = raised
    return error


# steps


@dataclass
class Invoice:
    number: int
    due: datetime


class Size(IntEnum):
    SMALL = 1


def test_outside_a_worker_there_are_no_checkpoints() -> None:
    job = JobContext("0" * 20, "default", "shop.charge")
    with pytest.raises(ConfigurationError, match="need a worker"):
        job.step("a", int)
    with pytest.raises(ConfigurationError, match="need a worker"):
        job.iterate([])


async def test_a_kept_result_is_what_the_first_run_got(app: Relevo) -> None:
    """Equal and of the same types: by the annotation, or, without one, as plain JSON gives it back."""
    due = datetime(2026, 7, 1, tzinfo=UTC)

    def typed() -> tuple[Invoice, set[int], bytes]:
        return Invoice(7, due), {1, 2}, b"\0"

    def untyped():  # type: ignore[no-untyped-def]
        return {"size": Size.SMALL, "ok": True}

    calls: list[str] = []

    def named(name: str, fn: str) -> str:
        return name + fn

    async def body(job: JobContext) -> list[Any]:
        await job.astep("nothing async", calls.append, "async")
        return [
            job.step("typed", typed),
            job.step("untyped", untyped),
            await job.astep("in async code", untyped),
            job.step("nothing", calls.append, "plain"),
            job.step("names of our own parameters", named, name="a", fn="b"),
            job.step("built in", min, [3, 2]),
            job.step("partial", functools.partial(max, 5), 4),
        ]

    sizes = {"size": 1, "ok": True}
    for values in await failing_once(app, body):
        assert values == [(Invoice(7, due), {1, 2}, b"\0"), sizes, sizes, None, "ab", 2, 5]
        assert type(values[1]["size"]) is type(values[2]["size"]) is int
    assert calls == ["async", "plain"], "a step without a result is done, too"


async def test_what_cannot_be_kept_is_refused_at_once(app_factory: AppFactory) -> None:
    app = app_factory(max_payload=1000)

    def give(value: Any) -> Any:
        return value

    error = await refused(app, lambda job: job.step("fetch", give, object()))
    assert isinstance(error, PayloadError)
    assert str(error).startswith("step 'fetch': its result cannot be kept for later runs: give(): result: ")
    error = await refused(app, lambda job: job.astep("fetch", give, "x" * 2000))
    assert isinstance(error, PayloadTooLarge)
    assert "2,002 bytes encoded, the limit is 1,000" in str(error)


async def test_a_step_that_failed_may_be_tried_again_in_the_same_run(app: Relevo) -> None:
    calls: list[int] = []

    def flaky() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise TimeoutError
        return 7

    def body(job: JobContext) -> int:
        try:
            return job.step("flaky", flaky)
        except TimeoutError:
            return job.step("flaky", flaky)

    assert await failing_once(app, body) == [7, 7]
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (lambda job: job.step("a", 42), OptionError, "step 'a': a function is needed, found 42; write step(name, fn"),
        (lambda job: job.step("", int), OptionError, "step: a name of 1 to 200 printable characters"),
        (lambda job: job.step("\n", int), OptionError, "step: a name of 1 to 200 printable characters"),
        (lambda job: job.step(7, int), OptionError, "found 7"),
        (lambda job: job.step("x" * 201, int), OptionError, "step: a name of 1 to 200"),
        (lambda job: job.step("a", asyncio.sleep, 0), ConfigurationError, "use `await job.astep"),
        (lambda job: job.step("a", lambda: asyncio.sleep(0)), ConfigurationError, "use `await job.astep"),
        (lambda job: job.iterate(42), OptionError, "iterate: the source is something to iterate over"),
        (lambda job: job.iterate([], key="id"), OptionError, "iterate: key is a function"),
        (lambda job: job.iterate([], every="often"), OptionError, "iterate(every): not a duration"),
        (lambda job: job.iterate([], name=""), OptionError, "iterate: a name of 1 to 200"),
        (lambda job: next(job.iterate(numbers_async)), ConfigurationError, "needs async for"),
        (lambda job: next(job.iterate(numbers_awaited)), ConfigurationError, "needs async for"),
        (lambda job: anext(job.iterate(abs)), TypeError, "bad operand"),
        (lambda job: anext(job.iterate(lambda _: 7)), ConfigurationError, "7 needs a source that gives items"),
        (lambda job: next(job.iterate([1], key=lambda _: object())), PayloadError, "what key gives cannot be kept"),
        (lambda job: [job.step("a", int) for _ in range(2)], ConfigurationError, "step: the name 'a' was used in this"),
        (lambda job: [job.iterate([1]) for _ in range(2)], ConfigurationError, "iterate: the name 'items' was used"),
        (lambda job: _at_once(job), ConfigurationError, "step: the name 'fetch' was used in this run already"),
    ],
)
async def test_a_wrong_call_is_refused_with_what_to_do(
    app: Relevo, body: Callable[[Any], Any], kind: type[Exception], text: str
) -> None:
    error = await refused(app, body)
    assert isinstance(error, kind)
    assert text in str(error)


async def _at_once(job: JobContext) -> None:
    await asyncio.gather(job.astep("fetch", abs, 1), job.astep("fetch", abs, 2))


class Rows:
    def __aiter__(self) -> AsyncIterator[int]:
        return numbers_async(None)


async def numbers_async(after: int | None) -> AsyncIterator[int]:
    for n in range(after or 0, 5):
        await asyncio.sleep(0)
        yield n


async def numbers_awaited(after: int | None) -> list[int]:
    await asyncio.sleep(0)
    return list(range(after or 0, 5))


async def test_a_result_of_another_version_of_the_code_is_refused_with_a_way_out(app: Relevo) -> None:
    def old() -> str:
        return "seven"

    def new() -> int:
        return 7

    errors: list[str] = []

    def body(job: JobContext) -> int | str:
        if job.attempt == 1:
            return job.step("count", old)
        with pytest.raises(PayloadError) as refusal:
            job.step("count", new)
        errors.append(str(refusal.value))
        return job.step("count 2", new)

    assert await failing_once(app, body) == ["seven", 7]
    assert "step 'count': what an earlier run kept does not fit" in errors[0]
    assert "another name" in errors[0]


async def test_no_more_names_than_one_job_may_have(app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.checkpoints.keeping.NAMES_MOST", 3)

    def body(job: JobContext) -> None:
        for n in range(4):
            job.step(f"row {n}", abs, n)

    error = await refused(app, body)
    assert isinstance(error, ConfigurationError)
    assert "use iterate for many items" in str(error)


async def test_a_job_that_is_done_at_its_first_attempt_leaves_no_checkpoints(app: Relevo) -> None:
    @app.task(result_ttl=0)
    async def forget() -> None:
        await current_job().astep("a", abs, 1)
        assert is_there(app, current_job().id)

    @app.task
    def keep() -> int:
        return sum(current_job().iterate([1, 2]))

    ids = [(await forget.aenqueue()).id, (await keep.aenqueue()).id]
    worker = await drain(app)
    assert worker.done == 2
    assert not any(is_there(app, id) for id in ids)


# positions


@given(
    total=st.integers(0, 30),
    stops=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=5),
    keyed=st.booleans(),
)
def test_nothing_is_left_out_and_only_what_was_not_written_comes_again(
    total: int, stops: list[tuple[int, int]], keyed: bool
) -> None:
    """Of runs that end after some items, of which some more were worked on than written."""
    worked_on: list[int] = []
    raw: bytes | None = None
    again = 0
    for written, unwritten in [*stops, (total, 0)]:
        at: Position[int] = Position("items", (lambda n: n * 10) if keyed else None, 1000)
        at.take_up(raw)
        at.pass_over()
        if at.is_over:
            break
        left = written + unwritten
        for item in range(total):
            if at.is_behind(item):
                continue
            at.arrive()
            if left == unwritten and at.is_unwritten:
                raw = at.mark()
            if left == 0:
                break
            left -= 1
            worked_on.append(at.hand_out(item))
        else:
            at.arrive()
            at.end()
            raw = at.mark()
            assert at.n == total
        again += unwritten
    assert sorted(set(worked_on)) == list(range(total))
    assert len(worked_on) - total <= again


@pytest.mark.parametrize("key", [None, lambda n: f"row {n}"])
async def test_every_0_writes_each_item_before_the_next(app: Relevo, key: Callable[[int], str] | None) -> None:
    seen: list[bytes | None] = []

    @app.task
    async def work() -> None:
        job = current_job()
        async for _ in job.iterate(range(3), key=key, every=0):
            seen.append(position(app, job.id))
        seen.append(position(app, job.id))

    await work.aenqueue()
    await drain(app)
    if key is None:
        assert seen == [None, b'{"n":1}', b'{"n":2}', b'{"n":3,"over":true}']
    else:
        assert seen[2:] == [b'{"n":2,"at":"row 1"}', b'{"n":3,"at":"row 2","over":true}']


async def test_positions_are_written_no_more_often_than_every(app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("relevo.checkpoints.loops.time", SimpleNamespace(monotonic=lambda: now))
    seen: list[bytes | None] = []

    @app.task
    def work() -> None:
        nonlocal now
        job = current_job()
        for _ in job.iterate(range(7), every="1h"):
            seen.append(position(app, job.id))
            now += 1500.0

    await work.aenqueue()
    await drain(app)
    assert seen == [None, None, None, b'{"n":3}', b'{"n":3}', b'{"n":3}', b'{"n":6}']


async def test_a_finished_loop_gives_nothing_when_the_job_runs_again(app: Relevo) -> None:
    asked: list[int | None] = []

    async def source(after: int | None) -> list[int]:
        asked.append(after)
        return [1, 2, 3]

    async def body(job: JobContext) -> list[int]:
        first = [n async for n in job.iterate(source, name="async")]
        return first + list(job.iterate(range(4, 6), name="plain")) + list(job.iterate([], name="none"))

    assert await failing_once(app, body) == [[1, 2, 3, 4, 5], []]
    assert asked == [None]


async def test_one_object_serves_both_kinds_of_loops_and_counts_over_all_runs(app: Relevo) -> None:
    counts: list[int] = []

    async def body(job: JobContext) -> list[int]:
        loop = job.iterate(range(6), every=0)
        got: list[int] = []
        if job.attempt == 1:
            for n in loop:
                got.append(n)
                if n == 2:
                    break
            assert "<Iteration 'items'" in repr(loop)
        else:
            got += [n async for n in loop]
        counts.append(loop.count)
        return got

    # the item in hand when the loop was left does not count as done
    assert await failing_once(app, body) == [[0, 1, 2], [2, 3, 4, 5]]
    assert counts == [2, 6]


@pytest.mark.parametrize(
    ("source", "key"),
    [(numbers_async, None), (numbers_awaited, None), (lambda after: range(after or 0, 5), None), (Rows(), str)],
)
async def test_finished_items_are_passed_over(app: Relevo, source: Any, key: Any) -> None:
    async def body(job: JobContext) -> list[int]:
        got = []
        async for n in job.iterate(source, key=key, every=0):
            got.append(n)
            if n == 3 and job.attempt == 1:
                break
        return got

    assert await failing_once(app, body) == [[0, 1, 2, 3], [3, 4]]


async def test_a_position_is_typed_by_the_annotation_of_its_key(app: Relevo) -> None:
    asked: list[Any] = []

    def key(row: Invoice) -> tuple[datetime, int]:
        return row.due, row.number

    def after(last: tuple[datetime, int] | None) -> Iterator[Invoice]:
        asked.append(last)
        for number in range(1, 4):
            row = Invoice(number, datetime(2026, 7, number, tzinfo=UTC))
            if last is None or key(row) > last:
                yield row

    def body(job: JobContext) -> list[int]:
        got = []
        for row in job.iterate(after, key=key, every=0):
            got.append(row.number)
            if row.number == 3 and job.attempt == 1:
                break
        return got

    assert await failing_once(app, body) == [[1, 2, 3], [3]]
    assert asked == [None, (datetime(2026, 7, 2, tzinfo=UTC), 2)]


async def test_a_position_that_the_source_lost_is_an_error(app: Relevo) -> None:
    errors: list[str] = []

    def body(job: JobContext) -> None:
        if job.attempt == 1:
            rows = iter(job.iterate(["a", "b", "c"], key=str, every=0))
            assert [next(rows), next(rows), next(rows)] == ["a", "b", "c"]
        else:
            with pytest.raises(ConfigurationError) as refusal:
                list(job.iterate(["a", "c"], key=str))
            errors.append(str(refusal.value))

    await failing_once(app, body)
    assert "worked on everything up to 'b'" in errors[0]
    assert "use a function as source" in errors[0]


async def test_a_key_does_not_continue_from_a_count(app: Relevo) -> None:
    def body(job: JobContext) -> None:
        if job.attempt == 1:
            rows = iter(job.iterate("abc", every=0))
            assert [next(rows), next(rows)] == ["a", "b"]
        else:
            with pytest.raises(ConfigurationError, match="kept a count, 1, and now there is a key"):
                list(job.iterate("abc", key=str))

    await failing_once(app, body)


async def test_an_error_of_the_source_loses_nothing_that_was_worked_on(app: Relevo) -> None:
    """Also if the time for the next write had not come."""
    asked: list[int | None] = []

    def plain(after: int | None) -> Iterator[int]:
        asked.append(after)
        yield from (1, 2)
        if after is None:
            raise OSError("the file is gone")

    async def asynchronous(after: int | None) -> AsyncIterator[int]:
        for n in plain(after):
            yield n

    async def body(job: JobContext) -> None:
        try:
            for _ in job.iterate(plain, name="plain", every="1h"):
                pass
        except OSError:
            assert job.attempt == 1
        try:
            async for _ in job.iterate(asynchronous, name="async", every="1h"):
                pass
        except OSError:
            assert job.attempt == 1

    await failing_once(app, body)
    assert asked == [None, None, 2, 2]


# stopping


@pytest.mark.parametrize("kind", ["async", "async source", "thread", "async in a thread"])
async def test_a_stopping_worker_ends_a_loop_after_the_item_in_hand(app_factory: AppFactory, kind: str) -> None:
    """Neither `every` nor the grace of an hour is waited for, and no item comes twice."""
    app = app_factory(grace="1h")
    worked_on: list[int] = []

    async def endless(after: int | None) -> AsyncIterator[int]:
        for n in range(after or 0, 1_000_000):
            yield n

    source = endless if kind == "async source" else range(1_000_000)
    func = looping(source, worked_on.append, every="1h")["thread" if kind == "thread" else "async"]
    task = app.task(name="work", executor="thread" if "thread" in kind else "loop", retries=0)(func)
    job: Job[None] = await task.aenqueue()
    for _ in range(3):
        before = len(worked_on)
        async with Stopping(app):
            await aeventually(lambda: len(worked_on) > before + 5)
        assert await job.astate() is State.READY
        assert worked_on == list(range(len(worked_on)))
    assert (await job.ainfo()).attempts == ()
    await job.acancel()
    await app.aclose()


async def test_a_stopping_worker_ends_a_loop_that_waits_for_its_source(app_factory: AppFactory) -> None:
    """Its position is written, although `every` has not passed."""
    app = app_factory(grace="1h")
    worked_on: list[int] = []
    ends: list[int] = []

    async def quiet(after: int | None) -> AsyncIterator[int]:
        try:
            for n in range(after or 0, 3):
                yield n
            if after is None:
                await asyncio.Event().wait()
        finally:
            ends.append(1)

    @app.task(retries=0)
    async def follow() -> int:
        async for n in current_job().iterate(quiet, every="1h"):
            worked_on.append(n)
        return len(worked_on)

    job = await follow.aenqueue()
    async with Stopping(app):
        await aeventually(lambda: len(worked_on) == 3)
    assert ends == [1]
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == 3


async def test_a_loop_stops_before_its_first_item_and_except_exception_does_not_catch_that(app: Relevo) -> None:
    caught: list[Exception] = []
    entered = threading.Event()
    go_on = threading.Event()
    worked_on: list[int] = []

    @app.task(retries=0)
    def work() -> None:
        entered.set()
        assert go_on.wait(PATIENCE)
        try:
            worked_on.extend(current_job().iterate([1, 2]))
        except Exception as error:
            caught.append(error)

    job = await work.aenqueue()
    async with Stopping(app) as worker:
        await aeventually(entered.is_set)
        worker.stop()
        await aeventually(lambda: worker.is_stopping)
        go_on.set()
    assert await job.astate() is State.READY
    assert worked_on == []
    await drain(app)
    assert (worked_on, caught) == ([1, 2], [])


async def test_an_interruption_in_a_task_group_is_no_failure(app: Relevo) -> None:
    worked_on: dict[str, list[int]] = {"a": [], "b": []}
    stopping = asyncio.Event()

    async def half(name: str) -> None:
        async for n in current_job().iterate(range(20), name=name, every="1h"):
            worked_on[name].append(n)
            await (stopping.wait() if n == 5 else asyncio.sleep(0))

    @app.task(retries=0)
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(half("a"))
            group.create_task(half("b"))

    job = await both.aenqueue()
    async with Stopping(app) as worker:
        await aeventually(lambda: len(worked_on["a"]) == len(worked_on["b"]) == 6)
        worker.stop()
        await aeventually(lambda: worker.is_stopping)
        stopping.set()
    assert await job.astate() is State.READY
    assert (await job.ainfo()).attempts == ()
    await drain(app)
    assert await job.astate() is State.DONE
    for items in worked_on.values():  # the one that was cancelled in mid item does that one again
        assert set(items) == set(range(20))
        assert len(items) <= 21


async def test_a_real_error_beside_an_interruption_is_a_failure(app: Relevo) -> None:
    worked_on: list[int] = []

    async def loop() -> None:
        async for n in current_job().iterate(range(1_000_000)):
            worked_on.append(n)
            await asyncio.sleep(0.001)

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("the connection is gone")

    @app.task(retries=0)
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(loop())

    job = await both.aenqueue()
    async with Stopping(app):
        await aeventually(lambda: worked_on)
    assert await job.astate() is State.DEAD


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_cancelled_job_keeps_its_position(app: Relevo, kind: str) -> None:
    worked_on: list[int] = []
    retried = False
    func = looping(range(20), worked_on.append, holds=lambda n: n == 5 and not retried, every=0)[kind]
    task = app.task(name="work")(func)
    job: Job[None] = await task.aenqueue()
    async with working(app):
        await aeventually(lambda: len(worked_on) == 6)
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
    assert worked_on == list(range(6))
    retried = True
    await job.aretry()
    await drain(app)
    await job.aresult(timeout=PATIENCE)
    assert worked_on == [*range(6), *range(5, 20)], "only the item in hand comes again"


async def test_a_loop_that_never_waits_is_cancelled(app: Relevo) -> None:
    worked_on: list[int] = []

    @app.task
    async def spin() -> None:
        async for n in current_job().iterate(iter(int, 1), every="1h"):  # for ever
            worked_on.append(n)

    async with working(app):
        job = await spin.aenqueue()
        await aeventually(lambda: worked_on)
        await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_worker_that_lost_its_lease_stops_the_job_at_its_next_checkpoint(app: Relevo, kind: str) -> None:
    """And it cannot settle the job."""
    worked_on: list[int] = []
    keys = app.engine.keys_of("default")
    ended: list[BaseException] = []
    func = looping(range(1_000_000), worked_on.append, ended=ended.append, every=0)[kind]
    task = app.task(name="work", retries=0)(func)
    async with working(app) as worker:
        job: Job[None] = await task.aenqueue()
        await aeventually(lambda: len(worked_on) > 5)
        # its lease ends, and another worker takes it
        await app.engine.arun(Call([b"ZADD", keys.key("running"), b"XX", 1, job.id]))
        taken = await app.engine.arun(turn(keys, "heir", Limits(60_000, 0, 10, 10), 1, Settled()))
        assert [row[0].decode() for row in taken.lost] == [job.id]
        kept_then = position(app, job.id)
        await aeventually(lambda: ended)
        assert "has lost its lease" in str(ended[0])
        assert position(app, job.id) == kept_then
        await aeventually(lambda: not worker.runner.runs)
    assert await job.astate() is State.RUNNING, "at the other worker"
    row = Moved(job.id, 2, "done", 100, "", 1.0, 0, b"")
    assert (await app.engine.arun(turn(keys, "heir", Limits(1000, 0, 10, 10), 0, Settled(moved=[row])))).refused == []


# a server that is away


@pytest.fixture
def own_server(engine: str, tmp_path: Path) -> Iterator[Server]:
    with Server(engine, directory=tmp_path, config={"appendonly": "yes", "appendfsync": "always"}) as server:
        yield server


async def test_a_position_that_cannot_be_written_stops_no_work(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("relevo.checkpoints.loops.TRY_AGAIN", 0.001)
    app = Relevo("away", url=own_server.url, env="test", lease="1h", call_timeout=1)
    worked_on: list[int] = []
    without_server = threading.Event()

    @app.task(retries=0)
    def work() -> int:
        for n in current_job().iterate(range(20), every="1ms"):
            worked_on.append(n)
            time.sleep(0.002)
            if n == 5:
                own_server.stop()
            if n == 8:
                without_server.set()
                own_server.start()
        return len(worked_on)

    with caplog.at_level(logging.WARNING, "relevo.checkpoints"):
        async with working(app):
            job = await work.aenqueue()
            await aeventually(without_server.is_set)
            await aeventually(lambda: _is_done(job), errors=(StoreError,))
    assert worked_on == list(range(20))
    assert "is not written" in caplog.text
    app.close()


async def test_with_every_0_a_loop_fails_when_a_position_cannot_be_written(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.checkpoints.loops.PATIENCE", 0.1)
    app = Relevo("away", url=own_server.url, env="test", lease="1h", call_timeout=1)
    worked_on: list[int] = []
    raised: list[BaseException] = []

    @app.task(retries=0)
    def work() -> None:
        try:
            for n in current_job().iterate(range(100), every=0):
                worked_on.append(n)
                if n == 3:
                    own_server.stop()
        except ServerUnavailable as error:
            own_server.start()
            raised.append(error)
            raise

    async with working(app):
        job = await work.aenqueue()
        await aeventually(lambda: raised)
        with pytest.raises(JobFailed):
            await job.aresult(timeout=PATIENCE)
    assert worked_on == [0, 1, 2, 3]
    app.close()


async def test_a_step_and_a_loop_with_every_0_wait_for_a_server_that_restarts(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a call takes."""
    monkeypatch.setattr("relevo.checkpoints.keeping.PATIENCE", PATIENCE)
    monkeypatch.setattr("relevo.checkpoints.loops.PATIENCE", PATIENCE)
    app = Relevo("away", url=own_server.url, env="test", lease="1h", call_timeout=0.1)
    calls: list[str] = []

    def restart(when: str) -> None:
        calls.append(when)
        own_server.stop()
        back = threading.Timer(0.3, own_server.start)
        back.daemon = True
        back.start()

    @app.task(retries=0)
    def work() -> None:
        job = current_job()
        job.step("restart", restart, "in a step")
        for n in job.iterate(range(4), every=0):
            if n == 2:
                restart("in a loop")

    async with working(app):
        job = await work.aenqueue()
        await aeventually(lambda: "in a loop" in calls)
        await aeventually(lambda: _is_done(job), errors=(StoreError,))
    assert calls == ["in a step", "in a loop"]
    app.close()


async def _is_done(job: Job[Any]) -> bool:
    return await job.astate() is State.DONE


# child processes

kit_app = Relevo("checkpoints-in-a-child")


@kit_app.task(executor="process", retries=1, backoff=0)
def in_a_child(total: int) -> list[int]:
    job = current_job()
    got = []
    for n in job.iterate(range(total), every=0):
        if n == 3 and job.attempt == 1:
            raise ValueError("the first time never works")
        got.append(n)
    return [job.step("sum", sum, got), *got]


@kit_app.task(executor="process", result_ttl=0)
async def in_a_child_on_a_loop() -> None:
    job = current_job()
    numbers = [n async for n in job.iterate(numbers_async)]
    assert await job.astep("sum", sum, numbers) == 10


def test_checkpoints_of_a_child_process_go_to_the_server_of_its_worker(server: Server) -> None:
    """In a test that is another one than the app's own; and checkpoints end with the job, at its first attempt too."""
    with bind(kit_app, url=server.url) as kit:
        job = in_a_child.enqueue(5)
        in_a_child_on_a_loop.enqueue()
        report = kit.drain()
        assert (report.done, report.failed) == (2, 1)
        assert job.result(timeout=PATIENCE) == [7, 3, 4]
        assert not is_there(kit_app, job.id)
