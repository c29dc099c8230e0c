"""Requests under faults: many at once, from threads, loops and forks, over broken connections, to servers that die."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo, current_job
from relevo.bus.bus import Bus
from relevo.errors import BusError, NoResponders, OptionError, RequestTimeout, StoreError
from tests.answering import Gate, answering, keys, kinds, outcome
from tests.conftest import PATIENT, AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.leaks import remove
from tests.proxy import Proxy
from tests.servers import Server
from tests.topologies import Cluster

#: Longer than a test lasts: where this is the `call_timeout`, a request does not end because of it.
NEVER = 3600


@pytest.fixture
def mortal(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own that keeps its data when it is killed."""
    config = {"appendonly": "yes", "appendfsync": "always"}
    with Server(engine, directory=tmp_path / "mortal", config=config) as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
async def many_threads() -> None:
    """Room for all blocking requests of a test: a loop has few threads by itself."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))


def connections(server: Server) -> int:
    return len(server.command("CLIENT", "LIST").splitlines()) - 1  # without the one that asks


def asking(app: Relevo, blocking: bool) -> Callable[[int, float], Awaitable[Any]]:
    """Requests of `a.b`: `ask(n, timeout)`, in a thread if they block."""
    me = app.service("me")

    def ask(n: int, timeout: float) -> Awaitable[Any]:
        if blocking:
            return asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=timeout)
        return me.arequest("a.b", {"n": n}, timeout=timeout)

    return ask


# --- how many at once


async def test_many_requests_at_once_use_no_more_connections_than_one(bus: Relevo, server: Server) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus, concurrency=400):
        first = asyncio.create_task(me.arequest("a.b", {"n": 0}, timeout=PATIENCE))
        await gate.reached(1)
        with_one, keys_with_one = connections(server), len(await keys(bus))
        asked = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=PATIENCE)) for n in range(1, 300)]
        await gate.reached(300)
        assert connections(server) <= with_one  # connections of an earlier test may still end
        assert len(await keys(bus)) <= keys_with_one + 2, "a request has no key of its own"
        gate.open()
        assert await asyncio.gather(first, *asked) == list(range(300))
        assert connections(server) <= with_one
    assert gate.runs == Counter(range(300))
    assert not [key for key in await keys(bus) if "ended" in key or "waiters" in key or "jobs" in key]


async def test_requests_sent_in_one_call_each_have_their_own_outcome(bus: Relevo) -> None:
    """Requests made while others are on their way to the server go together with the next call."""
    gate, closed = Gate(bus), Gate(bus, "a.closed")
    gate.open()

    @bus.service("a").action("fail")
    async def fail(n: int) -> None:
        raise ValueError(f"no {n}")

    me = bus.service("me")
    async with answering(bus, concurrency=500):
        await me.arequest("a.b")
        asked, wanted = [], []
        for n in range(10):
            asked += [
                me.arequest("a.b", {"n": n}, timeout=PATIENCE),
                me.arequest("a.nobody", {"n": n}, timeout=PATIENCE),
                me.arequest("a.fail", {"n": n}, timeout=PATIENCE),
                me.arequest("a.closed", {"n": n}, timeout=0.5),
                me.arequest("a.b", {"n": n, "odd": 1}, timeout=PATIENCE),
                me.arequest("a.b", {"n": n}, timeout=PATIENCE, priority=n, tenant=f"t{n % 3}", tier="free"),
                me.arequest("a.b", {"n": n}, timeout=PATIENCE, idempotency_key=f"k{n}"),
                asyncio.wait_for(me.arequest("a.closed", {"n": n}, timeout=PATIENCE), 0.5),
            ]
            wanted += ["answer", "NoResponders", "RemoteError", "RequestTimeout", "RemoteError", "answer", "answer"]
            wanted += ["TimeoutError"]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one).__name__ if isinstance(one, BaseException) else "answer" for one in found] == wanted
        for n in range(10):
            assert found[n * 8] == found[n * 8 + 5] == found[n * 8 + 6] == n
            assert f"no {n}" in str(found[n * 8 + 2])
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="nothing is left")
        await aeventually(lambda: len(closed.cancelled) == closed.runs.total(), what="no handler runs on")


async def test_requests_cancelled_before_they_were_sent_are_never_sent(bus_factory: AppFactory, proxy: Proxy) -> None:
    app, asker = bus_factory(), bus_factory(url=proxy.url)
    gate = Gate(app)
    gate.open()
    me = asker.service("me")
    async with answering(app):
        for _ in range(3):  # the server knows all scripts that a request needs
            await me.arequest("a.b", {"n": -1})
        proxy.hold_replies()  # the first is sent, the others wait for its acknowledgement
        asked = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=PATIENCE)) for n in range(5)]
        await aeventually(lambda: gate.runs[0])
        for one in asked[1:]:
            one.cancel()
        await asyncio.gather(*asked[1:], return_exceptions=True)
        proxy.heal()
        assert await asked[0] == 0
        assert await me.arequest("a.b", {"n": 9}, timeout=PATIENCE) == 9
    await asker.aclose()
    assert gate.runs == {-1: 3, 0: 1, 9: 1}


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_max_requests_bounds_the_requests_under_way(bus_factory: AppFactory, blocking: bool) -> None:
    app = bus_factory(max_requests=3)
    gate = Gate(app)
    ask = asking(app, blocking)
    async with answering(app):
        asked = [asyncio.ensure_future(ask(n, PATIENCE)) for n in range(10)]
        await gate.reached(3)
        with pytest.raises(RequestTimeout, match=r"a\.b was not sent: 3 requests of this process wait.*max_requests"):
            await ask(99, 0.2)
        assert gate.runs.total() == 3
        gate.open()
        assert await asyncio.gather(*asked) == list(range(10))
    assert 99 not in gate.runs


@pytest.mark.usefixtures("many_threads")
async def test_a_slot_is_free_again_however_a_request_ends(bus_factory: AppFactory) -> None:
    app = bus_factory(max_requests=2)
    gate = Gate(app)
    svc, me = app.service("a"), app.service("me")

    @svc.action("fail")
    async def fail() -> None:
        raise ValueError("no")

    @svc.action("give")
    async def give() -> int:
        return 7

    def ends() -> list[Callable[[], Awaitable[Any]]]:
        return [
            lambda: me.arequest("a.b", timeout=0.05),
            lambda: me.arequest("a.nobody"),
            lambda: me.arequest("a.fail"),
            lambda: me.arequest("a.give"),
            lambda: me.arequest("a.give", returns=str),
            lambda: me.arequest("a.give", idempotency_key="k"),
            lambda: asyncio.wait_for(me.arequest("a.b"), 0.02),
            lambda: asyncio.wait_for(me.arequest("a.give"), 0.001),
            lambda: asyncio.to_thread(me.request, "a.b", timeout=0.05),
            lambda: asyncio.to_thread(me.request, "a.nobody"),
            lambda: asyncio.to_thread(me.request, "a.fail"),
            lambda: asyncio.to_thread(me.request, "a.give", returns=str),
        ]

    async with answering(app):
        for end in ends():
            await asyncio.gather(end(), return_exceptions=True)
        await asyncio.gather(*(end() for _ in range(2) for end in ends()), return_exceptions=True)
        gate.open()
        for _ in range(2):  # both slots are free
            both = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=PATIENCE)) for n in (1, 2)]
            assert await asyncio.gather(*both) == [1, 2]
            threads = [asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=PATIENCE) for n in (1, 2)]
            assert await asyncio.gather(*threads) == [1, 2]
        assert app.engine.part(Bus).slots_here()._value == 2
        assert app.engine.part(Bus).slots._value == 2
        assert app.engine.client._here().inbox._waiting == {}


@pytest.mark.filterwarnings("ignore::relevo.errors.BlockingCallWarning")
@pytest.mark.parametrize("blocking", [False, True])
def test_a_service_that_requests_itself_without_room_for_the_answer_times_out(bus: Relevo, blocking: bool) -> None:
    """The only slot of the worker, or its blocked event loop, waits for an answer that only it can give."""
    svc, me = bus.service("a"), bus.service("me")

    @svc.action("outer")
    async def outer() -> str:
        try:
            return str(svc.request("a.inner", timeout=0.4) if blocking else await svc.arequest("a.inner", timeout=0.4))
        except RequestTimeout:
            return "no room"

    @svc.action("inner")
    async def inner() -> str:
        return "answer"

    with answering(bus, concurrency=10 if blocking else 1):
        assert me.request("a.outer", timeout=PATIENCE) == "no room"
        assert me.request("a.inner", timeout=PATIENCE) == "answer"


async def test_plain_functions_that_request_their_own_service_without_a_free_thread_time_out(bus: Relevo) -> None:
    """Every thread of the worker waits for an answer that only a thread of the worker can give."""
    svc = bus.service("a")
    both = threading.Barrier(2)

    @svc.action("outer")
    def outer(n: int) -> str:
        both.wait(PATIENCE)
        try:
            answer: str = svc.request("a.inner", timeout=0.4)
        except RequestTimeout:
            return "no room"
        else:
            return answer
        finally:
            both.wait(PATIENCE)  # a thread that is free before the other request times out would answer it

    @svc.action("inner")
    def inner() -> str:
        return "answer"

    me = bus.service("me")
    async with answering(bus, threads=2, queues=["a:actions"]):
        answers = await asyncio.gather(*(me.arequest("a.outer", {"n": n}, timeout=PATIENCE) for n in range(2)))
        assert answers == ["no room"] * 2
        assert await me.arequest("a.inner", timeout=PATIENCE) == "answer"


# --- threads, loops, forks


@pytest.mark.parametrize("round", range(3))
def test_the_first_requests_of_a_process_are_answered(bus_factory: AppFactory, round: int) -> None:
    """The connection for answers opens while the requests are on their way."""
    app, asker = bus_factory(), bus_factory()

    @app.service("a").action("b")
    async def same(n: int) -> int:
        return n

    ready = threading.Barrier(8)

    def ask(n: int) -> int:
        ready.wait(PATIENCE)
        return asker.service("me").request("a.b", {"n": n}, timeout=PATIENCE, returns=int)

    with answering(app), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == list(range(8))


def test_several_event_loops_request_at_once_and_in_turn(bus: Relevo) -> None:
    @bus.service("a").action("b")
    async def same(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    me = bus.service("me")

    async def ask(start: int) -> list[int]:
        return list(await asyncio.gather(*(me.arequest("a.b", {"n": start + n}, timeout=PATIENCE) for n in range(20))))

    with answering(bus):
        with ThreadPoolExecutor(4) as threads:
            for _ in range(2):
                found = threads.map(lambda start: asyncio.run(ask(start)), range(0, 400, 100))
                assert list(found) == [list(range(start, start + 20)) for start in range(0, 400, 100)]
        assert asyncio.run(ask(1_000)) == list(range(1_000, 1_020))
        assert me.request("a.b", {"n": 7}, timeout=PATIENCE) == 7


async def test_an_inbox_is_opened_anew_after_the_app_was_closed(bus: Relevo) -> None:
    gate = Gate(bus)
    gate.open()
    async with answering(bus):
        for n in range(3):
            assert await bus.service("me").arequest("a.b", {"n": n}, timeout=PATIENCE) == n
            assert await asyncio.to_thread(bus.service("me").request, "a.b", {"n": n}, timeout=PATIENCE) == n
            bus.close()


def _in_a_fork(work: Callable[[], None], directory: Path) -> None:
    """Run `work` in a forked child, which must not run the clean-up of the test."""
    child = os.fork()
    if not child:
        failed = 1
        try:
            work()
            failed = 0
        except BaseException:
            (directory / "error").write_text(traceback.format_exc())
        finally:
            os._exit(failed)
    eventually(lambda: os.waitpid(child, os.WNOHANG)[0], what="the fork ends")
    error = directory / "error"
    assert not error.exists(), error.read_text()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_requests_over_its_own_connections(bus_factory: AppFactory, tmp_path: Path) -> None:
    app, asker = bus_factory(), bus_factory()

    @app.service("a").action("b")
    async def tell(n: int) -> list[Any]:
        message = current_job().message
        assert message is not None
        return [n, message.id]

    me = asker.service("me")
    asked_by_child = tmp_path / "asked"

    def ask(start: int) -> list[str]:
        found = [me.request("a.b", {"n": n}, timeout=PATIENCE) for n in range(start, start + 20)]
        assert [n for n, _ in found] == list(range(start, start + 20))
        return [id for _, id in found]

    def in_child() -> None:
        asked = ask(100)

        async def on_a_loop() -> list[Any]:
            return [await me.arequest("a.b", {"n": n}, timeout=PATIENCE) for n in range(3)]

        assert [n for n, _ in asyncio.run(on_a_loop())] == [0, 1, 2]
        asked_by_child.write_text("\n".join(asked))

    with answering(app):
        ids = ask(0)
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(ask, 200)
            _in_a_fork(in_child, tmp_path)
            ids += beside.result()
        ids += ask(300) + asked_by_child.read_text().split("\n")
        assert len(set(ids)) == len(ids)


# Slots that the parent's requests hold are free in the child.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_all_its_slots(bus_factory: AppFactory, tmp_path: Path) -> None:
    app, asker = bus_factory(), bus_factory(max_requests=1)
    started, go = threading.Event(), threading.Event()

    @app.service("a").action("wait")
    def wait() -> None:
        started.set()
        go.wait(PATIENCE)

    @app.service("a").action("give")
    async def give() -> int:
        return 7

    me = asker.service("me")

    def in_child() -> None:
        assert me.request("a.give", timeout=PATIENCE) == 7

    with answering(app), ThreadPoolExecutor(1) as threads:
        held = threads.submit(me.request, "a.wait", timeout=PATIENCE)
        assert started.wait(PATIENCE)
        try:
            _in_a_fork(in_child, tmp_path)
        finally:
            go.set()
            held.result()


def test_connections_end_with_the_threads_and_loops_that_opened_them(bus: Relevo, server: Server) -> None:
    @bus.service("a").action("b")
    async def same(n: int) -> int:
        return n

    me = bus.service("me")

    async def ask() -> None:
        await asyncio.gather(*(me.arequest("a.b", {"n": n}, timeout=PATIENCE) for n in range(10)))

    with answering(bus):
        me.request("a.b", {"n": 1}, timeout=PATIENCE)
        before = connections(server)
        with ThreadPoolExecutor(20) as threads:
            answers = threads.map(lambda n: me.request("a.b", {"n": n}, timeout=PATIENCE), range(60))
            assert list(answers) == list(range(60))
            assert connections(server) <= before + 20
        for _ in range(3):
            asyncio.run(ask())
        eventually(lambda: connections(server) <= before, what="the connections are closed")


# --- broken connections, dead servers


@asynccontextmanager
async def behind_a_proxy(
    bus_factory: AppFactory, proxy: Proxy, **settings: Any
) -> AsyncIterator[tuple[Relevo, Relevo]]:
    """A worker with a good connection, and an app that makes requests through the proxy."""
    app, asker = bus_factory(), bus_factory(url=proxy.url, **settings)
    yield app, asker
    await asker.aclose()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_answers_given_while_the_connection_is_cut_arrive(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool
) -> None:
    async with behind_a_proxy(bus_factory, proxy) as (app, asker):
        gate = Gate(app)
        ask = asking(asker, blocking)
        async with answering(app):
            asked = [asyncio.ensure_future(ask(n, PATIENCE)) for n in range(8)]
            await gate.reached(8)
            proxy.reset_all()
            await app.engine.arun(
                app.engine.now_ms()
            )  # the server has seen the reset: it publishes nothing to that connection
            gate.open()  # answers are given while no connection listens
            assert await asyncio.gather(*asked) == list(range(8))
            assert await ask(99, PATIENCE) == 99
    assert set(gate.runs.values()) == {1}


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_requests_on_a_connection_that_is_cut_again_and_again_all_end(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool
) -> None:
    async with behind_a_proxy(bus_factory, proxy) as (app, asker):
        runs: Counter[int] = Counter()

        @app.service("a").action("b")
        async def work(n: int) -> int:
            runs[n] += 1
            await asyncio.sleep(0.02)
            return n

        ask = asking(asker, blocking)
        over = asyncio.Event()

        async def cut() -> None:
            while not over.is_set():
                proxy.reset_all()
                wanted = runs.total() + 16
                await aeventually(lambda: runs.total() >= wanted or over.is_set(), what="16 more requests began")

        async def ask_on(start: int) -> list[Any]:
            return [await outcome(ask(n, PATIENCE)) for n in range(start, start + 10)]

        async with answering(app):
            cutting = asyncio.create_task(cut())
            asked = asyncio.gather(*(ask_on(start) for start in range(0, 800, 100)))
            found = await asyncio.wait_for(asked, PATIENCE)
            over.set()
            await cutting
            await aeventually(lambda: app.queue("a:actions").stats().living == 0, what="nothing is left")
        outcomes = [one for each in found for one in each]
        assert set(kinds(outcomes)) <= {
            "answer",
            "RequestTimeout",
            "ConnectionLost",
            "ServerUnavailable",
            "OutcomeUnknown",
        }
        assert kinds(outcomes)["answer"] > 40, kinds(outcomes)


# The answer comes on another connection, so it may arrive before the acknowledgement. An answered request leaves no
# record: sent again, it would run as a new one.
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_request_whose_acknowledgement_is_lost_runs_once(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool
) -> None:
    async with behind_a_proxy(bus_factory, proxy) as (app, asker):
        gate = Gate(app)
        gate.open()
        ask = asking(asker, blocking)
        async with answering(app):
            await ask(0, PATIENCE)  # connections are open, scripts are known
            for n in range(1, 4):
                proxy.delay(0.1)  # as long as it takes to answer it
                proxy.drop_replies(1)
                await outcome(ask(n, PATIENCE))
                proxy.heal()
            await aeventually(lambda: app.queue("a:actions").stats().living == 0, what="nothing is left")
        assert max(gate.runs.values()) == 1, f"ran more than once: {gate.runs}"


async def test_a_request_over_a_connection_that_fell_silent_does_not_wait_for_its_timeout(
    bus_factory: AppFactory, proxy: Proxy
) -> None:
    async with behind_a_proxy(bus_factory, proxy, call_timeout=0.5, connect_timeout=0.5) as (app, asker):
        gate = Gate(app)
        me = asker.service("me")
        async with answering(app):
            while not gate.runs:  # on a slow machine such a short `call_timeout` may end the request before it runs
                asked = asyncio.create_task(outcome(me.arequest("a.b", {"n": 1}, timeout=NEVER)))
                await aeventually(lambda: gate.runs or asked.done())
            proxy.black_hole()
            gate.open()
            await asyncio.wait_for(asked, PATIENCE)
            errors = (BusError, StoreError)
            assert await aeventually(lambda: me.arequest("a.b", {"n": 9}, timeout=PATIENCE), errors=errors) == 9


# Sending and cancelling count towards the timeout of the request, whatever `call_timeout` and `connect_timeout` are.
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_request_to_a_server_that_does_not_answer_ends_at_its_own_timeout(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool, is_first: bool
) -> None:
    async with behind_a_proxy(bus_factory, proxy, call_timeout=NEVER, connect_timeout=NEVER) as (app, asker):
        gate = Gate(app)
        gate.open()
        ask = asking(asker, blocking)
        async with answering(app):
            if not is_first:
                assert await ask(1, PATIENCE) == 1
            proxy.black_hole_all()
            try:
                found = await asyncio.wait_for(outcome(ask(0, 0.3)), PATIENCE)
            finally:
                proxy.heal()
                proxy.reset_all()
        assert isinstance(found, RequestTimeout | StoreError)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_requests_to_a_server_that_is_restarted_all_end(mortal: Server, how: str) -> None:
    app = Relevo("nooble", url=mortal.url, env="test", prefix="b", lease=2)
    found: list[Any] = []

    @app.service("a").action("b")
    async def work(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    me = app.service("me")
    over = asyncio.Event()

    async def ask_on() -> None:
        while not over.is_set():
            found.append(await outcome(me.arequest("a.b", {"n": 1}, timeout=4)))
            await asyncio.sleep(0.01)

    async def answered(count: int) -> None:
        wanted = kinds(found)["answer"] + count
        await aeventually(lambda: kinds(found)["answer"] >= wanted, what=f"{count} more requests are answered")

    async with answering(app):
        asked = [asyncio.create_task(ask_on()) for _ in range(10)]
        await answered(30)
        await asyncio.to_thread(mortal.stop if how == "stopped" else mortal.kill)
        await asyncio.to_thread(mortal.start)
        await answered(30)
        over.set()
        await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
        ends = {"answer", "RequestTimeout", "ServerUnavailable", "OutcomeUnknown", "ConnectionLost", "NotNow"}
        assert set(kinds(found)) <= ends
        assert await me.arequest("a.b", {"n": -1}, timeout=PATIENCE) == -1
        await aeventually(lambda: app.queue("a:actions").stats().living == 0, what="nothing is left")
    assert -1 not in dict(mortal.keys()).values(), "a key without an expiry is left"
    app.close()


async def test_scripts_are_loaded_again_after_the_server_lost_them(mortal: Server) -> None:
    app = Relevo("nooble", url=mortal.url, env="test", prefix="b", **PATIENT)
    gate = Gate(app)
    gate.open()
    async with answering(app):
        for n in range(3):
            mortal.command("SCRIPT", "FLUSH")
            assert await app.service("me").arequest("a.b", {"n": n}, timeout=PATIENCE) == n
            assert await asyncio.to_thread(app.service("me").request, "a.b", {"n": n}, timeout=PATIENCE) == n
    app.close()


@pytest.mark.usefixtures("many_threads")
async def test_requests_with_tiny_timeouts_leave_nothing_behind(bus: Relevo) -> None:
    """They time out at any point, also between sending and the acknowledgement."""
    me = bus.service("me")
    for n in range(0, 200, 40):
        asked = []
        for i in range(n, n + 20):
            data, limit = {"text": "x" * (100_000 if i % 3 == 0 else 1)}, 1e-5 + i / 20_000
            asked.append(outcome(me.arequest("a.b", data, timeout=limit, wait=True)))
            asked.append(outcome(asyncio.to_thread(me.request, "a.b", data, timeout=limit, wait=True)))
        assert kinds(await asyncio.gather(*asked)) == {"RequestTimeout": 40}
    await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="all are cancelled")
    assert not [key for key in await keys(bus) if "carried" in key or "ended" in key or "waiters" in key]
    await bus.aclose()


def test_requests_whose_answers_were_lost_because_the_loop_did_not_read_them_end_at_once(
    engine: str, tmp_path: Path
) -> None:
    """The listener is disconnected with answers on their way; the requests then do not wait for their timeouts."""
    with Server(engine, directory=tmp_path / "impatient") as server:
        app, asker = (Relevo(name, url=server.url, env="test", prefix="b", **PATIENT) for name in ("app", "asker"))

        runs: list[int] = []
        go = threading.Event()

        @app.service("a").action("b")
        async def give() -> str:
            runs.append(1)
            await aeventually(go.is_set)
            return "x" * 100_000

        async def ask() -> Counter[str]:
            me = asker.service("me")
            asked = [asyncio.create_task(outcome(me.arequest("a.b", timeout=NEVER))) for _ in range(60)]
            await aeventually(lambda: len(runs) == 60)
            go.set()
            eventually(
                lambda: app.queue("a:actions").stats().living == 0, what="all are answered; this loop stands still"
            )
            assert server.command("CLIENT", "KILL", "TYPE", "pubsub") >= 1
            found = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE)
            assert len(await me.arequest("a.b", timeout=PATIENCE)) == 100_000, "the next one is answered"
            return kinds(found)

        with answering(app, concurrency=80):
            found = asyncio.run(ask())
        assert set(found) <= {"answer", "OutcomeUnknown"}
        asker.close()
        app.close()


# --- foreign messages and odd names


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("blocking", [False, True])
async def test_garbage_published_to_an_inbox_is_ignored(
    bus_factory: AppFactory, server: Server, blocking: bool
) -> None:
    """ID stands for a request that is under way. A newer version may publish what this one cannot read."""
    app, asker = bus_factory(), bus_factory("asker")
    gate = Gate(app)
    ask = asking(asker, blocking)
    async with answering(app):
        asked = [asyncio.ensure_future(ask(n, PATIENCE)) for n in range(3)]
        await gate.reached(3)
        running = (await app.queue("a:actions").ajobs(state="running"))[0].id
        (channel,) = server.command("PUBSUB", "CHANNELS", f"*{app.settings.prefix}*asker*inbox*")
        for garbage in (b"", b"x", b"\xff" * 40, b"0" * 20 + b'{"state":"moon"}', b"ID", b"ID{", b"ID\xff"):
            for _ in range(2):
                server.command("PUBLISH", channel, garbage.replace(b"ID", running.encode()))
        gate.open()
        assert await asyncio.gather(*asked) == [0, 1, 2]
        assert await ask(7, PATIENCE) == 7
    await asker.aclose()


# The name of an app is part of the channel of its inbox, and waiting inboxes are stored separated by spaces.
@pytest.mark.parametrize("name", ["my shop", "a\tb", "a:b", "é", "{x}", "a%b"])
async def test_an_app_may_have_any_name_that_is_not_refused(server: Server, name: str) -> None:
    prefix = f"b{uuid4().hex[:12]}"
    try:
        app = Relevo(name, url=server.url, env="test", prefix=prefix)
    except OptionError:
        return
    gate = Gate(app)
    gate.open()
    try:
        async with answering(app):
            assert await app.service("me").arequest("a.b", {"n": 7}, timeout=PATIENCE) == 7
            assert await asyncio.to_thread(app.service("me").request, "a.b", {"n": 8}, timeout=PATIENCE) == 8
    finally:
        app.close()
        remove(server, prefix)


# In a cluster PUBLISH counts only the listeners of the same node: by its count most answers would be undelivered.
@pytest.mark.slow
async def test_in_a_cluster_answers_from_every_node_arrive(engine: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", engine) as cluster:
        app = Relevo("nooble", url=cluster.url, env="test", prefix="b", **PATIENT)
        for n in range(6):
            Gate(app, f"s{n}.b").open()
        me = app.service("me")
        async with answering(app):
            asked = [outcome(me.arequest(f"s{n % 6}.b", {"n": n}, timeout=PATIENCE)) for n in range(60)]
            assert await asyncio.gather(*asked) == list(range(60))
            for n in range(6):
                assert await asyncio.to_thread(me.request, f"s{n}.b", {"n": n}, timeout=PATIENCE) == n
            with pytest.raises(NoResponders):
                await me.arequest("s0.c")
            totals = [app.queue(f"s{n}:actions").stats().totals for n in range(6)]
        app.close()
        assert sum(total["done"] for total in totals) == 66
        assert sum(total.get("unheard", 0) for total in totals) == 0
