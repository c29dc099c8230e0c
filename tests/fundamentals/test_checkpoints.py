"""Long jobs that are stopped go on where they were."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from relevo import Relevo, State, current_job
from relevo.errors import JobFailed
from relevo.worker import Worker
from tests.eventually import aeventually
from tests.working import drain, working


async def test_a_step_runs_once_however_often_its_job_does(app: Relevo) -> None:
    # Given a job that does something costly, and then fails the first time
    calls: list[str] = []

    def fetch(url: str) -> dict[str, int]:
        calls.append(url)
        return {url: 200}

    @app.task(retries=1, backoff=0)
    def report(url: str) -> dict[str, int]:
        job = current_job()
        pages = job.step("fetch", fetch, url)
        if job.attempt == 1:
            raise ConnectionError("the printer is away")
        return pages

    # If it runs until it is done
    async with working(app):
        job = await report.aenqueue("example.org")
        assert await job.aresult(timeout=10) == {"example.org": 200}

    # I expect the costly part to have been done once
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

    # If it fails after them and runs again, I expect none of them to be done again
    async with working(app):
        job = await total.aenqueue()
        assert await job.aresult(timeout=10) == 8
    assert sorted(calls) == ["add", "fetch 1", "fetch 2"]


async def test_a_loop_goes_on_when_its_worker_is_stopped(app: Relevo) -> None:
    # Given a job that works through many items
    sent: list[int] = []

    @app.task
    async def send_all(customers: int) -> str:
        async for customer in current_job().iterate(range(customers)):
            sent.append(customer)
            await asyncio.sleep(0.01)
        return "all sent"

    job = await send_all.aenqueue(40)

    # If its worker is told to stop in the middle
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await aeventually(lambda: len(sent) > 5)
    worker.stop()
    await running

    # I expect it to stop at once, and the job to wait for the next worker without having failed
    assert len(sent) < 40
    assert await job.astatus() is State.READY
    assert (await job.ainfo()).attempts == ()

    # and to go on where it was: every item once
    await drain(app)
    assert await job.aresult(timeout=10) == "all sent"
    assert sent == list(range(40))


async def test_a_plain_function_loops_the_same_way(app: Relevo) -> None:
    # Given a plain function with a loop
    sent: list[str] = []

    @app.task
    def send_all(names: list[str]) -> None:
        for name in current_job().iterate(names, key=lambda name: name):
            sent.append(name)
            time.sleep(0.01)

    names = [f"customer {n}" for n in range(40)]
    job = await send_all.aenqueue(names)

    # If its worker stops in the middle, and another one comes
    worker = Worker(app)
    running = asyncio.create_task(worker.run())
    await aeventually(lambda: len(sent) > 5)
    worker.stop()
    await running
    assert len(sent) < 40
    await drain(app)

    # I expect every item once
    await job.aresult(timeout=10)
    assert sent == names


async def test_a_source_can_be_told_where_to_go_on(app: Relevo) -> None:
    # Given a table that is read from a position on, and a row that fails the first time
    table = {n: f"row {n}" for n in range(10, 60, 10)}
    asked: list[int | None] = []
    worked_on: list[int] = []

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
            worked_on.append(number)
        return len(worked_on)

    # If it is retried, I expect the source to be asked for what comes after the last row that went well
    async with working(app):
        job = await convert.aenqueue()
        assert await job.aresult(timeout=10) == 5
    assert asked == [None, 20]
    assert worked_on == [10, 20, 30, 40, 50]


async def test_a_dead_letter_that_is_retried_goes_on_where_it_was(app: Relevo) -> None:
    # Given a job that is given up in the middle of its work
    worked_on: list[int] = []
    is_mended = False

    def numbers(after: int | None) -> Iterator[int]:
        yield from range(after or 0, 5)

    @app.task(retries=0)
    def convert() -> None:
        for number in current_job().iterate(numbers, every=0):
            if number == 3 and not is_mended:
                raise ValueError("cannot convert 3")
            worked_on.append(number)

    job = await convert.aenqueue()
    await drain(app)
    with pytest.raises(JobFailed):
        await job.aresult(timeout=10)

    # If I mend the cause and retry it, I expect only the rest to be done
    is_mended = True
    await job.aretry()
    await drain(app)
    await job.aresult(timeout=10)
    assert worked_on == [0, 1, 2, 3, 4]
