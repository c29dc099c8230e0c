"""What a running job can know and say, and how it is stopped from outside."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable

import pytest

from relevo import Relevo, State, current_job
from relevo.errors import ConfigurationError, JobCancelled
from tests.eventually import aeventually
from tests.working import drain, working


async def test_a_job_knows_itself(app: Relevo) -> None:
    # Given a task that asks who it is
    @app.task
    async def who() -> dict[str, str]:
        job = current_job()
        return {"id": job.id, "name": job.name, "tenant": job.tenant, "queue": job.queue}

    # If a worker runs it, I expect it to know
    job = await who.using(name="me", tenant="acme").aenqueue()
    await drain(app)
    assert await job.aresult(timeout=10) == {"id": job.id, "name": "me", "tenant": "acme", "queue": "default"}


def test_outside_a_job_there_is_no_current_job() -> None:
    # If I ask outside, I expect a clear answer
    with pytest.raises(ConfigurationError, match="outside a job"):
        current_job()


async def test_a_job_says_how_far_it_is(app: Relevo) -> None:
    # Given a task that tells its progress
    go_on = asyncio.Event()

    @app.task
    async def convert() -> None:
        current_job().progress(0.5, "half of the pages")
        await go_on.wait()
        current_job().progress(1)

    # If a worker runs it, I expect to see it while it runs
    async with working(app):
        job = await convert.aenqueue()
        progress = await aeventually(job.aprogress)
        assert (progress.fraction, progress.message) == (0.5, "half of the pages")
        go_on.set()
        await job.aresult(timeout=10)

    # and afterwards
    done = await job.aprogress()
    assert done is not None
    assert done.fraction == 1


async def test_what_a_job_writes_is_kept_with_it(app: Relevo) -> None:
    # Given a task that prints, logs, and fails the first time
    @app.task(retries=1, backoff=0)
    def convert() -> None:
        print(f"page {current_job().attempt}")
        logging.getLogger("shop").warning("paper is low")
        if current_job().attempt == 1:
            raise RuntimeError("paper jam")

    # If a worker has run it
    async with working(app):
        job = await convert.aenqueue()
        await job.aresult(timeout=10)

    # I expect what each attempt wrote, and the traceback of the one that failed
    first = await aeventually(lambda: job.alogs(attempt=1))
    assert "page 1\n" in first
    assert "paper is low" in first
    assert 'raise RuntimeError("paper jam")' in first
    second = await aeventually(lambda: job.alogs(attempt=2))
    assert "page 2\n" in second
    assert "RuntimeError" not in second


async def test_a_job_that_waits_is_cancelled_at_once(app: Relevo) -> None:
    # Given a job that nobody has started
    @app.task
    async def convert() -> None: ...

    job = await convert.aenqueue()

    # If I cancel it, I expect it to be over, and a second try to change nothing
    assert await job.acancel()
    assert await job.astatus() is State.CANCELLED
    assert not await job.acancel()
    with pytest.raises(JobCancelled):
        await job.aresult(timeout=10)


async def test_a_running_coroutine_is_cancelled(app: Relevo) -> None:
    # Given a coroutine that runs for ever, and cleans up after itself
    cleaned: list[str] = []

    @app.task
    async def watch() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("cleaned")

    async with working(app):
        job = await watch.aenqueue()
        await aeventually(lambda: _is_running(job.astatus()))

        # If I cancel it, I expect it to get the chance to clean up, and not to be tried again
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=10)
    assert cleaned == ["cleaned"]


async def test_a_running_function_can_look_whether_it_should_stop(app: Relevo) -> None:
    # Given a function that works in small steps
    steps: list[str] = []

    @app.task
    def convert() -> None:
        while not current_job().cancel_requested:
            time.sleep(0.005)
        steps.append("stopped in good order")
        raise RuntimeError("whatever is raised now does not matter")

    async with working(app):
        job = await convert.aenqueue()
        await aeventually(lambda: _is_running(job.astatus()))

        # If I cancel it, I expect it to stop
        await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=10)


async def _is_running(status: Awaitable[State]) -> bool:
    return await status is State.RUNNING
