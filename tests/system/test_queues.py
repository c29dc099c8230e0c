"""Queues: listing, clearing, and loops of one's own."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relevo import Failure, Job, Lease, Queue, Relevo, State
from relevo.engine.push import push_plain
from relevo.errors import JobCancelled, JobExpired, JobFailed
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.servers import Server
from tests.system.timed import HOUR, Times
from tests.working import drain, drained, working


def add_task(app: Relevo, **options: Any) -> Any:
    @app.task(name="step", **options)
    def step(number: int = 0, *, text: str = "") -> int:
        return number

    return step


def take_until(queue: Queue, n: int = 1, *, worker: str = "another") -> list[Lease]:
    """Take until there is something; a job whose lease has ended is first taken back, then handed out."""
    return eventually(lambda: queue.take(n, worker=worker))


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


def test_queues_are_listed_once_they_are_used(app: Relevo) -> None:
    step = add_task(app)
    assert app.queues() == []
    step.enqueue()
    step.using(queue="mail").enqueue()
    step.using(queue="a:b {c} ü").enqueue()
    assert app.queues() == ["a:b {c} ü", "default", "mail"]
    assert app.queue("a:b {c} ü").stats().ready == 1


# listing


async def test_every_state_is_listed(app: Relevo) -> None:
    @app.task(name="step", retries=0)
    async def step(how: str = "") -> None:
        if how == "dead":
            raise ValueError("no")

    queue = app.queue()
    jobs: dict[str, Job[Any]] = {}
    for how in ("done", "dead"):
        jobs[how] = await step.aenqueue(how)
    jobs["expired"] = await step.using(expires=0.001, delay=0.01).aenqueue()
    async with working(app):
        with pytest.raises(JobExpired):
            await jobs["expired"].aresult(timeout=PATIENCE)
    jobs["cancelled"] = await step.aenqueue()
    await jobs["cancelled"].acancel()
    jobs["running"] = await step.aenqueue()
    await queue.atake(1, worker="w1")
    jobs["ready"] = await step.aenqueue()
    jobs["scheduled"] = await step.using(delay="1h").aenqueue()
    for state, job in jobs.items():
        (row,) = await queue.ajobs(state)
        assert (row.id, row.state) == (job.id, state)
    rows = {state: (await queue.ajobs(state))[0] for state in jobs}
    assert rows["dead"].error == "ValueError: no"
    assert rows["running"].worker == "w1"
    assert rows["scheduled"].due_ms is not None
    assert rows["done"].ended_ms is not None
    await app.aclose()


# pausing and clearing


async def test_clear_removes_what_has_not_started(app: Relevo) -> None:
    step = add_task(app)
    queue = app.queue()
    await step.aenqueue()
    (running,) = await queue.atake(1)
    await step.aenqueue_many([((n,), {}) for n in range(1200)])
    await step.using(delay="1h", name="n", tenant="t").aenqueue()
    waited = await step.aenqueue()
    waiting = asyncio.create_task(waited.aresult(timeout=PATIENCE))
    await aeventually(lambda: _has_waiters(app))
    assert await queue.aclear() == 1202
    stats = await queue.astats()
    assert (stats.ready, stats.scheduled, stats.running, stats.living) == (0, 0, 1, 1)
    with pytest.raises(JobCancelled, match="cleared"):
        await waiting
    assert (await step.using(name="n").aenqueue()).created
    assert await running.adone()
    await app.aclose()


async def _has_waiters(app: Relevo) -> bool:
    return bool(await app.engine.arun(Call([b"HLEN", app.engine.keys_of("default").key("waiters")])))


# a loop of one's own


def test_a_lease_shows_the_task_and_its_arguments(app: Relevo) -> None:
    step = add_task(app)
    job = step.using(name="one", priority=5).enqueue(7, text="x")
    (lease,) = app.queue().take(1, worker="w1")
    assert (lease.id, lease.task, lease.name, lease.priority, lease.attempt) == (job.id, "step", "one", 5, 1)
    assert (lease.args, lease.kwargs) == ([7], {"text": "x"})
    info = job.info()
    assert (info.state, info.worker) == (State.RUNNING, "w1")


async def test_a_lease_is_renewed_done_retried_buried_and_given_back_in_async_code(app: Relevo) -> None:
    step = add_task(app)
    queue = app.queue()
    jobs = [await step.aenqueue(n) for n in range(4)]
    done, later, dead, back = await queue.atake(4)
    assert await done.arenew()
    assert await done.adone(42)
    assert await later.aretry("1h", "busy")
    assert await dead.abury("never")
    assert await back.agive_back()
    assert await jobs[0].aresult(timeout=PATIENCE) == 42
    assert [await job.astate() for job in jobs] == ["done", "scheduled", "dead", "ready"]
    await app.aclose()


def test_a_lost_lease_cannot_settle_its_job(app: Relevo) -> None:
    step = add_task(app)
    queue = app.queue()
    job = step.enqueue()
    (slow,) = queue.take(1, worker="slow", lease=0.01)
    (quick,) = take_until(queue)
    assert quick.id == slow.id
    for settle in (slow.renew, slow.give_back, lambda: slow.done(1), lambda: slow.bury("no"), lambda: slow.retry(0)):
        assert not settle()
    assert quick.attempt == 2
    assert quick.done(2)
    assert job.result(timeout=PATIENCE) == 2
    assert queue.stats().totals["lost"] == 1
    assert queue.stats().totals["done"] == 1


async def test_a_worker_takes_over_from_a_silent_taker(times: Times) -> None:
    app = times.app
    job = await add_task(app).aenqueue(7)
    (lease,) = await app.queue().atake(1, worker="silent", lease="1h")
    times.move(HOUR)
    await drain(app)  # takes it back
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == 7
    assert not await lease.adone()
    assert [attempt.how for attempt in (await job.ainfo()).attempts] == ["lost"]


def test_a_job_whose_holders_all_die_is_poison(times: Times) -> None:
    app = times.app
    queue = app.queue()
    job = add_task(app, max_crashes=2).enqueue()
    for worker in ("one", "two"):
        (lease,) = take_until(queue, worker=worker)
        assert lease.id == job.id
        times.move(HOUR)
    eventually(lambda: queue.take(1, worker="three") or job.state() is State.DEAD)
    with pytest.raises(JobFailed, match="poison") as failed:
        job.result(timeout=PATIENCE)
    assert failed.value.reason == "poison"


def test_retried_and_buried_leases_are_listed_as_attempts(app: Relevo) -> None:
    step = add_task(app)
    queue = app.queue()
    job = step.enqueue()
    (lease,) = queue.take(1, worker="w1")
    assert lease.retry(reason="busy")
    (lease,) = take_until(queue, worker="w2")
    assert lease.attempt == 2
    assert lease.bury("broken")
    info = job.info()
    assert (info.state, info.reason) == (State.DEAD, "broken")
    assert [(a.how, a.message, a.worker) for a in info.attempts] == [
        ("retried", "busy", "w1"),
        ("failed", "broken", "w2"),
    ]
    (row,) = app.dead.list()
    assert row.error == "broken"


def test_a_buried_job_calls_its_handler(app: Relevo) -> None:
    handled: list[Failure] = []

    @app.task
    def handler(failure: Failure) -> None:
        handled.append(failure)

    job = add_task(app, on_failure=handler).enqueue(7)
    (lease,) = app.queue().take(1)
    lease.bury("broken")
    drained(app)
    assert [(failure.job, failure.reason, failure.args) for failure in handled] == [(job.id, "broken", [7])]


def test_expired_and_unreadable_jobs_are_not_handed_to_takers(times: Times) -> None:
    app = times.app
    step = add_task(app)
    queue = app.queue()
    expired = step.using(expires="30m").enqueue()
    times.move(HOUR)
    unreadable = app.engine.new_id()
    app.engine.run(push_plain(app.engine.keys_of("default"), [(unreadable, b"\xff not an envelope")], 100, 1000))
    fine = step.enqueue()
    assert [lease.id for lease in queue.take(10)] == [fine.id]
    assert expired.state() is State.EXPIRED
    assert [(row.id, row.reason) for row in app.dead.list()] == [(unreadable, "unreadable")]


def test_a_taker_without_the_task_gives_any_json_as_result(app: Relevo, app_factory: AppFactory) -> None:
    job = add_task(app).enqueue()
    stranger = app_factory(app.name)
    (lease,) = stranger.queue().take(1)
    assert lease.done({"any": ["json", 1, None]})
    assert stranger.job(job.id).result(timeout=PATIENCE) == {"any": ["json", 1, None]}


def test_takers_and_workers_share_a_queue(app: Relevo) -> None:
    runs: list[int] = []

    @app.task
    def step(number: int) -> None:
        runs.append(number)

    step.enqueue_many([((n,), {}) for n in range(300)])
    queue = app.queue()
    with working(app), ThreadPoolExecutor(4) as threads:

        def loop(name: str) -> None:
            while leases := queue.take(7, worker=name):
                for lease in leases:
                    runs.append(lease.args[0])
                    assert lease.done()

        list(threads.map(loop, ["a", "b", "c", "d"]))
        eventually(lambda: queue.stats().living == 0)
    assert sorted(runs) == list(range(300))
