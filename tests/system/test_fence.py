"""The number by which a task can fence its own side effects: it grows with every delivery of a job."""

from __future__ import annotations

import sqlite3
from itertools import pairwise

from relevo import Relevo, Snooze, State, current_job
from relevo.queues.queue import Lease
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.process import process_tasks
from tests.servers import Server
from tests.system.timed import HOUR, Times
from tests.working import drain, working


def grows(numbers: list[int]) -> bool:
    return all(before < after for before, after in pairwise(numbers))


async def taken(app: Relevo, worker: str) -> Lease:
    """The job, as soon as it can be had."""

    async def take() -> list[Lease]:
        return await app.queue().atake(1, worker=worker, lease="1h")

    return (await aeventually(take))[0]


async def test_each_attempt_has_a_larger_number(app: Relevo) -> None:
    fences: list[int] = []

    @app.task(retries=1, backoff=0.001)
    async def shaky() -> None:
        fences.append(current_job().fence)
        if len(fences) == 1:
            raise Snooze(0.001)
        if len(fences) == 2:
            raise ValueError

    job = await shaky.aenqueue()
    async with working(app):
        await job.aresult(timeout=PATIENCE)
    assert len(fences) == 3 and grows(fences)


async def test_the_number_grows_in_threads_and_processes_as_well(app: Relevo) -> None:
    for executor in ("thread", "process"):
        task = app.task(name=f"fence.{executor}", executor=executor, retries=1, backoff=0.001)(process_tasks.fences)
        job = await task.aenqueue()
        async with working(app):
            first, second = await job.aresult(timeout=PATIENCE)
        assert first < second


async def test_the_number_grows_with_hand_backs_lost_leases_and_revivals(
    server: Server, app_factory: AppFactory
) -> None:
    times = Times(server, app_factory)
    app = times.app

    @app.task(max_crashes=9)
    async def step() -> None: ...

    job = await step.aenqueue()
    first = await taken(app, "w1")
    assert first.fence >= 1
    await first.agive_back()
    lost = await taken(app, "w1")
    times.move(2 * HOUR)
    found = await taken(app, "w2")
    assert not await lost.adone()
    await found.abury("no stock")
    assert await job.aretry()
    revived = await taken(app, "w1")
    await revived.aretry()
    again = await taken(app, "w1")
    assert await job.acancel()
    await again.agive_back()
    assert await app.queue().atake(1, worker="w1") == []
    assert await job.astate() is State.CANCELLED
    assert await job.aretry()
    last = await taken(app, "w3")
    assert grows([one.fence for one in (first, lost, found, revived, again, last)])
    await last.adone()


async def test_a_database_refuses_the_write_of_a_run_that_lost_its_lease(
    server: Server, app_factory: AppFactory
) -> None:
    times = Times(server, app_factory)
    app = times.app
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE totals (job TEXT PRIMARY KEY, cents INTEGER, fence INTEGER)")

    def write(job: str, cents: int, fence: int) -> bool:
        upsert = (
            "INSERT INTO totals VALUES (:job, :cents, :fence) ON CONFLICT (job) DO UPDATE "
            "SET cents = :cents, fence = :fence WHERE totals.fence <= :fence"
        )
        return db.execute(upsert, {"job": job, "cents": cents, "fence": fence}).rowcount == 1

    @app.task
    async def total(cents: int) -> bool:
        return write(current_job().id, cents, current_job().fence)

    job = await total.aenqueue(990)
    frozen = await taken(app, "w1")
    times.move(2 * HOUR)
    async with working(app):
        assert await job.aresult(timeout=PATIENCE) is True
    assert not write(frozen.id, 1, frozen.fence)
    assert db.execute("SELECT cents FROM totals").fetchall() == [(990,)]
    await drain(app)
