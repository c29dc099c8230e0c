"""Limits of tenants with real workers: all of them together keep to it, it can change, and others do not notice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relevo import Queue, Relevo, State, chain
from relevo.errors import OptionError
from relevo.limits.store import LimitInfo
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.shell import Output, relevo
from tests.system.timed import HOUR, Times
from tests.working import drain, drained, working


class Watched:
    """A task that notes how many of each tenant run at once, in which order they began, and waits to be let go."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[tuple[str, int]] = []
        self.gate = asyncio.Event()

        @app.task(name="step", **options)
        async def step(tenant: str, number: int, seconds: float = 0.0) -> int:
            self.running[tenant] += 1
            self.most[tenant] = max(self.most[tenant], self.running[tenant])
            self.order.append((tenant, number))
            try:
                await (asyncio.sleep(seconds) if seconds >= 0 else self.gate.wait())
            finally:
                self.running[tenant] -= 1
            return number

        self.step = step

    async def enqueue(self, tenant: str, count: int, seconds: float = 0.0) -> None:
        """Jobs of one tenant; with seconds below 0 they wait for the gate."""
        calls: list[Any] = [((tenant, number, seconds), {}) for number in range(count)]
        await self.step.using(tenant=tenant).aenqueue_many(calls)

    async def is_done(self, count: int) -> bool:
        return len(self.order) == count and not +self.running


async def standing(queue: Queue, tenant: str) -> LimitInfo:
    (found,) = [one for one in await queue.alimits() if one.tenant == tenant]
    return found


async def test_all_workers_together_keep_to_the_limit(app: Relevo) -> None:
    watched, queue = Watched(app), app.queue()
    await queue.alimit("acme", concurrency=3)
    await watched.enqueue("acme", 30, -1)
    await watched.enqueue("other", 30, -1)
    async with working(app, concurrency=5), working(app, concurrency=5), working(app, concurrency=5):
        await aeventually(lambda: watched.running == {"acme": 3, "other": 12}, what="all slots are used")
        watched.gate.set()
        await aeventually(lambda: watched.is_done(60))
    assert watched.most["acme"] == 3
    assert sorted(number for tenant, number in watched.order if tenant == "acme") == list(range(30))
    assert [one.running for one in await queue.alimits()] == [0]


async def test_jobs_of_a_limited_tenant_start_in_their_order(app: Relevo) -> None:
    watched = Watched(app)
    await app.queue().alimit("acme", concurrency=1)
    async with working(app, concurrency=4), working(app, concurrency=4):
        for _ in range(4):
            await watched.enqueue("acme", 10)
        await aeventually(lambda: watched.is_done(40))
    assert [number for _, number in watched.order] == list(range(10)) * 4


async def test_a_rate_is_kept_by_all_workers_together(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app, watched = times.app, Watched(times.app)
    await app.queue().alimit("acme", rate="1/h", burst=5)
    await watched.enqueue("acme", 10)
    for hours, started in ((0, 5), (0, 5), (1, 6), (2, 8), (50, 10)):
        times.move(hours * HOUR)
        await asyncio.gather(*(Worker(app, burst=True).run() for _ in range(3)))
        assert len(watched.order) == started
    await app.aclose()


async def test_a_limit_is_changed_while_everything_runs(app: Relevo) -> None:
    watched, queue = Watched(app), app.queue()
    await queue.alimit("acme", concurrency=1)
    async with working(app, concurrency=20):
        await watched.enqueue("acme", 12, -1)
        await aeventually(lambda: watched.running["acme"] == 1)
        await aeventually(lambda: _is_parked(queue, "acme", 11))
        assert await standing(queue, "acme") == LimitInfo(
            tenant="acme", concurrency=1, rate=None, burst=None, paused=False, running=1, parked=11
        )
        (seen,) = (await app.ahealth()).queues
        assert (seen.vitals.size("waiting"), seen.vitals.parked) == (11, 11)
        await queue.alimit("acme", concurrency=4, rate="100/s")
        await aeventually(lambda: watched.running["acme"] == 4)
        await queue.apause(tenant="acme")
        await queue.aunlimit("acme")
        assert watched.running["acme"] == 4
        assert await queue.aresume(tenant="acme") is True
        await aeventually(lambda: watched.running["acme"] == 12)
        watched.gate.set()
        await aeventually(lambda: watched.is_done(12))
    assert await queue.alimits() == []


async def _is_parked(queue: Queue, tenant: str, count: int) -> bool:
    return (await standing(queue, tenant)).parked == count


async def test_a_paused_tenant_waits_and_others_do_not(app: Relevo) -> None:
    watched, queue = Watched(app), app.queue()
    assert await queue.apause(tenant="acme") is True
    assert await queue.apause(tenant="acme") is False
    async with working(app):
        job = await watched.step.using(tenant="acme").aenqueue("acme", 1)
        await watched.enqueue("other", 20)
        await aeventually(lambda: watched.is_done(20))
        await aeventually(lambda: _is(job, State.WAITING))
        assert (await queue.astats()).waiting == 1
        assert [row.id for row in await queue.ajobs("waiting")] == [job.id]
        assert await queue.aresume(tenant="acme") is True
        assert await job.aresult(timeout=PATIENCE) == 1
    assert await queue.aresume(tenant="acme") is False


async def _is(job: Any, state: State) -> bool:
    return await job.astate() is state


async def test_a_parked_job_can_be_cancelled_and_retried(app: Relevo) -> None:
    watched, queue = Watched(app), app.queue()
    await queue.apause(tenant="acme")
    async with working(app):
        job = await watched.step.using(tenant="acme").aenqueue("acme", 1)
        await aeventually(lambda: _is(job, State.WAITING))
        assert (await job.ainfo()).state is State.WAITING
        await job.acancel()
        assert await job.astate() is State.CANCELLED
        assert (await standing(queue, "acme")).parked == 0
        await job.aretry()
        await queue.aresume(tenant="acme")
        assert await job.aresult(timeout=PATIENCE) == 1


async def test_a_tenant_that_floods_does_not_hold_up_the_others(app: Relevo) -> None:
    """5,000 jobs of one tenant wait behind two that do not end; jobs of others run all the same."""
    watched, queue = Watched(app, result_ttl=60), app.queue()
    await queue.alimit("big", concurrency=2)

    async def round_trips(count: int) -> None:
        for number in range(count):
            job = await watched.step.using(tenant=f"small{number % 3}").aenqueue("small", number)
            assert await job.aresult(timeout=PATIENCE) == number

    async with working(app, concurrency=10), working(app, concurrency=10):
        flooding = asyncio.create_task(watched.enqueue("big", 5_000, -1))
        await aeventually(lambda: watched.running["big"] == 2)
        await round_trips(20)
        await flooding
        await round_trips(20)
        assert watched.most == {"big": 2, "small": 1}
        assert (await queue.astats()).living == 5_000
        await queue.aclear()
        watched.gate.set()


async def test_a_worker_that_ends_when_nothing_is_left_runs_all_of_a_limited_tenant(app: Relevo) -> None:
    watched = Watched(app)
    await app.queue().alimit("acme", concurrency=1)
    await watched.enqueue("acme", 10)
    await drain(app)
    assert [number for _, number in watched.order] == list(range(10))


async def test_what_a_rate_forbids_is_left_to_a_later_worker(app: Relevo) -> None:
    watched = Watched(app)
    await app.queue().alimit("acme", rate="1/h", burst=2)
    await watched.enqueue("acme", 5)
    await drain(app)
    assert len(watched.order) == 2
    assert (await app.queue().astats()).waiting == 3
    await app.queue().aunlimit("acme")
    await drain(app)
    assert len(watched.order) == 5


async def test_retries_of_a_limited_tenant_keep_to_its_limit(app: Relevo) -> None:
    running: Counter[str] = Counter()
    most, failed = 0, set()

    @app.task(retries=2, backoff=0.001, tenant="acme")
    async def step(number: int) -> None:
        nonlocal most
        running["now"] += 1
        most = max(most, running["now"])
        await asyncio.sleep(0.001)
        running["now"] -= 1
        if number not in failed:
            failed.add(number)
            raise ValueError("once")

    await app.queue().alimit("acme", concurrency=2)
    async with working(app, concurrency=10):
        jobs = await step.aenqueue_many([((number,), {}) for number in range(20)])
        for job in jobs:
            await job.aresult(timeout=PATIENCE)
    assert most == 2


async def test_steps_of_a_workflow_keep_to_the_limit_of_their_tenant(app: Relevo) -> None:
    watched = Watched(app, result_ttl=60)
    await app.queue().alimit("acme", concurrency=1)
    step = watched.step.using(tenant="acme")
    async with working(app, concurrency=10):
        flows = [await chain(step.si("acme", 1), step.si("acme", 2), step.si("acme", 3)).aenqueue() for _ in range(5)]
        for flow in flows:
            assert await flow.aresult(timeout=PATIENCE) == 3
    assert watched.most["acme"] == 1


def test_takers_keep_to_the_limit(app: Relevo) -> None:
    @app.task(name="step")
    def step(number: int) -> None: ...

    queue = app.queue()
    queue.limit("acme", concurrency=2)
    big = step.using(tenant="acme").enqueue_many([((number,), {}) for number in range(600)])
    other = step.using(tenant="other", priority=150).enqueue(1)
    leases = queue.take(5)
    assert [lease.id for lease in leases] == [big[0].id, big[1].id, other.id], "however many had to be passed over"
    assert queue.take(5) == []
    assert leases[0].done() is True
    assert [lease.id for lease in queue.take(5)] == [big[2].id]
    assert queue.limits() == [
        LimitInfo(tenant="acme", concurrency=2, rate=None, burst=None, paused=False, running=2, parked=597)
    ]
    queue.clear()
    assert queue.limits()[0].parked == 0


def test_limits_are_listed_by_name_as_they_were_given(app: Relevo) -> None:
    queue = app.queue()
    assert queue.limits() == []
    queue.limit("b", rate="100/m")
    queue.limit("a", concurrency=2, rate=0.5, burst=3)
    queue.pause(tenant="c")
    rows = [(one.tenant, one.concurrency, one.rate, one.burst, one.paused) for one in queue.limits()]
    assert rows == [
        ("a", 2, "0.5/s", 3, False),
        ("b", None, "100/m", 2, False),
        ("c", None, None, None, True),
    ]
    queue.limit("a", concurrency=5)
    assert queue.limits()[0] == LimitInfo(
        tenant="a", concurrency=5, rate=None, burst=None, paused=False, running=0, parked=0
    )
    assert (queue.unlimit("a"), queue.unlimit("a"), queue.unlimit("c"), queue.resume(tenant="c")) == (
        True,
        False,
        False,
        True,
    )
    assert [one.tenant for one in queue.limits()] == ["b"]


def test_limits_are_those_of_one_queue(app: Relevo) -> None:
    @app.task(name="step")
    def step() -> None: ...

    app.queue("one").pause(tenant="acme")
    jobs = [step.using(queue=queue, tenant="acme").enqueue() for queue in ("one", "two")]
    drained(app, queues=["one", "two"])
    assert [job.state() for job in jobs] == [State.WAITING, State.DONE]
    app.queue("one").resume(tenant="acme")
    drained(app, queues=["one", "two"])
    assert jobs[0].state() is State.DONE


WRONG: list[tuple[Callable[[Queue], Any], str]] = [
    (lambda queue: queue.limit("acme"), "concurrency=, rate= or both"),
    (lambda queue: queue.limit("", concurrency=1), "tenant: printable text"),
    (lambda queue: queue.limit("acme", concurrency=0), "from 1 to 1,000,000 is needed, found 0"),
    (lambda queue: queue.limit("acme", rate="fast"), "not a rate: 'fast'"),
    (lambda queue: queue.limit("acme", concurrency=1, burst=2), "give rate= as well"),
    (lambda queue: queue.pause(tenant=""), "tenant: printable text"),
    (lambda queue: queue.resume(tenant="a\n"), "tenant: printable text"),
    (lambda queue: queue.unlimit(""), "tenant: printable text"),
    (lambda queue: queue.limit(task="", rate=1), "task: a task or its name"),
    (lambda queue: queue.limit("acme", task="x", rate=1), "give one of them"),
    (lambda queue: queue.limit(), "concurrency=, rate= or both"),
]


def test_wrong_limits_are_refused_and_change_nothing(app: Relevo) -> None:
    for call, wrong in WRONG:
        with pytest.raises(OptionError, match=wrong):
            call(app.queue())
    assert app.queue().limits() == []


AWRONG: list[Callable[[Queue], Awaitable[Any]]] = [
    lambda queue: queue.alimit("acme"),
    lambda queue: queue.apause(tenant=""),
    lambda queue: queue.aresume(tenant=""),
    lambda queue: queue.aunlimit(""),
]


async def test_wrong_limits_are_refused_in_async_code_too(app: Relevo) -> None:
    for call in AWRONG:
        with pytest.raises(OptionError):
            await call(app.queue())
    assert await app.queue().alimits() == []


# in the code


def limits_of_tasks(queue: Queue) -> dict[str, tuple[int | None, str | None, str, bool]]:
    return {one.task: (one.concurrency, one.rate, one.default, one.is_overridden) for one in queue.limits()}


async def test_a_worker_declares_the_limits_of_its_code_and_keeps_to_them(app: Relevo) -> None:
    watched = Watched(app, concurrency=2)
    await watched.enqueue("", 10, seconds=-1)
    async with working(app):
        await aeventually(lambda: watched.most[""] == 2)
        watched.gate.set()
        await aeventually(lambda: watched.is_done(10))
    assert watched.most[""] == 2
    assert limits_of_tasks(app.queue()) == {"step": (2, None, "concurrency=2", False)}


def test_a_changed_default_is_in_force_after_a_deploy_unless_an_operator_set_a_limit(
    app: Relevo, app_factory: AppFactory
) -> None:
    def deploy(**limits: Any) -> dict[str, tuple[int | None, str | None, str, bool]]:
        version = app_factory(app.name)

        @version.task(name="charge", **limits)
        def charge() -> None: ...

        with working(version):
            pass
        return limits_of_tasks(app.queue())

    assert deploy(concurrency=2) == {"charge": (2, None, "concurrency=2", False)}
    assert deploy(concurrency=3, rate="10/s") == {"charge": (3, "10/s", "concurrency=3, rate=10/s, burst=10", False)}
    app.queue().limit(task="charge", concurrency=8)
    assert deploy(rate="5/s") == {"charge": (8, None, "rate=5/s, burst=5", True)}
    app.queue().unlimit(task="charge")
    assert limits_of_tasks(app.queue()) == {"charge": (None, "5/s", "rate=5/s, burst=5", False)}
    assert deploy() == {}


async def test_a_limit_of_an_action_is_one_of_its_service(bus: Relevo) -> None:
    svc = bus.service("shop")

    @svc.action("charge", concurrency=3, rate="100/m", burst=7)
    async def charge() -> None: ...

    with pytest.raises(OptionError, match=r"concurrency is an option of tasks and actions; a subscription has a queue"):
        svc.on("other.thing", concurrency=3)(lambda: None)
    async with working(bus):
        pass
    assert limits_of_tasks(bus.queue(svc.queue)) == {
        "shop.charge": (3, "100/m", "concurrency=3, rate=100/m, burst=7", False)
    }


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"rate": "10 a day"}, "rate: not a rate: '10 a day'"),
        ({"concurrency": 0}, "concurrency: a whole number from 1"),
        ({"burst": 5}, "limit: give concurrency=, rate= or both|burst: it is how many"),
    ],
)
def test_a_limit_that_is_none_is_refused_by_the_decorator(app: Relevo, limits: Any, why: str) -> None:
    with pytest.raises(OptionError, match=why):

        @app.task(**limits)
        def charge() -> None: ...

    assert app.tasks == {}


def test_limits_are_options_of_the_task_and_not_of_a_job(app: Relevo) -> None:
    @app.task(concurrency=None, rate=None)
    def charge() -> None: ...

    with pytest.raises(OptionError, match=r"'rate' is an option of @app\.task\(\.\.\.\), not of this call"):
        charge.using(rate="1/s")


def test_operators_see_which_limits_come_from_the_code(app: Relevo, server: Server) -> None:
    @app.task(name="charge", concurrency=2, rate="10/s")
    def charge() -> None: ...

    def shell(*arguments: str) -> Output:
        return relevo(*arguments, "--name", app.name, url=server.url)

    with working(app):
        pass
    assert shell("limits").out.splitlines()[-1].endswith("from the code")
    assert shell("limit", "default", "--task", "charge", "--concurrency", "9").code == 0
    shown = shell("limits").out.splitlines()[-1]
    assert shown.endswith("instead of concurrency=2, rate=10/s, burst=10") and " 9 " in shown
    (row,) = shell("limits", "--json").json["items"]
    assert (row["default"], row["is_overridden"]) == ("concurrency=2, rate=10/s, burst=10", True)
    assert shell("limit", "default", "--task", "charge", "--remove").code == 0
    assert shell("limits").out.splitlines()[-1].endswith("from the code")
