"""Requests: each ends with an answer, a fault, a timeout or NoResponders, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo, current_job
from relevo.bus.bus import Bus
from relevo.bus.service import Service
from relevo.engine.context import JobContext, running
from relevo.errors import RemoteError, RequestTimeout
from relevo.store.plan import Call
from relevo.worker.run import Run
from tests.answering import Gate, answering, keys, kinds, outcome, times_out
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.process import bus_services
from tests.servers import Server

#: Where handlers run, as `bus_services` has them.
EXECUTORS = ("on_loop", "in_thread", "in_process")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def nooble(bus: Relevo, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relevo]:
    """The services that child processes can import, on the test's bus."""
    app, prefix = bus_services.app, bus.settings.prefix
    for name, value in {"URL": server.url, "PREFIX": prefix, "ENV": "test"}.items():
        monkeypatch.setenv(f"RELEVO_{name}", value)
    with app.engine.rebound(url=server.url, prefix=prefix, env="test"):
        yield app


@pytest.fixture
async def many_threads() -> None:
    """Room for all blocking requests of a test: a loop has few threads by itself."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))


@pytest.fixture
def timed(bus_factory: AppFactory) -> Relevo:
    """An app whose clock a test can move; its leases outlast the moves."""
    return bus_factory(_clock_key=f"relevo-test-clock-{uuid4().hex}", lease="10h")


async def move(app: Relevo, ms: int) -> None:
    await app.engine.arun(Call([b"SET", app.engine._clock_key.encode(), ms, b"EX", 600]))


# --- what a request carries


async def test_a_handler_sees_the_whole_message(bus: Relevo) -> None:
    found = []

    @bus.service("a").action("b")
    async def look() -> None:
        job = current_job()
        found.append((job.message, job.id, job.worker))

    async with answering(bus):
        instance = bus.engine.part(Bus).instance
        before_ms = time.time() * 1000
        await bus.service("me").arequest(
            "a.b",
            tenant="acme",
            tier="professional",
            session="s1",
            conversation="chat-7",
            correlation_id="op-1",
            traceparent=TRACE,
            version="2",
            timeout=PATIENCE,
        )
        after_ms = time.time() * 1000
        ((message, id, worker),) = found
        assert message is not None
        assert (message.id, message.type, message.attempt, message.intent) == (id, "a.b", 1, "request")
        assert (message.source, message.instance, message.version) == ("me", instance, "2")
        assert (message.tenant, message.tier, message.session) == ("acme", "professional", "s1")
        assert (message.conversation_id, message.correlation_id, message.causation_id) == ("chat-7", "op-1", "")
        assert message.reply_to == f"{bus.settings.prefix}:test:me:responses:{instance}"
        assert (message.traceparent, message.tracestate) == (TRACE, "")
        assert message.deadline_ms is not None
        assert before_ms - 1_000 < message.deadline_ms - PATIENCE * 1000 < after_ms + 1_000
        assert worker == instance


@pytest.mark.parametrize("where", [*EXECUTORS, "on_loop_of_process"])
async def test_a_nested_request_inherits_the_headers_and_the_deadline(nooble: Relevo, where: str) -> None:
    me = nooble.service("me")
    async with answering(nooble) as worker:
        answer = await me.arequest(
            f"front.ask_{where}",
            {"timeout": 86_400.0},
            tenant="acme",
            tier="free",
            session="s1",
            conversation="chat-7",
            correlation_id="op-1",
            traceparent=TRACE,
            version="9",
            timeout=PATIENCE,
        )
        earlier = await me.arequest(f"front.ask_{where}", {"timeout": PATIENCE}, timeout=86_400)
    mine, theirs = answer["mine"], answer["theirs"]
    for name in ("tenant", "tier", "session", "conversation_id", "correlation_id", "traceparent"):
        assert theirs[name] == mine[name] != "", name
    assert mine["correlation_id"] == "op-1"
    assert theirs["causation_id"] == mine["id"]
    assert (mine["source"], theirs["source"]) == ("me", "front")
    assert theirs["instance"] == worker.id
    assert theirs["version"] == "", "a version is of one message"
    assert theirs["reply_to"] == f"{nooble.settings.prefix}:test:front:responses:{worker.id}"
    assert (mine["pid"] == os.getpid()) is (where in ("on_loop", "in_thread"))
    assert theirs["pid"] == os.getpid()
    assert -1_000 < theirs["deadline_ms"] - mine["deadline_ms"] < 3_600_000, "the outer deadline bounds the inner one"
    assert earlier["theirs"]["deadline_ms"] < earlier["mine"]["deadline_ms"] - 3_600_000, "its own timeout is shorter"


@pytest.mark.parametrize("where", EXECUTORS)
async def test_a_nested_send_inherits_the_headers(nooble: Relevo, where: str) -> None:
    bus_services.noted.clear()
    async with answering(nooble):
        await nooble.service("me").arequest(
            f"front.send_{where}",
            tenant="acme",
            tier="free",
            session="s1",
            conversation="chat-7",
            traceparent=TRACE,
            timeout=PATIENCE,
        )
        await aeventually(lambda: bus_services.noted, what="the message was handled")
    (noted,) = bus_services.noted
    assert (noted["tenant"], noted["tier"], noted["session"], noted["traceparent"]) == ("acme", "free", "s1", TRACE)
    assert (noted["conversation_id"], noted["correlation_id"]) == ("chat-7", "chat-7")
    assert (noted["intent"], noted["source"], noted["deadline_ms"]) == ("send", "front", None)
    assert noted["causation_id"] not in ("", noted["id"])


async def test_concurrent_handlers_keep_their_own_headers(bus: Relevo) -> None:
    """The current job is known per asyncio task and per thread, and by those they start."""
    svc = bus.service("a")

    @svc.action("inner")
    async def inner() -> str:
        message = current_job().message
        assert message is not None
        return message.tenant

    @svc.action("outer")
    async def outer() -> list[str]:
        one = asyncio.create_task(svc.arequest("a.inner"))
        two = asyncio.to_thread(svc.request, "a.inner")
        return [await one, await two, await svc.arequest("a.inner", tenant="other")]

    me = bus.service("me")
    async with answering(bus):
        answers = await asyncio.gather(*(me.arequest("a.outer", tenant=f"t{n}") for n in range(10)))
    assert answers == [[f"t{n}", f"t{n}", "other"] for n in range(10)]
    assert running.get() is None


# --- timeouts


def test_a_nested_request_is_not_sent_after_the_outer_deadline(bus: Relevo) -> None:
    me = bus.service("me")
    token = running.set(JobContext("j" * 20, "x:actions", "x.y", deadline_at=time.monotonic() - 0.001))
    try:
        with pytest.raises(RequestTimeout, match=r"a\.b was not sent: the time of the request j+ "):
            me.request("a.b", wait=True)
    finally:
        running.reset(token)
    assert bus.engine.run(Call([b"EXISTS", bus.engine.keys_of("a:actions").key("jobs")])) == 0


async def test_a_chain_of_requests_ends_at_the_deadline_of_the_first(bus: Relevo) -> None:
    began, ended = [], []

    for n in range(5):
        svc = bus.service(f"s{n}")

        @svc.action("go")
        async def go(n: int, svc: Any = svc) -> None:
            began.append(n)
            try:
                if n == 4:
                    await asyncio.Event().wait()
                await svc.arequest(f"s{n + 1}.go", {"n": n + 1}, timeout=86_400)
            finally:
                ended.append(n)

    async with answering(bus):
        me = bus.service("me")
        await times_out(lambda timeout: me.arequest("s0.go", {"n": 0}, timeout=timeout), once=lambda: 4 in began)
        await aeventually(lambda: sorted(ended) == sorted(began), what="all handlers have ended")


async def test_no_answer_before_the_deadline_is_a_timeout(bus: Relevo) -> None:
    """Client and worker both watch the deadline; the error is the same, whichever notices first."""
    gate = Gate(bus)
    async with answering(bus):
        me = bus.service("me")
        asked = [outcome(me.arequest("a.b", {"n": n}, timeout=0.3 + n / 1000)) for n in range(100)]
        assert kinds(await asyncio.gather(*asked)) == {"RequestTimeout": 100}
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="nothing is left")
        await aeventually(lambda: len(gate.cancelled) == gate.runs.total(), what="no handler runs on")


async def test_a_request_that_no_worker_began_before_its_deadline_never_runs(timed: Relevo) -> None:
    """With an idempotency key, giving up does not cancel a request; neither does killing the process that asked."""
    gate = Gate(timed)
    gate.open()
    me, queue = timed.service("me"), timed.queue("a:actions")
    asked = [
        asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=1_000, wait=True, idempotency_key=f"k{n}"))
        for n in range(5)
    ]
    await aeventually(lambda: queue.stats().ready == 5)
    for one in asked:
        one.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await move(timed, 3_600_000)
    async with answering(timed):
        await aeventually(lambda: queue.stats().living == 0, what="the requests expired")
        assert await me.arequest("a.b", {"n": 99}) == 99
    assert gate.runs == {99: 1}
    assert queue.stats().totals["expired"] == 5
    assert not [key for key in await keys(timed) if "ended" in key]


# A worker with async actions takes more requests than it has threads; those for threads wait inside the worker.
async def test_a_request_that_waits_for_a_thread_beyond_its_deadline_never_runs(bus: Relevo) -> None:
    runs: list[int] = []
    go = threading.Event()

    @bus.service("a").action("b")
    def block(n: int) -> None:
        runs.append(n)
        go.wait(PATIENCE)

    @bus.service("a").action("other")
    async def other() -> None: ...

    me, queue = bus.service("me"), bus.queue("a:actions")
    async with answering(bus, threads=1, concurrency=50) as worker:
        assert worker._runner is not None
        runs_here = worker._runner.runs

        def waiting() -> list[Run]:
            return [run for run in runs_here.values() if run.is_waiting]

        first = asyncio.create_task(me.arequest("a.b", {"n": 0}, timeout=PATIENCE))
        await aeventually(lambda: runs == [0])
        await times_out(
            lambda timeout: me.arequest("a.b", {"n": 1}, timeout=timeout, idempotency_key=f"k{timeout}"), once=waiting
        )
        await aeventually(lambda: queue.stats().ready == 0 and all(run.is_too_late for run in waiting()))
        go.set()
        await first
        await aeventually(lambda: queue.stats().living == 0, what="all have ended")
    assert runs == [0]


# --- answers that come too late


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_an_answer_that_comes_too_late_is_dropped_and_counted(bus_factory: AppFactory, blocking: bool) -> None:
    app, asker = bus_factory(), bus_factory()
    began: list[int] = []
    given_up = asyncio.Event()

    @app.service("a").action("b")
    async def stubborn() -> None:
        began.append(1)
        while not given_up.is_set():  # the worker may notice the deadline before the client does
            with suppress(asyncio.CancelledError):
                await given_up.wait()

    me = asker.service("me")

    def ask(timeout: float) -> Awaitable[Any]:
        if blocking:
            return asyncio.to_thread(me.request, "a.b", timeout=timeout)
        return me.arequest("a.b", timeout=timeout)

    async with answering(app):
        await times_out(ask, once=lambda: began)
        given_up.set()
        await aeventually(lambda: asker.engine.client.late_replies == len(began), what="the late answers came")
    await asker.aclose()
    totals = app.queue("a:actions").stats().totals
    assert (totals["done"], totals.get("unheard", 0)) == (len(began), 0)
    assert not [key for key in await keys(app) if "ended" in key]


async def test_answers_in_time_and_cancelled_requests_are_not_counted_as_late(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        await times_out(lambda timeout: me.arequest("a.b", timeout=timeout), once=gate.runs.total)
        await aeventually(lambda: len(gate.cancelled) == gate.runs.total())
        gate.open()
        await asyncio.gather(*(me.arequest("a.b") for _ in range(5)))
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0)
        assert bus.engine.client.late_replies == 0


async def test_an_answer_to_a_process_that_is_gone_is_counted_and_expires(bus_factory: AppFactory) -> None:
    app, asker = bus_factory(), bus_factory()
    gate = Gate(app)
    async with answering(app):
        asked = asyncio.create_task(outcome(asker.service("me").arequest("a.b", timeout=PATIENCE)))
        await gate.reached(1)
        await asker.aclose()
        gate.open()
        await aeventually(lambda: app.queue("a:actions").stats().living == 0)
        assert app.queue("a:actions").stats().totals["unheard"] == 1
        (left,) = [key for key in await keys(app) if "ended" in key]
        assert 0 < await app.engine.arun(Call([b"PTTL", left.encode()])) <= PATIENCE * 1000
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await asker.aclose()


async def test_a_request_whose_app_was_closed_times_out(bus_factory: AppFactory) -> None:
    app, asker = bus_factory(), bus_factory()
    gate = Gate(app)

    async def ask(timeout: float) -> Any:
        asked = asyncio.create_task(asker.service("me").arequest("a.b", timeout=timeout))
        await aeventually(lambda: gate.runs or asked.done())
        await asker.aclose()
        return await asked

    async with answering(app):
        await times_out(ask, once=gate.runs.total)
    await asker.aclose()


# --- idempotency keys


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_concurrent_requests_under_one_key_run_once(bus_factory: AppFactory, blocking: bool) -> None:
    app, other = bus_factory(), bus_factory()
    gate = Gate(app)

    def ask(me: Service, n: int) -> Awaitable[Any]:
        options: dict[str, Any] = {"idempotency_key": "k", "timeout": PATIENCE}
        if blocking:
            return asyncio.to_thread(me.request, "a.b", {"n": n}, **options)
        return me.arequest("a.b", {"n": n}, **options)

    async with answering(app):
        asked = [asyncio.ensure_future(ask(each.service("me"), n)) for n, each in enumerate([app, other] * 5)]
        await gate.reached(1)
        gate.open()
        answers = await asyncio.gather(*asked)
    await other.aclose()
    assert len(set(answers)) == 1
    assert gate.runs.total() == 1


async def test_after_a_success_the_answer_is_kept_for_its_time(bus: Relevo) -> None:
    gate = Gate(bus)
    gate.open()
    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.b", {"n": 1}, idempotency_key="k") == 1
        assert await me.arequest("a.b", {"n": 2}, idempotency_key="k") == 1
        assert await asyncio.to_thread(me.request, "a.b", {"n": 3}, idempotency_key="k") == 1
        assert await me.arequest("a.b", {"n": 4}, idempotency_key="other") == 4
        assert await me.arequest("a.b", {"n": 5}) == 5
    assert await me.arequest("a.b", {"n": 6}, idempotency_key="k") == 1, "a kept answer needs no worker"
    await bus.aclose()
    assert gate.runs == {1: 1, 4: 1, 5: 1}
    for key in await keys(bus):
        if "ended" in key or "unique" in key:
            assert 300_000 < await bus.engine.arun(Call([b"PTTL", key.encode()])) <= 600_000, key


async def test_a_key_is_of_one_action_in_one_context(bus: Relevo) -> None:
    one, two = Gate(bus, "a.one"), Gate(bus, "a.two")
    one.open()
    two.open()

    @bus.service("a", context="c").action("three")
    async def three(n: int) -> int:
        return n

    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.one", {"n": 1}, idempotency_key="k") == 1
        assert await me.arequest("a.two", {"n": 2}, idempotency_key="k") == 2
        assert await me.arequest("a.three", {"n": 3}, idempotency_key="k") == 3
        assert await me.arequest("a.three", {"n": 4}, idempotency_key="k", at="c") == 4


async def test_after_a_failure_the_key_is_free(bus: Relevo) -> None:
    runs = []

    @bus.service("a").action("b")
    async def sometimes() -> int:
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("not yet")
        return len(runs)

    me = bus.service("me")
    async with answering(bus):
        for _ in range(2):
            with pytest.raises(RemoteError, match="not yet"):
                await me.arequest("a.b", idempotency_key="k")
        assert await me.arequest("a.b", idempotency_key="k") == 3
        assert await me.arequest("a.b", idempotency_key="k") == 3
    assert len(runs) == 3


# The failure is kept until the deadline of the request, but it does not hold the key.
async def test_after_a_failure_that_was_not_delivered_the_key_is_free(bus_factory: AppFactory) -> None:
    app, asker = bus_factory(), bus_factory()
    fails = asyncio.Event()
    runs = []

    @app.service("a").action("b")
    async def sometimes() -> int:
        runs.append(1)
        if len(runs) == 1:
            await fails.wait()
            raise ValueError("not yet")
        return len(runs)

    async with answering(app):
        asked = asyncio.create_task(asker.service("me").arequest("a.b", idempotency_key="k", timeout=PATIENCE))
        await aeventually(lambda: runs)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asker.aclose()  # as a process that was stopped
        fails.set()
        await aeventually(lambda: app.queue("a:actions").stats().living == 0)
        assert await app.service("me").arequest("a.b", idempotency_key="k") == 2


# The deadline of the message is that of the first request under the key.
async def test_a_request_with_more_time_than_the_first_under_its_key_is_answered(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        patient: list[asyncio.Task[Any]] = []

        async def ask(timeout: float) -> Any:
            hasty = asyncio.create_task(me.arequest("a.b", {"n": 1}, timeout=timeout, idempotency_key="k"))
            await aeventually(lambda: gate.runs or hasty.done())
            if gate.runs:
                asked = me.arequest("a.b", {"n": 2}, timeout=PATIENCE, idempotency_key="k")
                patient.append(asyncio.create_task(asked))
            return await hasty

        await times_out(ask, once=lambda: patient)
        await aeventually(lambda: gate.cancelled or gate.runs.total() > 1)
        gate.open()
        assert await patient[0] in (1, 2)


async def test_one_of_several_requests_under_a_key_may_give_up(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        first = asyncio.create_task(me.arequest("a.b", {"n": 1}, idempotency_key="k", timeout=PATIENCE))
        await gate.reached(1)
        second = asyncio.create_task(me.arequest("a.b", {"n": 2}, idempotency_key="k", timeout=0.2))
        assert isinstance(await outcome(second), RequestTimeout)
        third = asyncio.create_task(me.arequest("a.b", {"n": 3}, idempotency_key="k", timeout=PATIENCE))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        gate.open()
        assert await third == 1
    assert gate.cancelled == []


# --- cancelling


async def test_cancelling_a_request_cancels_its_handler(bus: Relevo) -> None:
    gate = Gate(bus)
    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("a.b", timeout=86_400))
        await gate.reached(1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await aeventually(lambda: gate.cancelled == [0], what="its handler is cancelled")
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0)
    assert bus.queue("a:actions").stats().totals["cancelled"] == 1
    assert not [key for key in await keys(bus) if "ended" in key]


async def test_cancelling_travels_through_nested_requests(bus: Relevo) -> None:
    gate = Gate(bus, "last.b")
    between = []
    first, second = bus.service("first"), bus.service("second")

    @first.action("b")
    async def one() -> None:
        try:
            await first.arequest("second.b", timeout=86_400)
        except asyncio.CancelledError:
            between.append(1)
            raise

    @second.action("b")
    async def two() -> None:
        try:
            await second.arequest("last.b", timeout=86_400)
        except asyncio.CancelledError:
            between.append(2)
            raise

    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("first.b", timeout=86_400))
        await gate.reached(1)
        asked.cancel()
        await aeventually(lambda: gate.cancelled == [0], what="the innermost handler is cancelled")
        assert between == [1, 2]
        await asyncio.gather(asked, return_exceptions=True)


# A thread that waits for an answer inside `request` cannot be interrupted. If it were abandoned, its request would go
# on, and a worker with too many abandoned threads restarts.
async def test_cancelling_travels_through_a_thread_that_waits_for_an_answer(bus: Relevo) -> None:
    gate = Gate(bus, "last.b")
    first = bus.service("first")

    @first.action("b")
    def one() -> None:
        first.request("last.b", timeout=86_400)

    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("first.b", timeout=86_400))
        await gate.reached(1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        try:
            await aeventually(lambda: gate.cancelled == [0], what="the innermost handler is cancelled")
        finally:
            gate.open()


async def test_a_thread_that_stops_waiting_under_a_key_does_not_cancel_other_requests(bus: Relevo) -> None:
    gate = Gate(bus, "last.b")
    first = bus.service("first")
    waiting = []

    @first.action("b")
    def one(n: int) -> Any:
        waiting.append(n)
        return first.request("last.b", {"n": 7}, timeout=86_400, idempotency_key="k")

    me = bus.service("me")
    async with answering(bus):
        goes = asyncio.create_task(me.arequest("first.b", {"n": 1}, timeout=86_400))
        await gate.reached(1)
        stays = asyncio.create_task(outcome(me.arequest("first.b", {"n": 2}, timeout=86_400)))
        await aeventually(lambda: len(waiting) == 2)
        await aeventually(
            lambda: [*map(len, bus.engine.client._inbox._waiting.values())] == [2], what="both wait for it"
        )
        goes.cancel()
        await asyncio.gather(goes, return_exceptions=True)
        await aeventually(lambda: bus.queue("first:actions").stats().running <= 1, what="one is stopped")
        gate.open()
        assert await stays == 7


async def test_a_plain_function_sees_that_its_request_timed_out(bus: Relevo) -> None:
    began, stopped = threading.Event(), threading.Event()

    @bus.service("a").action("b")
    def look() -> None:
        began.set()
        try:
            while not current_job().cancel_requested:
                time.sleep(0.01)
        finally:  # it may be interrupted before it looks
            stopped.set()

    async with answering(bus):
        request = bus.service("me").request
        await times_out(lambda timeout: asyncio.to_thread(request, "a.b", timeout=timeout), once=began.is_set)
        await aeventually(stopped.is_set)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_request_given_up_before_it_started_is_removed(bus: Relevo, blocking: bool) -> None:
    gate = Gate(bus)
    me, queue = bus.service("me"), bus.queue("a:actions")
    if blocking:
        with pytest.raises(RequestTimeout):
            await asyncio.to_thread(me.request, "a.b", {"text": "x" * 100_000}, timeout=0.1, wait=True)
    else:
        asked = asyncio.create_task(me.arequest("a.b", {"text": "x" * 100_000}, timeout=86_400, wait=True))
        await aeventually(lambda: queue.stats().ready == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await aeventually(lambda: queue.stats().living == 0, what="it is removed")
    assert not [key for key in await keys(bus) if "carried" in key or "ended" in key or "waiters" in key]
    assert gate.runs == {}
    await bus.aclose()


def test_a_request_is_cancelled_even_if_the_event_loop_ends_right_after(bus: Relevo) -> None:
    started, stopped = threading.Event(), threading.Event()

    @bus.service("a").action("b")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def ask() -> None:
        asked = asyncio.create_task(bus.service("me").arequest("a.b", timeout=86_400))
        await aeventually(started.is_set)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    with answering(bus):
        asyncio.run(ask())
        assert stopped.wait(PATIENCE), "the handler runs on"


async def test_a_request_outlives_the_worker_that_stops_in_the_middle(bus_factory: AppFactory) -> None:
    """It is handed back to the queue, and another worker answers it."""
    first, second, asker = bus_factory(), bus_factory(), bus_factory()
    one, two = Gate(first), Gate(second)
    two.open()
    async with answering(first):
        asked = [
            asyncio.create_task(asker.service("me").arequest("a.b", {"n": n}, timeout=PATIENCE)) for n in range(10)
        ]
        await one.reached(10)
    async with answering(second):
        assert await asyncio.gather(*asked) == list(range(10))
    await asker.aclose()
    assert two.runs.total() == 10


# --- actions in processes


async def test_an_action_may_run_in_a_process_of_its_own(nooble: Relevo) -> None:
    me = nooble.service("me")
    async with answering(nooble):
        assert await me.arequest("back.work_apart", {"n": 7}, timeout=PATIENCE) == 7
        assert (
            await me.arequest("front.order_in_process", {"customer": "zoë", "pieces": 2}, timeout=PATIENCE)
            == "2 for zoë"
        )
        large = await me.arequest("front.order_in_process", {"customer": "x" * 100_000}, timeout=PATIENCE)
        assert large == "1 for " + "x" * 100_000
        with pytest.raises(RemoteError) as caught:
            await me.arequest("front.order_in_process", {"customer": 7}, timeout=PATIENCE)
        assert caught.value.reason == "bad_arguments"
        with pytest.raises(RequestTimeout):
            await me.arequest("back.work_apart", {"n": 8, "seconds": 3600.0}, timeout=0.3)
        assert await me.arequest("back.work_apart", {"n": 9}, timeout=PATIENCE) == 9


# No module holds the action itself: the child process finds only its function.
async def test_an_action_that_was_made_by_a_function_may_run_in_a_process_of_its_own(nooble: Relevo) -> None:
    async with answering(nooble):
        answer = await nooble.service("me").arequest("apart.order", {"customer": "zoë", "pieces": 2}, timeout=PATIENCE)
        assert answer == "2 for zoë"


async def test_cancelling_a_request_stops_its_process(nooble: Relevo) -> None:
    me = nooble.service("me")
    async with answering(nooble):
        assert await me.arequest("back.work_apart", {"n": 1}, timeout=PATIENCE) == 1  # a child is up
        asked = asyncio.create_task(me.arequest("back.work_apart", {"n": 2, "seconds": 3600.0}, timeout=86_400))
        await aeventually(lambda: nooble.queue("back:actions").stats().running == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await aeventually(lambda: nooble.queue("back:actions").stats().living == 0, what="it was stopped")
        assert await me.arequest("back.work_apart", {"n": 3}, timeout=PATIENCE) == 3
