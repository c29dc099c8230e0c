"""Failed jobs are retried; after the last retry they become dead letters, with their history."""

from __future__ import annotations

import asyncio

import pytest

from relevo import Backoff, Cancel, Failure, Relevo, Retry, Snooze, State, current_job
from relevo.errors import JobCancelled, JobFailed
from tests.eventually import PATIENCE
from tests.working import drain, working


async def test_a_failed_job_is_retried(app: Relevo) -> None:
    # Given a task that succeeds in its third attempt
    @app.task(retries=3, backoff=0)
    async def call() -> str:
        if current_job().attempt < 3:
            raise ConnectionError("connection refused")
        return "answered"

    # If a worker runs it
    async with working(app):
        job = await call.aenqueue()

        # I expect its result
        assert await job.aresult(timeout=PATIENCE) == "answered"

    # and the failed attempts in its history
    assert [attempt.error for attempt in (await job.ainfo()).attempts] == ["ConnectionError"] * 2


def test_pauses_between_attempts_grow() -> None:
    # Given the usual backoffs, without their jitter
    def pauses(backoff: Backoff) -> list[float]:
        return [backoff.delay(retry, 0.5) for retry in (1, 2, 3, 4)]

    # I expect these series, in seconds; @app.task(backoff=…) takes any of them
    assert pauses(Backoff.exponential("2s")) == [2, 4, 8, 16]
    assert pauses(Backoff.exponential("2s", cap="5s")) == [2, 4, 5, 5]
    assert pauses(Backoff.linear("10s")) == [10, 20, 30, 40]
    assert pauses(Backoff.fixed("1m")) == [60, 60, 60, 60]
    assert pauses(Backoff.of(["1s", "5s", "1m"])) == [1, 5, 60, 60]


async def test_retries_count_what_comes_after_the_first_run(app: Relevo) -> None:
    # Given a task that never succeeds, with two retries
    runs: list[int] = []

    @app.task(retries=2, backoff=0)
    async def call() -> None:
        runs.append(current_job().attempt)
        raise ConnectionError("connection refused")

    # If a worker runs it
    async with working(app):
        job = await call.aenqueue()
        with pytest.raises(JobFailed):
            await job.aresult(timeout=PATIENCE)

    # I expect 1 + 2 runs
    assert runs == [1, 2, 3]


async def test_errors_named_as_permanent_are_not_retried(app: Relevo) -> None:
    # Given a task that names an error as permanent
    @app.task(retries=5, give_up_on=KeyError)
    async def call() -> None:
        raise KeyError("no such customer")

    # If that error is raised, I expect no retry
    job = await call.aenqueue()
    await drain(app)
    assert (await job.ainfo()).reason == "permanent"
    assert len((await job.ainfo()).attempts) == 1


async def test_a_task_can_ask_for_a_retry(app: Relevo) -> None:
    # Given a task that knows when it should be retried
    @app.task(retries=1)
    async def call() -> str:
        if current_job().attempt == 1:
            raise Retry("they asked us to come back", delay=0.01)
        return "answered"

    # If a worker runs it, I expect a second attempt after that delay; it uses up one retry
    async with working(app):
        job = await call.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == "answered"


async def test_a_task_can_put_itself_off_without_using_retries(app: Relevo) -> None:
    # Given a task that waits for something, without any retries
    @app.task(retries=0)
    async def collect() -> str:
        if current_job().attempt < 4:
            raise Snooze(0.01, "not there yet")
        return "collected"

    # If a worker runs it, I expect as many attempts as it asks for
    async with working(app):
        job = await collect.aenqueue()
        assert await job.aresult(timeout=PATIENCE) == "collected"


async def test_a_task_can_cancel_its_own_job(app: Relevo) -> None:
    # Given a task that finds nothing to do
    @app.task
    async def remind() -> None:
        raise Cancel("already paid")

    # If a worker runs it, I expect the job to be cancelled: not failed, and not retried
    job = await remind.aenqueue()
    await drain(app)
    with pytest.raises(JobCancelled, match="already paid"):
        await job.aresult(timeout=PATIENCE)
    assert await app.dead.alist() == []


async def test_a_job_without_retries_left_is_a_dead_letter(app: Relevo) -> None:
    # Given a job that failed
    @app.task(retries=0)
    async def pay(invoice: int) -> None:
        raise ValueError("no such account")

    job = await pay.aenqueue(7)
    await drain(app)

    # If I look at the dead letters, I expect it there with its arguments and its error
    (letter,) = await app.dead.alist()
    assert (letter.id, letter.error) == (job.id, "ValueError: no such account")
    assert app.dead.show(job.id).args == [7]


async def test_a_dead_letter_can_be_retried(app: Relevo) -> None:
    # Given a dead letter whose cause has been fixed
    accounts: set[int] = set()

    @app.task(retries=0)
    async def pay(invoice: int) -> str:
        if invoice not in accounts:
            raise ValueError("no such account")
        return "paid"

    job = await pay.aenqueue(7)
    await drain(app)
    accounts.add(7)

    # If I retry it, even twice
    assert await app.dead.aretry([job.id]) == 1
    assert await app.dead.aretry([job.id]) == 0
    await drain(app)

    # I expect it to be done once, under the same id
    assert await job.aresult(timeout=PATIENCE) == "paid"
    assert await app.dead.alist() == []


async def test_a_failure_handler_runs_when_a_job_becomes_a_dead_letter(app: Relevo) -> None:
    # Given a task with a failure handler
    failures: list[Failure] = []

    @app.task
    async def mark_unpaid(failure: Failure) -> None:
        failures.append(failure)

    @app.task(retries=1, backoff=0, on_failure=mark_unpaid)
    async def pay(invoice: int) -> None:
        raise ValueError("no such account")

    # If a job becomes a dead letter
    async with working(app):
        job = await pay.aenqueue(7)
        with pytest.raises(JobFailed):
            await job.aresult(timeout=PATIENCE)
    await drain(app)

    # I expect the handler to have run once, as a job of its own, with the error, the arguments and the attempts
    (failure,) = failures
    assert (failure.job, failure.error, failure.message) == (job.id, "ValueError", "no such account")
    assert failure.args == [7]
    assert len(failure.attempts) == 2


async def test_a_task_that_takes_too_long_is_stopped(app: Relevo) -> None:
    # Given a task that hangs, with a time limit
    @app.task(timeout="100ms", retries=0)
    async def hang() -> None:
        await asyncio.Event().wait()

    # If a worker runs it, I expect it to be stopped and to fail
    async with working(app):
        job = await hang.aenqueue()
        with pytest.raises(JobFailed, match=r"took longer than 0\.1 s"):
            await job.aresult(timeout=PATIENCE)
    assert await job.astate() is State.DEAD
