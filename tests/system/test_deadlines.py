"""Deadlines on queues that no worker serves."""

from __future__ import annotations

import pytest

from relevo import Relevo
from relevo.engine.job import State
from relevo.store.plan import Call
from relevo.upkeep.deadlines import expiring
from relevo.upkeep.duty import expiry_duty
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


async def swept(times: Times) -> int:
    """A sweep by a worker of another queue, at once."""
    times.app.engine.run(Call([b"DEL", times.app.engine.keys.turn("deadlines")]))
    report = await expiry_duty(times.app.engine, "w").run_once()
    assert report is not None
    return report.count


def kept(times: Times, queue: str, *names: str) -> set[str]:
    keys = times.app.engine.keys_of(queue)
    return {name for name in names if times.app.engine.run(Call[int]([b"EXISTS", keys.key(name)]))}


async def test_expired_jobs_leave_a_queue_without_a_worker(times: Times) -> None:
    app = times.app

    @app.task(queue="nobody")
    async def mail() -> None: ...

    late = [mail.using(expires="1m").enqueue() for _ in range(600)]
    due = mail.using(delay="10s", expires="1m").enqueue()
    times.move(30_000)
    assert await swept(times) == 0
    fresh = mail.using(expires="1h").enqueue()
    forever = mail.enqueue()
    times.move(MINUTE)
    assert await swept(times) == 601
    assert await swept(times) == 0
    assert {late[0].state(), late[-1].state(), due.state()} == {"expired"}
    assert {fresh.state(), forever.state()} == {"ready"}
    app.queue("nobody").clear()


async def test_a_queue_that_was_never_served_and_holds_only_expired_jobs_ends(times: Times) -> None:
    app = times.app

    @app.task(queue="nobody", failure_ttl="2s")
    async def mail() -> None: ...

    for _ in range(3):
        mail.using(expires="1m", name="one").enqueue()
        mail.using(expires="1m").enqueue()
    assert kept(times, "nobody", "jobs", "ready", "clock", "names") == {"jobs", "ready", "clock", "names"}
    times.move(HOUR)
    assert await swept(times) == 4
    assert not kept(times, "nobody", "jobs", "ready", "scheduled", "clock", "names", "story", "groups", "waiters")


async def test_a_queue_with_a_worker_is_left_to_it(times: Times) -> None:
    app = times.app

    @app.task(queue="served")
    async def mail() -> None: ...

    job = mail.using(expires="1m").enqueue()
    times.move(HOUR)
    app.engine.run(Call([b"SET", app.engine.keys_of("served").key("contact"), b"0 0", b"PX", 60_000]))
    assert await swept(times) == 0
    assert job.state() == "ready"
    app.engine.run(Call([b"DEL", app.engine.keys_of("served").key("contact")]))
    assert await swept(times) == 1


async def test_expired_messages_to_a_service_that_was_never_served_are_removed(bus: Relevo) -> None:
    job = bus.service("shop").send("ghost.haunt", {}, timeout="50ms")
    keys = bus.engine.keys_of(job.queue)

    async def is_swept() -> bool:
        await bus.engine.arun(expiring(bus.engine, {}))
        return not await bus.engine.arun(Call[int]([b"EXISTS", keys.key("jobs"), keys.key("ready"), keys.key("clock")]))

    await aeventually(is_swept, what="the message left its queue")
    assert job.state() in (State.EXPIRED, State.UNKNOWN)
    bus.queue(job.queue).clear()
    await bus.aclose()
