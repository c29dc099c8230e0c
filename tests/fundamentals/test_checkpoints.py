"""Long jobs resume where they were stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from relevo import Relevo, State, current_job
from relevo.errors import JobFailed
from relevo.worker import Worker
from tests.eventually import PATIENCE, aeventually
from tests.working import drain, working


async def work_until(app: Relevo, is_enough: Callable[[], bool]) -> None:
    """Run a worker, and stop it as a deployment does."""
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await aeventually(is_enough)
    worker.stop()
    await running


async def test_a_finished_step_does_not_run_again(app: Relevo) -> None:
    # Given a job that fails in its first attempt, after a costly step
    calls: list[str] = []

    def fetch(url: str) -> dict[str, int]:
        calls.append(url)
        return {url: 200}

    @app.task(retries=1, backoff=0)
    def report(url: str) -> dict[str, int]:
        job = current_job()
        pages = job.step("fetch", fetch, url)
        if job.attempt == 1:
            raise ConnectionError("connection refused")
        return pages

    # If it is retried until it is done
    async with working(app):
        job = await report.aenqueue("example.org")
        assert await job.aresult(timeout=PATIENCE) == {"example.org": 200}

    # I expect the costly step to have run once
    assert calls == ["example.org"]


async def test_steps_of_async_jobs_take_coroutines_and_plain_functions(app: Relevo) -> None:
    # Given an async job of several steps
    calls: list[str] = []

    async def fetch(page: int) -> list[int]:
        calls.append(f"fetch {page}")
        return [page, page + 1]

    def add(numbers: list[int]) -> int:
        calls.append("add")
        return sum(numbers)

    @app.task(retries=1, backoff=0)
    async def total() -> int:
        job = current_job()
        one, two = await asyncio.gather(job.astep("one", fetch, 1), job.astep("two", fetch, page=2))
        added = await job.astep("add", add, one + two)
        if job.attempt == 1:
            raise ConnectionError("not yet")
        return added

    # If it fails after them and is retried, I expect none of them to run again
    async with working(app):
        job = await total.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == 8
    assert sorted(calls) == ["add", "fetch 1", "fetch 2"]


async def test_a_loop_resumes_when_its_worker_was_stopped(app: Relevo) -> None:
    # Given a job that works through many items
    sent: list[int] = []
    was_stopped = False

    @app.task
    async def send_all(customers: int) -> str:
        async for customer in current_job().iterate(range(customers)):
            sent.append(customer)
            if not was_stopped:
                await asyncio.sleep(0.01)
        return "all sent"

    job = await send_all.aenqueue(1000)

    # If its worker is stopped in the middle
    await work_until(app, lambda: len(sent) > 5)
    was_stopped = True

    # I expect the job to be ready for the next worker, without a failed attempt
    assert len(sent) < 1000
    assert await job.astate() is State.READY
    assert (await job.ainfo()).attempts == ()

    # and to resume where it was: every item once
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == "all sent"
    assert sent == list(range(1000))


async def test_a_loop_of_a_plain_function_resumes_too(app: Relevo) -> None:
    # Given a plain function with a loop
    sent: list[str] = []
    was_stopped = False

    @app.task
    def send_all(names: list[str]) -> None:
        for name in current_job().iterate(names, key=lambda name: name):
            sent.append(name)
            if not was_stopped:
                time.sleep(0.01)

    names = [f"customer {n}" for n in range(1000)]
    job = await send_all.aenqueue(names)

    # If its worker is stopped in the middle, and another one starts
    await work_until(app, lambda: len(sent) > 5)
    was_stopped = True
    assert len(sent) < 1000
    await drain(app)

    # I expect every item once
    await job.aresult(timeout=PATIENCE)
    assert sent == names


async def test_a_source_is_read_from_the_last_finished_item(app: Relevo) -> None:
    # Given a table that can be read from any row, and a row that fails in the first attempt
    table = {n: f"row {n}" for n in range(10, 60, 10)}
    asked: list[int | None] = []
    converted: list[int] = []

    async def rows_after(last: int | None) -> AsyncIterator[tuple[int, str]]:
        asked.append(last)
        for number, text in table.items():
            if last is None or number > last:
                yield number, text

    @app.task(retries=1, backoff=0)
    async def convert() -> int:
        job = current_job()
        async for number, _ in job.iterate(rows_after, key=lambda row: row[0], every=0):
            if number == 30 and job.attempt == 1:
                raise ValueError("row 30 is locked")
            converted.append(number)
        return len(converted)

    # If it is retried, I expect the rows after the last one that succeeded
    async with working(app):
        job = await convert.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == 5
    assert asked == [None, 20]
    assert converted == [10, 20, 30, 40, 50]


async def test_a_dead_letter_that_is_retried_resumes_where_it_was(app: Relevo) -> None:
    # Given a job that becomes a dead letter in the middle of its work
    converted: list[int] = []
    is_fixed = False

    def numbers(after: int | None) -> Iterator[int]:
        yield from range(after or 0, 5)

    @app.task(retries=0)
    def convert() -> None:
        for number in current_job().iterate(numbers, every=0):
            if number == 3 and not is_fixed:
                raise ValueError("cannot convert 3")
            converted.append(number)

    job = await convert.aenqueue()
    await drain(app)
    with pytest.raises(JobFailed):
        await job.aresult(timeout=PATIENCE)

    # If I fix the cause and retry it, I expect only the rest to run
    is_fixed = True
    await job.aretry()
    await drain(app)
    await job.aresult(timeout=PATIENCE)
    assert converted == [0, 1, 2, 3, 4]
