"""What a running job knows about itself and reports, and how it is cancelled."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from relevo import Relevo, State, current_job
from relevo.errors import ConfigurationError, JobCancelled
from tests.eventually import PATIENCE, aeventually
from tests.working import drain, working


async def test_a_job_knows_itself(app: Relevo) -> None:
    # Given a task that reads its own job
    @app.task
    async def describe() -> dict[str, str]:
        job = current_job()
        return {"id": job.id, "name": job.name, "tenant": job.tenant, "queue": job.queue}

    # If a worker runs it, I expect its id, name, tenant and queue
    job = await describe.using(name="me", tenant="acme").aenqueue()
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == {"id": job.id, "name": "me", "tenant": "acme", "queue": "default"}


def test_outside_a_job_there_is_no_current_job() -> None:
    # If I ask outside, I expect an error
    with pytest.raises(ConfigurationError, match="outside a job"):
        current_job()


async def test_a_job_reports_its_progress(app: Relevo) -> None:
    # Given a task that reports its progress
    go_on = asyncio.Event()

    @app.task
    async def convert() -> None:
        current_job().progress(0.5, "half of the pages")
        await go_on.wait()
        current_job().progress(1)

    # If a worker runs it, I expect to read the progress while it runs
    async with working(app):
        job = await convert.aenqueue()
        progress = await aeventually(job.aprogress)
        assert (progress.fraction, progress.message) == (0.5, "half of the pages")
        go_on.set()
        await job.aresult(timeout=PATIENCE)

    # and afterwards
    done = await job.aprogress()
    assert done is not None
    assert done.fraction == 1


async def test_the_output_of_each_attempt_is_kept(app: Relevo) -> None:
    # Given a task that prints, logs, and fails in its first attempt
    @app.task(retries=1, backoff=0)
    def convert() -> None:
        print(f"page {current_job().attempt}")
        logging.getLogger("shop").warning("paper is low")
        if current_job().attempt == 1:
            raise RuntimeError("paper jam")

    # If a worker has run it
    async with working(app):
        job = await convert.aenqueue()
        await job.aresult(timeout=PATIENCE)

    # I expect the output of each attempt, and the traceback of the failed one
    first = await aeventually(lambda: job.alogs(attempt=1))
    assert "page 1\n" in first
    assert "paper is low" in first
    assert 'raise RuntimeError("paper jam")' in first
    second = await aeventually(lambda: job.alogs(attempt=2))
    assert "page 2\n" in second
    assert "RuntimeError" not in second


async def test_a_job_that_has_not_started_is_cancelled_at_once(app: Relevo) -> None:
    # Given a job that no worker has started
    @app.task
    async def convert() -> None: ...

    job = await convert.aenqueue()

    # If I cancel it, I expect it to have ended, and a second call to change nothing
    assert await job.acancel()
    assert await job.astate() is State.CANCELLED
    assert not await job.acancel()
    with pytest.raises(JobCancelled):
        await job.aresult(timeout=PATIENCE)


async def test_a_running_coroutine_is_cancelled(app: Relevo) -> None:
    # Given a coroutine that never ends, and cleans up after itself
    started = asyncio.Event()
    cleaned: list[str] = []

    @app.task
    async def watch() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("cleaned")

    async with working(app):
        job = await watch.aenqueue()
        await aeventually(started.is_set)

        # If I cancel it, I expect it to clean up, and not to be retried
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
    assert cleaned == ["cleaned"]


async def test_a_running_function_is_cancelled(app: Relevo) -> None:
    # Given a plain function that never ends, and cleans up after itself
    started = threading.Event()
    cleaned: list[str] = []

    @app.task
    def watch() -> None:
        try:
            started.set()
            while True:
                time.sleep(0.005)
        finally:
            cleaned.append("cleaned")

    async with working(app):
        job = await watch.aenqueue()
        await aeventually(started.is_set)

        # If I cancel it, I expect it to clean up, and not to be retried
        await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
        await aeventually(lambda: cleaned == ["cleaned"])
