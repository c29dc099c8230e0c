"""Requests: each ends in one of answer, fault, time-out or nobody there, in its time, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo, current_job
from relevo.context import JobContext, running
from relevo.errors import RemoteError, RequestTimeout
from relevo.model.message import DEEPEST
from relevo.store.plan import Call
from tests.answering import Gate, answering, kinds, outcome
from tests.conftest import AppFactory
from tests.eventually import aeventually
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
    with app.rebound(url=server.url, prefix=prefix, env="test"):
        yield app


@pytest.fixture
async def many_threads() -> None:
    """Room for all blocking requests of a test: a loop has few threads by itself."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))


async def keys(app: Relevo) -> list[str]:
    """Keys under this app's prefix."""
    found: list[bytes] = await app.arun(Call([b"KEYS", f"*{app.settings.prefix}*".encode()]))
    return sorted(key.decode() for key in found)


# --- what a request says


async def test_a_handler_knows_the_whole_message(bus: Relevo) -> None:
    found = []

    @bus.service("a").action("b")
    async def look() -> None:
        job = current_job()
        found.append((job.message, job.id, job.worker))

    async with answering(bus):
        instance = bus.bus.instance
        await bus.service("me").arequest(
            "a.b",
            tenant="acme",
            tier="professional",
            session="s1",
            task="chat-7",
            correlation_id="op-1",
            traceparent=TRACE,
            version="2",
            timeout=5,
        )
        ((message, id, worker),) = found
        assert message is not None
        assert (message.id, message.type, message.attempt, message.intent) == (id, "a.b", 1, "request")
        assert (message.source, message.instance, message.version) == ("me", instance, "2")
        assert (message.tenant, message.tier, message.session) == ("acme", "professional", "s1")
        assert (message.conversation_id, message.correlation_id, message.causation_id) == ("chat-7", "op-1", "")
        assert message.reply_to == f"{bus.settings.prefix}:test:me:responses:{instance}"
        assert (message.traceparent, message.tracestate) == (TRACE, "")
        assert message.deadline_ms is not None
        assert 0 < message.deadline_ms - time.time() * 1000 <= 5_000
        assert worker == instance


@pytest.mark.parametrize("where", EXECUTORS)
async def test_what_a_message_belongs_to_is_handed_on_by_a_nested_request(nooble: Relevo, where: str) -> None:
    me = nooble.service("me")
    async with answering(nooble) as worker:
        answer = await me.arequest(
            f"front.ask_{where}",
            tenant="acme",
            tier="free",
            session="s1",
            task="chat-7",
            correlation_id="op-1",
            traceparent=TRACE,
            version="9",
            timeout=20,
        )
    mine, theirs = answer["mine"], answer["theirs"]
    for name in ("tenant", "tier", "session", "conversation_id", "correlation_id", "traceparent"):
        assert theirs[name] == mine[name] != "", name
    assert mine["correlation_id"] == "op-1"
    assert theirs["causation_id"] == mine["id"]
    assert (mine["source"], theirs["source"]) == ("me", "front")
    assert theirs["instance"] == worker.id
    assert theirs["version"] == "", "a version is of one message"
    assert theirs["reply_to"] == f"{nooble.settings.prefix}:test:front:responses:{worker.id}"
    assert (mine["pid"] == os.getpid()) is (where != "in_process")
    assert theirs["pid"] == os.getpid()


@pytest.mark.parametrize("where", EXECUTORS)
async def test_what_a_message_belongs_to_is_handed_on_by_a_send(nooble: Relevo, where: str) -> None:
    bus_services.noted.clear()
    async with answering(nooble):
        await nooble.service("me").arequest(
            f"front.send_{where}",
            tenant="acme",
            tier="free",
            session="s1",
            task="chat-7",
            traceparent=TRACE,
            timeout=20,
        )
        await aeventually(lambda: bus_services.noted, what="the message was handled")
    (noted,) = bus_services.noted
    assert (noted["tenant"], noted["tier"], noted["session"], noted["traceparent"]) == ("acme", "free", "s1", TRACE)
    assert (noted["conversation_id"], noted["correlation_id"]) == ("chat-7", "chat-7")
    assert (noted["intent"], noted["source"], noted["deadline_ms"]) == ("send", "front", None)
    assert noted["causation_id"] not in ("", noted["id"])


async def test_an_operation_without_a_name_is_named_by_its_first_message(nooble: Relevo) -> None:
    async with answering(nooble):
        answer = await nooble.service("me").arequest("front.ask_on_loop")
    mine, theirs = answer["mine"], answer["theirs"]
    assert mine["correlation_id"] == mine["id"]
    assert theirs["correlation_id"] == mine["id"] == theirs["causation_id"]


async def test_tasks_that_run_at_once_do_not_take_each_others_belongings(bus: Relevo) -> None:
    """What is being worked on is known per task, per thread, and by what they start."""
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
        answers = await asyncio.gather(*(me.arequest("a.outer", tenant=f"t{n}") for n in range(20)))
    assert answers == [[f"t{n}", f"t{n}", "other"] for n in range(20)]
    assert running.get() is None


async def test_who_calls_itself_is_stopped_before_it_goes_on_for_ever(bus: Relevo) -> None:
    svc = bus.service("a")
    runs = []

    @svc.action("b")
    async def again(n: int) -> int:
        runs.append(n)
        found: int = await svc.arequest("a.b", {"n": n + 1}, timeout=20)
        return found

    async with answering(bus):
        with pytest.raises(RemoteError, match="RemoteError") as caught:
            await bus.service("me").arequest("a.b", {"n": 0}, timeout=20)
    assert runs == list(range(DEEPEST + 1))
    assert caught.value.type == "relevo.errors.RemoteError"


async def test_sends_that_cause_sends_are_stopped_as_well(bus: Relevo) -> None:
    svc = bus.service("a")
    runs = []

    @svc.action("b", retries=0)
    async def again() -> None:
        runs.append(1)
        await svc.asend("a.b")

    async with answering(bus):
        await bus.service("me").asend("a.b")
        await aeventually(lambda: bus.dead.list(), what="the last one fails")
    assert len(runs) == DEEPEST + 1


# --- time


@pytest.mark.parametrize("where", [*EXECUTORS, "on_loop_of_process"])
async def test_a_nested_request_has_no_more_time_than_the_one_it_is_for(nooble: Relevo, where: str) -> None:
    me = nooble.service("me")
    async with answering(nooble):
        answer = await me.arequest(f"front.ask_{where}", {"timeout": 3600.0}, timeout=10)
        mine, theirs = answer["mine"]["deadline_ms"], answer["theirs"]["deadline_ms"]
        assert theirs <= mine + 250, "but for the way to the server"
        assert theirs > mine - 1_000
        answer = await me.arequest(f"front.ask_{where}", {"timeout": 4.0}, timeout=10)
        assert answer["theirs"]["deadline_ms"] < answer["mine"]["deadline_ms"] - 4_000, "and less if it says so"


def test_a_request_is_not_sent_if_the_time_of_the_one_it_is_for_is_up(bus: Relevo) -> None:
    me = bus.service("me")
    token = running.set(JobContext("j" * 20, "x:actions", "x.y", deadline_at=time.monotonic() - 0.001))
    try:
        began = time.monotonic()
        with pytest.raises(RequestTimeout, match=r"a\.b was not sent: the time of the request j+ "):
            me.request("a.b", wait=True)
        assert time.monotonic() - began < 5
    finally:
        running.reset(token)
    assert bus.run(Call([b"EXISTS", bus.keys_of("a:actions").key("jobs")])) == 0


async def test_a_chain_of_requests_ends_with_the_time_of_the_first(bus: Relevo) -> None:
    ended = []

    for n in range(5):
        svc = bus.service(f"s{n}")

        @svc.action("go")
        async def go(n: int, svc: Any = svc) -> None:
            try:
                await (asyncio.sleep(60) if n == 4 else svc.arequest(f"s{n + 1}.go", {"n": n + 1}, timeout=60))
            finally:
                ended.append(n)

    async with answering(bus):
        began = time.monotonic()
        with pytest.raises(RequestTimeout):
            await bus.service("me").arequest("s0.go", {"n": 0}, timeout=0.5)
        assert 0.4 < time.monotonic() - began < 15
        await aeventually(lambda: sorted(ended) == [0, 1, 2, 3, 4], what="all of them have ended")
        assert time.monotonic() - began < 20


async def test_no_answer_in_time_is_a_timeout_whoever_notices_it_first(bus: Relevo) -> None:
    """Both sides watch the time. Who asked is told the same, whichever clock is a little ahead."""
    gate = Gate(bus)
    async with answering(bus):
        me = bus.service("me")
        asked = [outcome(me.arequest("a.b", {"n": n}, timeout=0.3 + n / 1000)) for n in range(300)]
        assert kinds(await asyncio.gather(*asked)) == {"RequestTimeout": 300}
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="nothing is left")
        assert len(gate.cancelled) == gate.runs.total(), "nobody works on"


async def test_a_request_that_nobody_could_begin_in_time_never_runs(bus: Relevo) -> None:
    """Under a key it is not cancelled by who gives up, as it is not when that process was killed."""
    gate = Gate(bus)
    gate.open()
    me = bus.service("me")
    asked = [me.arequest("a.b", {"n": n}, timeout=0.2, wait=True, idempotency_key=f"k{n}") for n in range(10)]
    assert kinds(await asyncio.gather(*map(outcome, asked))) == {"RequestTimeout": 10}
    queue = bus.queue("a:actions")
    assert queue.stats().ready == 10
    async with answering(bus):
        await aeventually(lambda: queue.stats().living == 0, what="they are dropped")
        assert await me.arequest("a.b", {"n": 99}) == 99
    assert gate.runs == {99: 1}
    assert queue.stats().totals["expired"] == 10
    assert not [key for key in await keys(bus) if "ended" in key]


async def test_the_time_is_the_servers(bus_factory: AppFactory) -> None:
    """A request for a minute, and a server whose clock moves on by an hour: it is late, whatever clocks are here."""
    clock = f"relevo-test-clock-{uuid4().hex}"
    app = bus_factory(_clock_key=clock)
    gate = Gate(app)
    gate.open()
    await app.arun(Call([b"SET", clock.encode(), -86_400_000, b"PX", 60_000]))
    began = time.monotonic()
    asked = asyncio.create_task(app.service("me").arequest("a.b", timeout=60, wait=True))
    await aeventually(lambda: app.queue("a:actions").stats().ready == 1)
    await app.arun(Call([b"SET", clock.encode(), 3_600_000, b"PX", 60_000]))
    async with answering(app):
        with pytest.raises(RequestTimeout, match="could not be answered within 60 s"):
            await asked
        assert time.monotonic() - began < 10
        assert await app.service("me").arequest("a.b", {"n": 1}, timeout=5) == 1
    assert gate.runs == {1: 1}


# A worker takes as many requests as it has slots for all kinds of functions, and those for threads wait inside it.
@pytest.mark.parametrize("where", ["thread", "loop"])
async def test_a_request_that_waits_inside_a_worker_beyond_its_time_never_runs(bus: Relevo, where: str) -> None:
    runs: list[tuple[int, float]] = []
    limit, seconds = 0.5, 0.3
    began = time.monotonic()

    def block(n: int) -> None:
        runs.append((n, time.monotonic() - began))
        time.sleep(seconds)

    async def wait(n: int) -> None:
        runs.append((n, time.monotonic() - began))
        await asyncio.sleep(seconds)

    handler: Any = block if where == "thread" else wait
    bus.service("a").action("b")(handler)

    @bus.service("a").action("other")
    async def other() -> None:
        """So that the worker takes more than its threads can do."""

    me = bus.service("me")
    async with answering(bus, threads=1, concurrency=1 if where == "loop" else 50):
        began = time.monotonic()
        asked = [me.arequest("a.b", {"n": n}, timeout=limit, idempotency_key=f"k{n}") for n in range(8)]
        found = await asyncio.gather(*map(outcome, asked))
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="all have ended")
    assert "answer" in kinds(found)
    late = [(n, round(at, 2)) for n, at in runs if at > limit + 0.1]
    assert not late, f"began after {limit} s: {late}"


# --- answers that nobody waits for


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_an_answer_that_comes_too_late_is_dropped_and_counted(bus_factory: AppFactory, blocking: bool) -> None:
    app, asker = bus_factory(), bus_factory()

    @app.service("a").action("b")
    async def stubborn(n: int) -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return n

    me = asker.service("me")

    async def ask(n: int) -> Any:
        if blocking:
            return await asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=0.1)
        return await me.arequest("a.b", {"n": n}, timeout=0.1)

    async with answering(app):
        assert kinds(await asyncio.gather(*(outcome(ask(n)) for n in range(5)))) == {"RequestTimeout": 5}
        await aeventually(lambda: asker.client.late_replies == 5, what="they came, and nobody waited for them")
    await asker.aclose()
    totals = app.queue("a:actions").stats().totals
    assert (totals["done"], totals.get("unheard", 0)) == (5, 0)
    assert not [key for key in await keys(app) if "ended" in key]


async def test_answers_in_time_and_cancelled_requests_are_not_counted_as_late(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        assert kinds(await asyncio.gather(*(outcome(me.arequest("a.b", timeout=0.1)) for _ in range(20)))) == {
            "RequestTimeout": 20
        }
        await aeventually(lambda: len(gate.cancelled) == 20)
        gate.open()
        await asyncio.gather(*(me.arequest("a.b") for _ in range(20)))
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0)
        assert bus.client.late_replies == 0


async def test_an_answer_to_one_who_is_gone_is_counted_and_has_an_end(bus_factory: AppFactory) -> None:
    app, asker = bus_factory(), bus_factory()
    gate = Gate(app)
    async with answering(app):
        asked = asyncio.create_task(outcome(asker.service("me").arequest("a.b", timeout=1.5)))
        await gate.reached(1)
        await asker.aclose()
        gate.open()
        await aeventually(lambda: app.queue("a:actions").stats().living == 0)
        assert app.queue("a:actions").stats().totals["unheard"] == 1
        (left,) = [key for key in await keys(app) if "ended" in key]
        assert 0 < await app.arun(Call([b"PTTL", left.encode()])) <= 1_500
        assert isinstance(await asyncio.wait_for(asked, 5), RequestTimeout), "who closed its app still gets an end"
    await asker.aclose()


# --- idempotency keys


async def test_requests_under_one_key_at_the_same_time_are_one(bus_factory: AppFactory) -> None:
    app, other = bus_factory(), bus_factory()
    gate = Gate(app)
    async with answering(app):
        asked = [
            asyncio.create_task(each.service("me").arequest("a.b", {"n": n}, idempotency_key="k", timeout=20))
            for n, each in enumerate([app, other] * 20)
        ]
        await gate.reached(1)
        gate.open()
        answers = await asyncio.gather(*asked)
    await other.aclose()
    assert len(set(answers)) == 1
    assert gate.runs.total() == 1


@pytest.mark.usefixtures("many_threads")
async def test_blocking_requests_under_one_key_at_the_same_time_are_one(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        asked = [
            asyncio.create_task(asyncio.to_thread(me.request, "a.b", {"n": n}, idempotency_key="k", timeout=20))
            for n in range(8)
        ]
        await gate.reached(1)
        gate.open()
        assert len(set(await asyncio.gather(*asked))) == 1
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
    assert gate.runs == {1: 1, 4: 1, 5: 1}
    for key in await keys(bus):
        if "ended" in key or "unique" in key:
            assert 590_000 < await bus.arun(Call([b"PTTL", key.encode()])) <= 600_000, key


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


# It is kept until the deadline of the request, as any answer is, but it is none.
async def test_after_a_failure_of_which_nobody_heard_the_key_is_free(bus_factory: AppFactory) -> None:
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
        asked = asyncio.create_task(asker.service("me").arequest("a.b", idempotency_key="k", timeout=30))
        await aeventually(lambda: runs)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asker.aclose()  # as a process that was stopped
        fails.set()
        await aeventually(lambda: app.queue("a:actions").stats().living == 0)
        assert await app.service("me").arequest("a.b", idempotency_key="k") == 2


async def test_a_kept_answer_needs_no_worker(bus: Relevo) -> None:
    gate = Gate(bus)
    gate.open()
    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.b", {"n": 1}, idempotency_key="k") == 1
    assert await me.arequest("a.b", {"n": 2}, idempotency_key="k") == 1
    await bus.aclose()


async def test_a_message_under_one_key_is_handled_once(bus: Relevo) -> None:
    runs = []

    @bus.service("a").action("b")
    async def count(n: int) -> None:
        runs.append(n)

    me = bus.service("me")
    async with answering(bus):
        await me.asend("a.b", {"n": 1}, idempotency_key="k")
        await aeventually(lambda: bus.queue("a:actions").stats().totals.get("done") == 1)
        await me.asend("a.b", {"n": 2}, idempotency_key="k")
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0)
    assert runs == [1]


# Whoever comes first says how long the message may take.
async def test_who_has_more_time_than_the_first_under_a_key_is_answered(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        hasty = asyncio.create_task(outcome(me.arequest("a.b", {"n": 1}, timeout=0.5, idempotency_key="k")))
        await gate.reached(1)
        patient = asyncio.create_task(outcome(me.arequest("a.b", {"n": 2}, timeout=8, idempotency_key="k")))
        assert isinstance(await hasty, RequestTimeout)
        await aeventually(lambda: gate.cancelled or gate.runs.total() > 1)
        gate.open()
        assert await patient in (1, 2)


async def test_one_of_two_who_wait_under_a_key_may_give_up(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus):
        first = asyncio.create_task(me.arequest("a.b", {"n": 1}, idempotency_key="k", timeout=20))
        await gate.reached(1)
        second = asyncio.create_task(me.arequest("a.b", {"n": 2}, idempotency_key="k", timeout=0.2))
        assert isinstance(await outcome(second), RequestTimeout)
        third = asyncio.create_task(me.arequest("a.b", {"n": 3}, idempotency_key="k", timeout=20))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        gate.open()
        assert await third == 1
    assert gate.cancelled == []


# --- cancelling


async def test_who_is_cancelled_cancels_what_was_asked(bus: Relevo) -> None:
    gate = Gate(bus)
    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("a.b", timeout=60))
        await gate.reached(1)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await aeventually(lambda: gate.cancelled == [0], timeout=3, what="its handler is cancelled")
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
            await first.arequest("second.b", timeout=60)
        except asyncio.CancelledError:
            between.append(1)
            raise

    @second.action("b")
    async def two() -> None:
        try:
            await second.arequest("last.b", timeout=60)
        except asyncio.CancelledError:
            between.append(2)
            raise

    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("first.b", timeout=60))
        await gate.reached(1)
        asked.cancel()
        await aeventually(lambda: gate.cancelled == [0], timeout=3, what="the innermost handler is cancelled")
        assert between == [1, 2]
        await asyncio.gather(asked, return_exceptions=True)


# A thread that waits for an answer inside `request` cannot be interrupted. If it were left behind, what it asked for
# would go on, and a worker with too many such threads starts anew.
async def test_cancelling_travels_through_a_thread_that_waits_for_an_answer(bus: Relevo) -> None:
    gate = Gate(bus, "last.b")
    first = bus.service("first")

    @first.action("b")
    def one() -> None:
        first.request("last.b", timeout=8)

    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("first.b", timeout=8))
        await gate.reached(1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        try:
            await aeventually(lambda: gate.cancelled == [0], timeout=3, what="the innermost handler is cancelled")
        finally:
            gate.open()


async def test_a_thread_that_stops_waiting_under_a_key_does_not_take_others_along(bus: Relevo) -> None:
    gate = Gate(bus, "last.b")
    first = bus.service("first")
    waiting = []

    @first.action("b")
    def one(n: int) -> Any:
        waiting.append(n)
        return first.request("last.b", {"n": 7}, timeout=8, idempotency_key="k")

    me = bus.service("me")
    async with answering(bus):
        goes = asyncio.create_task(me.arequest("first.b", {"n": 1}, timeout=8))
        await gate.reached(1)
        stays = asyncio.create_task(outcome(me.arequest("first.b", {"n": 2}, timeout=8)))
        await aeventually(lambda: len(waiting) == 2)
        await aeventually(lambda: [*map(len, bus.client._inbox._waiting.values())] == [2], what="both wait for it")
        goes.cancel()
        await asyncio.gather(goes, return_exceptions=True)
        await aeventually(lambda: bus.queue("first:actions").stats().running <= 1, what="one is stopped")
        gate.open()
        assert await stays == 7


async def test_a_plain_function_that_is_not_wanted_any_more_is_told(bus: Relevo) -> None:
    told = threading.Event()

    @bus.service("a").action("b")
    def look() -> None:
        try:
            while not current_job().cancel_requested:
                time.sleep(0.01)
        finally:  # it may be interrupted before it looks
            told.set()

    async with answering(bus):
        with pytest.raises(RequestTimeout):
            await asyncio.to_thread(bus.service("me").request, "a.b", timeout=0.2)
        await aeventually(told.is_set, timeout=3)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_request_that_has_not_started_is_removed_by_who_gives_up(bus: Relevo, blocking: bool) -> None:
    gate = Gate(bus)
    me, queue = bus.service("me"), bus.queue("a:actions")
    if blocking:
        with pytest.raises(RequestTimeout):
            await asyncio.to_thread(me.request, "a.b", {"text": "x" * 100_000}, timeout=0.1, wait=True)
    else:
        asked = asyncio.create_task(me.arequest("a.b", {"text": "x" * 100_000}, timeout=60, wait=True))
        await aeventually(lambda: queue.stats().ready == 1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await aeventually(lambda: queue.stats().living == 0, what="it is removed")
    assert not [key for key in await keys(bus) if "carried" in key or "ended" in key or "waiters" in key]
    assert gate.runs == {}
    await bus.aclose()


def test_cancelling_is_told_also_if_the_event_loop_ends_right_after(bus: Relevo) -> None:
    started, stopped = threading.Event(), threading.Event()

    @bus.service("a").action("b")
    async def wait() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async def ask() -> None:
        await asyncio.wait_for(bus.service("me").arequest("a.b", timeout=60), 0.3)

    with answering(bus):
        with pytest.raises(TimeoutError):
            asyncio.run(ask())
        assert started.is_set()
        assert stopped.wait(3), "the handler goes on for nobody"


async def test_a_request_outlives_the_worker_that_stops_in_the_middle(bus_factory: AppFactory) -> None:
    """It is handed back, and another one answers it."""
    first, second, asker = bus_factory(), bus_factory(), bus_factory()
    one, two = Gate(first), Gate(second)
    two.open()
    async with answering(first):
        asked = [asyncio.create_task(asker.service("me").arequest("a.b", {"n": n}, timeout=20)) for n in range(10)]
        await one.reached(10)
    async with answering(second):
        assert await asyncio.gather(*asked) == list(range(10))
    await asker.aclose()
    assert two.runs.total() == 10


# --- executors of their own


async def test_an_action_may_run_in_a_process_of_its_own(nooble: Relevo) -> None:
    me = nooble.service("me")
    async with answering(nooble):
        assert await me.arequest("back.work_apart", {"n": 7}, timeout=20) == 7
        assert await me.arequest("front.order_in_process", {"customer": "zoë", "pieces": 2}, timeout=20) == "2 for zoë"
        large = await me.arequest("front.order_in_process", {"customer": "x" * 100_000}, timeout=20)
        assert large == "1 for " + "x" * 100_000
        with pytest.raises(RemoteError) as caught:
            await me.arequest("front.order_in_process", {"customer": 7}, timeout=20)
        assert caught.value.reason == "bad_arguments"
        with pytest.raises(RequestTimeout):
            await me.arequest("back.work_apart", {"n": 8, "seconds": 60.0}, timeout=0.3)
        assert await me.arequest("back.work_apart", {"n": 9}, timeout=20) == 9


# No module holds the action itself: the child finds only its function.
async def test_an_action_that_was_made_by_a_function_may_run_in_a_process_of_its_own(nooble: Relevo) -> None:
    async with answering(nooble):
        answer = await nooble.service("me").arequest("apart.order", {"customer": "zoë", "pieces": 2}, timeout=20)
        assert answer == "2 for zoë"


async def test_cancelling_kills_a_process_that_works_for_nobody(nooble: Relevo, tmp_path: Path) -> None:
    me = nooble.service("me")
    async with answering(nooble):
        assert await me.arequest("back.work_apart", {"n": 1}, timeout=20) == 1  # a child is up
        asked = asyncio.create_task(me.arequest("back.work_apart", {"n": 2, "seconds": 60.0}, timeout=60))
        await aeventually(lambda: nooble.queue("back:actions").stats().running == 1)
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await aeventually(lambda: nooble.queue("back:actions").stats().living == 0, timeout=5, what="it was stopped")
        assert await me.arequest("back.work_apart", {"n": 3}, timeout=20) == 3
