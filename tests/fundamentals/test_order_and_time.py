"""When a job runs: order, priorities, delays, expiry, fair shares, and pauses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from relevo import Priority, Relevo, State
from relevo.errors import JobExpired
from relevo.testing import TestKit
from tests.eventually import PATIENCE
from tests.working import drain, working


async def test_jobs_run_in_the_order_they_were_enqueued(app: Relevo) -> None:
    # Given five jobs
    ran: list[int] = []

    @app.task
    async def step(number: int) -> None:
        ran.append(number)

    for number in range(5):
        await step.aenqueue(number)

    # If a worker runs one at a time, I expect it to keep the order
    await drain(app, concurrency=1)
    assert ran == [0, 1, 2, 3, 4]


async def test_a_lower_priority_number_runs_first(app: Relevo) -> None:
    # Given jobs of several priorities, the most urgent one enqueued last
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


def test_a_job_can_be_delayed(app: Relevo, kit: TestKit) -> None:
    # Given a job for tomorrow
    @app.task
    def remind() -> str:
        return "reminded"

    job = remind.using(delay="24h").enqueue()

    # I expect it to be scheduled
    kit.drain()
    assert job.state() is State.SCHEDULED

    # If a day passes, I expect it to run
    kit.clock.move("24h")
    kit.drain()
    assert job.result(timeout=PATIENCE) == "reminded"


async def test_a_job_can_run_at_a_given_time(app: Relevo) -> None:
    # Given a point in time, with its time zone
    when = datetime.now(UTC) + timedelta(days=3)

    @app.task
    async def remind() -> None: ...

    # If I enqueue a job for then
    job = await remind.using(eta=when).aenqueue()

    # I expect it to be due at that millisecond
    assert (await job.ainfo()).due_ms == int(when.timestamp() * 1000)


def test_an_expired_job_does_not_run(app: Relevo, kit: TestKit) -> None:
    # Given a job that is useful only for an hour
    ran: list[str] = []

    @app.task
    def say_good_morning() -> None:
        ran.append("good morning")

    job = say_good_morning.using(expires="1h").enqueue()

    # If a worker starts after that
    kit.clock.move("61m")
    kit.drain()

    # I expect the job not to have run, and its caller to get an error
    assert ran == []
    with pytest.raises(JobExpired):
        job.result(timeout=PATIENCE)


async def test_tenants_share_a_queue_fairly(app: Relevo) -> None:
    # Given a tenant that fills the queue, and another that comes after it
    ran: list[str] = []

    @app.task
    async def export(tenant: str) -> None:
        ran.append(tenant)

    await export.using(tenant="big").aenqueue_many([(("big",), {})] * 100)
    await export.using(tenant="small").aenqueue_many([(("small",), {})] * 10)

    # If a worker runs one at a time
    await drain(app, concurrency=1)

    # I expect them to take turns: the small tenant does not wait for the hundred jobs
    assert abs(ran[:20].count("small") - 10) <= 1


async def test_a_tenant_can_have_a_larger_share(app: Relevo) -> None:
    # Given two tenants, one of which pays for three shares
    ran: list[str] = []

    @app.task
    async def export(tenant: str) -> None:
        ran.append(tenant)

    await export.using(tenant="free").aenqueue_many([(("free",), {})] * 40)
    await export.using(tenant="paying", weight=3).aenqueue_many([(("paying",), {})] * 40)

    # If a worker runs one at a time, I expect three paid jobs for each free one
    await drain(app, concurrency=1)
    assert abs(ran[:40].count("paying") - 30) <= 2


async def test_a_queue_can_be_paused(app: Relevo) -> None:
    # Given a paused queue with a job, and a worker
    @app.task
    async def send() -> str:
        return "sent"

    @app.task(queue="other")
    async def count() -> int:
        return 1

    queue = app.queue()
    assert await queue.apause()
    async with working(app):
        job = await send.aenqueue()

        # I expect the job to wait while those of other queues run
        assert await (await count.aenqueue()).aresult(timeout=PATIENCE) == 1
        assert await job.astate() is State.READY
        assert (await queue.astats()).paused

        # If the queue is resumed, I expect the job to run
        assert await queue.aresume()
        assert await job.aresult(timeout=PATIENCE) == "sent"
