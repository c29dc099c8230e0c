"""When a job runs: priorities, delays, an end to waiting, fair shares, and a pause."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from relevo import Priority, Relevo, State
from relevo.errors import JobExpired
from tests.eventually import aeventually
from tests.working import drain, working


async def test_jobs_run_in_the_order_they_came(app: Relevo) -> None:
    # Given some jobs
    ran: list[int] = []

    @app.task
    async def step(number: int) -> None:
        ran.append(number)

    for number in range(5):
        await step.aenqueue(number)

    # If a worker runs one at a time, I expect it to keep the order
    await drain(app, concurrency=1)
    assert ran == [0, 1, 2, 3, 4]


async def test_a_lower_number_runs_first(app: Relevo) -> None:
    # Given jobs that are not equally urgent, the most urgent one last
    ran: list[str] = []

    @app.task
    async def step(name: str) -> None:
        ran.append(name)

    await step.using(priority=Priority.LOW).aenqueue("later")
    await step.aenqueue("normal")
    await step.using(priority=99).aenqueue("a little before normal")
    await step.using(priority=Priority.CRITICAL).aenqueue("now")

    # If a worker runs one at a time, I expect the urgent ones first
    await drain(app, concurrency=1)
    assert ran == ["now", "a little before normal", "normal", "later"]


async def test_a_job_can_be_delayed(app: Relevo) -> None:
    # Given a job for later
    @app.task
    async def remind() -> str:
        return "reminded"

    soon = await remind.using(delay=0.2).aenqueue()
    tomorrow = await remind.using(delay="24h").aenqueue()

    # I expect it to be scheduled, and the server to know when it is due
    info = await tomorrow.ainfo()
    assert info.state is State.SCHEDULED
    assert info.due_ms is not None
    assert abs(info.due_ms - info.enqueued_ms - 86_400_000) < 5_000

    # If its time comes, I expect it to run, and no other
    async with working(app):
        assert await soon.aresult(timeout=10) == "reminded"
    assert await tomorrow.astatus() is State.SCHEDULED


async def test_a_job_can_be_told_the_time_to_run(app: Relevo) -> None:
    # Given a point in time, with its time zone
    when = datetime.now(UTC) + timedelta(days=3)

    @app.task
    async def remind() -> None: ...

    # If I enqueue a job for then
    job = await remind.using(eta=when).aenqueue()

    # I expect it to be due at that millisecond
    assert (await job.ainfo()).due_ms == int(when.timestamp() * 1000)


async def test_a_job_that_would_come_too_late_does_not_run(app: Relevo) -> None:
    # Given a job that is worth running only for a short time
    ran: list[str] = []

    @app.task
    async def say_good_morning() -> None:
        ran.append("good morning")

    job = await say_good_morning.using(expires=0.01).aenqueue()

    # If the worker comes after that
    server_ms = (await job.ainfo()).enqueued_ms
    await aeventually(lambda: datetime.now(UTC).timestamp() * 1000 > server_ms + 100)
    await drain(app)

    # I expect it not to have run, and whoever waits to know why
    assert ran == []
    with pytest.raises(JobExpired):
        await job.aresult(timeout=10)


async def test_groups_share_a_queue_fairly(app: Relevo) -> None:
    # Given a tenant that fills the queue, and another that comes after it
    ran: list[str] = []

    @app.task
    async def export(tenant: str) -> None:
        ran.append(tenant)

    await export.using(tenant="big").aenqueue_many([(("big",), {})] * 100)
    await export.using(tenant="small").aenqueue_many([(("small",), {})] * 10)

    # If a worker runs one at a time
    await drain(app, concurrency=1)

    # I expect them to take turns: the small one does not wait for the hundred
    assert abs(ran[:20].count("small") - 10) <= 1


async def test_a_group_can_have_a_larger_share(app: Relevo) -> None:
    # Given two tenants, one of which pays for three shares
    ran: list[str] = []

    @app.task
    async def export(tenant: str) -> None:
        ran.append(tenant)

    await export.using(tenant="free").aenqueue_many([(("free",), {})] * 40)
    await export.using(tenant="paying", weight=3).aenqueue_many([(("paying",), {})] * 40)

    # If a worker runs one at a time, I expect three of theirs for each of the others
    await drain(app, concurrency=1)
    assert abs(ran[:40].count("paying") - 30) <= 2


async def test_a_queue_can_be_paused(app: Relevo) -> None:
    # Given a paused queue with a job, and a worker
    @app.task
    async def send() -> str:
        return "sent"

    queue = app.queue()
    assert await queue.apause()
    async with working(app) as worker:
        job = await send.aenqueue()

        # I expect the job to wait
        await aeventually(lambda: bool(worker.lanes))
        assert await job.astatus() is State.READY
        assert (await queue.astats()).paused

        # If the queue goes on, I expect the worker to be woken
        assert await queue.aresume()
        assert await job.aresult(timeout=10) == "sent"
