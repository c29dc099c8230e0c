"""Requests under harm: many at once, from threads, loops and forks, on connections that break and servers that die."""

from __future__ import annotations

import asyncio
import os
import threading
import time
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
from relevo.errors import BusError, NoResponders, OptionError, RequestTimeout, StoreError
from relevo.store.plan import Call
from tests.answering import Gate, answering, kinds, outcome
from tests.conftest import AppFactory
from tests.eventually import aeventually, eventually
from tests.leaks import remove
from tests.proxy import Proxy
from tests.servers import Server
from tests.topologies import Cluster

#: Where handlers run, as `bus_services` has them.
EXECUTORS = ("on_loop", "in_thread", "in_process")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def mortal(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, that keeps its data when it dies."""
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


async def keys(app: Relevo) -> list[str]:
    """Keys under this app's prefix."""
    found: list[bytes] = await app.arun(Call([b"KEYS", f"*{app.settings.prefix}*".encode()]))
    return sorted(key.decode() for key in found)


def connections(server: Server) -> int:
    return len(server.command("CLIENT", "LIST").splitlines()) - 1  # without the one that asks


# --- how many at once


async def test_a_thousand_requests_at_once_use_no_more_connections_than_one(bus: Relevo, server: Server) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus, concurrency=1_000):
        first = asyncio.create_task(me.arequest("a.b", {"n": 0}))
        await gate.reached(1)
        with_one, keys_with_one = connections(server), len(await keys(bus))
        asked = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=60)) for n in range(1, 1_000)]
        await gate.reached(1_000)
        assert connections(server) <= with_one  # one of a test before may end meanwhile
        assert len(await keys(bus)) <= keys_with_one + 2, "and no key of its own for each"
        gate.open()
        assert await asyncio.gather(first, *asked) == list(range(1_000))
        assert connections(server) <= with_one  # one of a test before may end meanwhile
    assert gate.runs == Counter(range(1_000))
    assert not [key for key in await keys(bus) if "ended" in key or "waiters" in key or "jobs" in key]


async def test_requests_that_leave_together_end_each_in_its_own_way(bus: Relevo) -> None:
    """Those that are asked while others are on their way to the server go with the next call."""
    gate, closed = Gate(bus), Gate(bus, "a.closed")
    gate.open()

    @bus.service("a").action("fail")
    async def fail(n: int) -> None:
        raise ValueError(f"no {n}")

    me = bus.service("me")
    async with answering(bus, concurrency=500):
        await me.arequest("a.b")
        asked, wanted = [], []
        for n in range(50):
            asked += [
                me.arequest("a.b", {"n": n}, timeout=10),
                me.arequest("a.nobody", {"n": n}, timeout=10),
                me.arequest("a.fail", {"n": n}, timeout=10),
                me.arequest("a.closed", {"n": n}, timeout=2),
                me.arequest("a.b", {"n": n, "odd": 1}, timeout=10),
                me.arequest("a.b", {"n": n}, timeout=10, priority=n, tenant=f"t{n % 3}", tier="free"),
                me.arequest("a.b", {"n": n}, timeout=10, idempotency_key=f"k{n}"),
                asyncio.wait_for(me.arequest("a.closed", {"n": n}, timeout=10), 2),
            ]
            wanted += ["answer", "NoResponders", "RemoteError", "RequestTimeout", "RemoteError", "answer", "answer"]
            wanted += ["TimeoutError"]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one).__name__ if isinstance(one, BaseException) else "answer" for one in found] == wanted
        for n in range(50):
            assert found[n * 8] == found[n * 8 + 5] == found[n * 8 + 6] == n
            assert f"no {n}" in str(found[n * 8 + 2])
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="nothing is left")
        assert sorted(closed.cancelled) == sorted([*range(50), *range(50)])


async def test_requests_that_are_given_up_before_they_leave_are_never_sent(
    bus_factory: AppFactory, proxy: Proxy
) -> None:
    app, asker = bus_factory(), bus_factory(url=proxy.url)
    gate = Gate(app)
    gate.open()
    me = asker.service("me")
    async with answering(app):
        await me.arequest("a.b", {"n": -1})
        proxy.delay(0.5)  # the first is on its way, the others wait for its acknowledgement
        asked = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=5)) for n in range(5)]
        await aeventually(lambda: gate.runs[0])
        for one in asked[1:]:
            one.cancel()
        await asyncio.gather(*asked[1:], return_exceptions=True)
        assert await asked[0] == 0
        proxy.heal()
        assert await me.arequest("a.b", {"n": 9}, timeout=5) == 9
    await asker.aclose()
    assert gate.runs == {-1: 1, 0: 1, 9: 1}


async def test_no_more_requests_are_under_way_than_the_setting_says(bus_factory: AppFactory) -> None:
    app = bus_factory(max_requests=3)
    gate = Gate(app)
    me = app.service("me")
    async with answering(app):
        asked = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=20)) for n in range(10)]
        await gate.reached(3)
        with pytest.raises(RequestTimeout, match=r"a\.b was not sent: 3 requests of this process wait.*max_requests"):
            await me.arequest("a.b", {"n": 99}, timeout=0.2)
        assert gate.runs.total() == 3
        gate.open()
        assert await asyncio.gather(*asked) == list(range(10))
    assert 99 not in gate.runs


async def test_the_same_bound_holds_for_threads(bus_factory: AppFactory) -> None:
    app = bus_factory(max_requests=3)
    gate = Gate(app)
    me = app.service("me")
    async with answering(app):
        with ThreadPoolExecutor(10) as threads:
            asked = [threads.submit(me.request, "a.b", {"n": n}, timeout=20) for n in range(9)]
            await gate.reached(3)
            with pytest.raises(RequestTimeout, match=r"a\.b was not sent: 3 requests"):
                await asyncio.to_thread(me.request, "a.b", {"n": 99}, timeout=0.2)
            assert gate.runs.total() == 3
            gate.open()
            answers = await asyncio.gather(*map(asyncio.wrap_future, asked))
    assert sorted(answers) == list(range(9))


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
        for _ in range(3):
            for end in ends():
                await asyncio.gather(end(), return_exceptions=True)
        await asyncio.gather(*(end() for _ in range(5) for end in ends()), return_exceptions=True)
        gate.open()
        for _ in range(2):  # both are there
            both = [asyncio.create_task(me.arequest("a.b", {"n": n}, timeout=5)) for n in (1, 2)]
            assert await asyncio.gather(*both) == [1, 2]
            threads = [asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=5) for n in (1, 2)]
            assert await asyncio.gather(*threads) == [1, 2]
        assert app.bus.slots_here()._value == 2
        assert app.bus.slots._value == 2
        assert app.client._here().inbox._waiting == {}


async def test_a_service_that_asks_itself_without_room_for_it_runs_into_its_time(bus: Relevo) -> None:
    svc = bus.service("a")

    @svc.action("outer")
    async def outer() -> str:
        try:
            answer: str = await svc.arequest("a.inner", timeout=0.3)
        except RequestTimeout:
            return "no room"
        return answer

    @svc.action("inner")
    async def inner() -> str:
        return "answer"

    me = bus.service("me")
    async with answering(bus, concurrency=1):
        began = time.monotonic()
        assert await me.arequest("a.outer", timeout=10) == "no room"
        assert time.monotonic() - began < 8
        assert await me.arequest("a.inner", timeout=10) == "answer", "and it goes on"


async def test_plain_functions_that_ask_their_own_service_run_into_their_time(bus: Relevo) -> None:
    """Every thread of the worker waits for an answer that only a thread of the worker could give."""
    svc = bus.service("a")
    both = threading.Barrier(2)

    @svc.action("outer")
    def outer(n: int) -> str:
        both.wait(10)
        try:
            answer: str = svc.request("a.inner", timeout=0.4)
        except RequestTimeout:
            return "no room"
        else:
            return answer
        finally:
            both.wait(10)  # a thread that is free a moment before the other one's time is up would answer it

    @svc.action("inner")
    def inner() -> str:
        return "answer"

    me = bus.service("me")
    async with answering(bus, threads=2):
        began = time.monotonic()
        answers = await asyncio.gather(*(me.arequest("a.outer", {"n": n}, timeout=10) for n in range(2)))
        assert answers == ["no room"] * 2
        assert time.monotonic() - began < 8
        assert await me.arequest("a.inner", timeout=10) == "answer"


def test_a_blocking_request_on_the_workers_own_loop_runs_into_its_time(bus: Relevo) -> None:
    """A mistake: nothing on that loop moves until it is answered, least of all the answer."""
    svc = bus.service("a")

    @svc.action("outer")
    async def outer() -> str:
        try:
            return str(svc.request("a.inner", timeout=0.5))
        except RequestTimeout:
            return "no room"

    @svc.action("inner")
    async def inner() -> str:
        return "answer"

    me = bus.service("me")
    with answering(bus):
        began = time.monotonic()
        assert me.request("a.outer", timeout=10) == "no room"
        assert time.monotonic() - began < 8
        assert me.request("a.inner", timeout=10) == "answer", "and it goes on"


# --- threads, loops, forks


def test_fifty_threads_ask_at_once(bus: Relevo, server: Server) -> None:
    @bus.service("a").action("b")
    async def double(n: int) -> int:
        await asyncio.sleep(0.01)
        return n * 2

    me = bus.service("me")
    ready = threading.Barrier(50)

    def ask(start: int) -> list[int]:
        ready.wait(20)
        return [me.request("a.b", {"n": n}, timeout=20) for n in range(start, start + 10)]

    with answering(bus):
        with ThreadPoolExecutor(50) as threads:
            answers = list(threads.map(ask, range(0, 5_000, 100)))
        assert answers == [[n * 2 for n in range(start, start + 10)] for start in range(0, 5_000, 100)]
    assert bus.client.late_replies == 0


@pytest.mark.parametrize("round", range(5))
def test_the_first_requests_of_a_process_are_answered(bus_factory: AppFactory, round: int) -> None:
    """The connection for answers opens while they are on their way."""
    app, asker = bus_factory(), bus_factory()

    @app.service("a").action("b")
    async def same(n: int) -> int:
        return n

    ready = threading.Barrier(8)

    def ask(n: int) -> int:
        ready.wait(20)
        return asker.service("me").request("a.b", {"n": n}, timeout=5, returns=int)

    with answering(app), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, range(8))) == list(range(8))


def test_several_event_loops_ask_at_once_and_one_after_the_other(bus: Relevo) -> None:
    @bus.service("a").action("b")
    async def same(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    me = bus.service("me")

    async def ask(start: int) -> list[int]:
        return list(await asyncio.gather(*(me.arequest("a.b", {"n": start + n}, timeout=20) for n in range(20))))

    with answering(bus):
        with ThreadPoolExecutor(4) as threads:
            for _ in range(3):
                found = threads.map(lambda start: asyncio.run(ask(start)), range(0, 400, 100))
                assert list(found) == [list(range(start, start + 20)) for start in range(0, 400, 100)]
        assert asyncio.run(ask(1_000)) == list(range(1_000, 1_020))
        assert me.request("a.b", {"n": 7}, timeout=5) == 7


async def test_an_inbox_is_opened_anew_after_the_app_was_closed(bus: Relevo) -> None:
    gate = Gate(bus)
    gate.open()
    async with answering(bus):
        for n in range(3):
            assert await bus.service("me").arequest("a.b", {"n": n}, timeout=5) == n
            assert await asyncio.to_thread(bus.service("me").request, "a.b", {"n": n}, timeout=5) == n
            bus.close()


def _in_a_fork(work: Callable[[], None], directory: Path) -> None:
    """Do it in a forked child, which must not run what belongs to the test."""
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
    code = eventually(
        lambda: (os.waitpid(child, os.WNOHANG) or (0, 0))[0] and [child], timeout=20, what="the fork ends"
    )
    assert code
    error = directory / "error"
    assert not error.exists(), error.read_text()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_asks_on_connections_of_its_own(bus_factory: AppFactory, tmp_path: Path) -> None:
    app, asker = bus_factory(), bus_factory()

    @app.service("a").action("b")
    async def tell(n: int) -> list[Any]:
        message = current_job().message
        assert message is not None
        return [n, message.id]

    me = asker.service("me")
    told = tmp_path / "told"

    def ask(start: int) -> list[str]:
        found = [me.request("a.b", {"n": n}, timeout=5) for n in range(start, start + 20)]
        assert [n for n, _ in found] == list(range(start, start + 20))
        return [id for _, id in found]

    def in_child() -> None:
        asked = ask(100)

        async def on_a_loop() -> list[Any]:
            return [await me.arequest("a.b", {"n": n}, timeout=5) for n in range(3)]

        assert [n for n, _ in asyncio.run(on_a_loop())] == [0, 1, 2]
        told.write_text("\n".join(asked))

    with answering(app):
        ids = ask(0)
        with ThreadPoolExecutor(1) as threads:
            meanwhile = threads.submit(ask, 200)
            _in_a_fork(in_child, tmp_path)
            ids += meanwhile.result()
        ids += ask(300) + told.read_text().split("\n")
        assert len(set(ids)) == len(ids)


# Those that requests of the parent hold are not the child's.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_all_its_slots(bus_factory: AppFactory, tmp_path: Path) -> None:
    app, asker = bus_factory(), bus_factory(max_requests=1)
    started, go = threading.Event(), threading.Event()

    @app.service("a").action("wait")
    def wait() -> None:
        started.set()
        go.wait(20)

    @app.service("a").action("give")
    async def give() -> int:
        return 7

    me = asker.service("me")

    def in_child() -> None:
        assert me.request("a.give", timeout=2) == 7

    with answering(app), ThreadPoolExecutor(1) as threads:
        held = threads.submit(me.request, "a.wait", timeout=20)
        assert started.wait(10)
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
        await asyncio.gather(*(me.arequest("a.b", {"n": n}, timeout=10) for n in range(10)))

    with answering(bus):
        me.request("a.b", {"n": 1}, timeout=10)
        before = connections(server)
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(lambda n: me.request("a.b", {"n": n}, timeout=10), range(200)))
            assert connections(server) <= before + 20
        for _ in range(5):
            asyncio.run(ask())
        eventually(lambda: connections(server) <= before, what="the connections are closed")


# --- connections that break, servers that die


@asynccontextmanager
async def behind_a_proxy(
    bus_factory: AppFactory, proxy: Proxy, **settings: Any
) -> AsyncIterator[tuple[Relevo, Relevo]]:
    """A worker that is well connected, and who asks from behind a proxy."""
    app, asker = bus_factory(), bus_factory(url=proxy.url, **settings)
    yield app, asker
    await asker.aclose()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.usefixtures("many_threads")
async def test_answers_arrive_although_the_connection_was_cut_meanwhile(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool
) -> None:
    async with behind_a_proxy(bus_factory, proxy) as (app, asker):
        gate = Gate(app)
        me = asker.service("me")

        async def ask(n: int) -> Any:
            if blocking:
                return await asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=20)
            return await me.arequest("a.b", {"n": n}, timeout=20)

        async with answering(app):
            asked = [asyncio.create_task(ask(n)) for n in range(8)]
            await gate.reached(8)
            proxy.reset_all()
            await app.arun(app.now_ms())  # the server has noticed: it tells nothing to a connection that is gone
            gate.open()  # now: while nobody listens
            assert await asyncio.gather(*asked) == list(range(8))
            assert await ask(99) == 99
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

        me = asker.service("me")
        over = asyncio.Event()

        async def cut() -> None:
            while not over.is_set():
                proxy.reset_all()
                await asyncio.sleep(0.05)

        async def ask(n: int) -> Any:
            if blocking:
                return await outcome(asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=5))
            return await outcome(me.arequest("a.b", {"n": n}, timeout=5))

        async def ask_on(start: int) -> list[Any]:
            return [await ask(n) for n in range(start, start + 10)]

        async with answering(app):
            cutting = asyncio.create_task(cut())
            found = await asyncio.wait_for(asyncio.gather(*(ask_on(start) for start in range(0, 800, 100))), 60)
            over.set()
            await cutting
            await aeventually(lambda: app.queue("a:actions").stats().living == 0, what="nothing is left")
        outcomes = [one for each in found for one in each]
        print(kinds(outcomes), Counter(runs.values()))
        assert set(kinds(outcomes)) <= {"answer", "RequestTimeout", "ConnectionLost", "ServerUnavailable"}
        assert kinds(outcomes)["answer"] > 60


# The answer comes on a connection of its own, so it may be there before the sender knows that it has sent. Nothing is
# left of a request that was answered: sent again, it would be taken for a new one.
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_request_whose_acknowledgement_is_lost_runs_once(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool
) -> None:
    async with behind_a_proxy(bus_factory, proxy) as (app, asker):
        gate = Gate(app)
        gate.open()
        me = asker.service("me")

        def ask(n: int) -> Any:
            if blocking:
                return me.request("a.b", {"n": n}, timeout=5)
            return asyncio.run_coroutine_threadsafe(me.arequest("a.b", {"n": n}, timeout=5), loop).result(20)

        loop = asyncio.get_running_loop()

        def repeatedly() -> None:
            ask(0)  # connections are open, scripts are known
            for n in range(1, 6):
                proxy.delay(0.1)  # as long as it takes to answer it
                proxy.drop_replies(1)
                try:
                    ask(n)
                except (BusError, StoreError):
                    pass
                proxy.heal()

        async with answering(app):
            await asyncio.to_thread(repeatedly)
            await aeventually(lambda: app.queue("a:actions").stats().living == 0, what="nothing is left")
        assert max(gate.runs.values()) == 1, f"ran more than once: {gate.runs}"


async def test_who_asks_over_a_connection_that_fell_silent_gets_an_end_in_time(
    bus_factory: AppFactory, proxy: Proxy
) -> None:
    async with behind_a_proxy(bus_factory, proxy, call_timeout=0.5, connect_timeout=0.5) as (app, asker):
        gate = Gate(app)
        me = asker.service("me")
        async with answering(app):
            asked = [asyncio.create_task(outcome(me.arequest("a.b", {"n": n}, timeout=2))) for n in range(5)]
            await gate.reached(5)
            proxy.black_hole()
            gate.open()
            began = time.monotonic()
            found = await asyncio.wait_for(asyncio.gather(*asked), 20)
            assert time.monotonic() - began < 10
            assert set(kinds(found)) <= {"answer", "RequestTimeout"}
            await aeventually(lambda: outcome(me.arequest("a.b", {"n": 9}, timeout=2)), timeout=10)


# Sending it and cancelling it after that take part of its time, too, whatever `call_timeout` and `connect_timeout` say.
@pytest.mark.parametrize("blocking", [False, True])
async def test_a_request_to_a_server_that_does_not_answer_ends_in_its_own_time(
    bus_factory: AppFactory, proxy: Proxy, blocking: bool
) -> None:
    settings = {"call_timeout": 30, "connect_timeout": 30}  # for so long it would be waited for otherwise
    async with behind_a_proxy(bus_factory, proxy, **settings) as (app, asker):
        gate = Gate(app)
        gate.open()
        me = asker.service("me")
        async with answering(app):
            assert await me.arequest("a.b", {"n": 1}, timeout=20) == 1
            assert await asyncio.to_thread(me.request, "a.b", {"n": 2}, timeout=20) == 2
            proxy.black_hole_all()
            began = time.monotonic()
            asked = (
                asyncio.to_thread(me.request, "a.b", {"n": 3}, timeout=0.5)
                if blocking
                else me.arequest("a.b", timeout=0.5)
            )
            found = await outcome(asked)
            took = time.monotonic() - began
            proxy.heal()
        assert isinstance(found, RequestTimeout | StoreError)
        assert took < 10, f"half a second took {took:.1f} s"


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_requests_to_a_server_that_is_restarted_all_end(mortal: Server, how: str) -> None:
    """And it goes on working after that."""
    app = Relevo("nooble", url=mortal.url, env="test", prefix="b", lease=2)
    runs: Counter[int] = Counter()

    @app.service("a").action("b")
    async def work(n: int) -> int:
        runs[n] += 1
        await asyncio.sleep(0.05)
        return n

    me = app.service("me")
    over = asyncio.Event()

    async def ask_on(start: int) -> list[Any]:
        found = []
        for n in range(start, start + 1_000):
            if over.is_set():
                break
            found.append(await outcome(me.arequest("a.b", {"n": n}, timeout=4)))
            await asyncio.sleep(0.01)
        return found

    async with answering(app):
        asked = [asyncio.create_task(ask_on(start)) for start in range(0, 20_000, 1_000)]
        for _ in range(2):
            before = runs.total()
            await aeventually(lambda: runs.total() > before + 40, what="requests are answered")
            await asyncio.to_thread(mortal.stop if how == "stopped" else mortal.kill)
            await asyncio.to_thread(mortal.start)
        before = runs.total()
        await aeventually(lambda: runs.total() > before + 40, what="requests are answered after the restarts")
        over.set()
        outcomes = [one for each in await asyncio.wait_for(asyncio.gather(*asked), 20) for one in each]
        print(kinds(outcomes))
        assert kinds(outcomes)["answer"] > 100
        assert set(kinds(outcomes)) <= {"answer", "RequestTimeout", "ServerUnavailable", "ConnectionLost", "NotNow"}
        assert await me.arequest("a.b", {"n": -1}, timeout=5) == -1
        await aeventually(lambda: app.queue("a:actions").stats().living == 0, what="nothing is left")
    assert -1 not in dict(mortal.keys()).values(), "nothing without an end"
    app.close()


async def test_a_server_that_forgets_its_scripts_is_told_them_again(mortal: Server) -> None:
    app = Relevo("nooble", url=mortal.url, env="test", prefix="b")
    gate = Gate(app)
    gate.open()
    async with answering(app):
        for n in range(20):
            mortal.command("SCRIPT", "FLUSH")
            assert await app.service("me").arequest("a.b", {"n": n}, timeout=5) == n
            assert await asyncio.to_thread(app.service("me").request, "a.b", {"n": n}, timeout=5) == n
    app.close()


# A failover to an empty replica, or no persistence: until workers say again that they serve, there is nobody to ask.
async def test_a_server_that_lost_its_memory_knows_who_serves_soon_after(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path / "forgetful") as server:
        app = Relevo("nooble", url=server.url, env="test", prefix="b", lease=2)
        gate = Gate(app)
        gate.open()
        async with answering(app):
            assert await app.service("me").arequest("a.b", timeout=5) == 0
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await aeventually(
                lambda: app.service("me").arequest("a.b", {"n": 1}, timeout=2),
                timeout=4,
                errors=(NoResponders, StoreError, RequestTimeout),
                what="somebody serves it",
            )
        app.close()


async def test_the_first_request_of_a_process_to_a_server_that_does_not_answer_ends_in_its_own_time(
    bus_factory: AppFactory, proxy: Proxy
) -> None:
    proxy.black_hole_all()
    asker = bus_factory(url=proxy.url, call_timeout=30, connect_timeout=30)
    began = time.monotonic()
    assert isinstance(await outcome(asker.service("me").arequest("a.b", timeout=0.5)), RequestTimeout | StoreError)
    assert time.monotonic() - began < 10
    began = time.monotonic()
    asked = asyncio.to_thread(asker.service("me").request, "a.b", timeout=0.5)
    assert isinstance(await outcome(asked), RequestTimeout | StoreError)
    assert time.monotonic() - began < 10
    proxy.heal()
    await asker.aclose()


@pytest.mark.usefixtures("many_threads")
async def test_requests_with_hardly_any_time_leave_nothing_behind(bus: Relevo) -> None:
    """Their time ends anywhere on the way, also between sending them and knowing that they were sent."""
    me = bus.service("me")
    for n in range(0, 200, 20):
        asked = []
        for i in range(n, n + 20):
            data, limit = {"text": "x" * (100_000 if i % 3 == 0 else 1)}, 1e-5 + i / 20_000
            asked.append(outcome(me.arequest("a.b", data, timeout=limit, wait=True)))
            asked.append(outcome(asyncio.to_thread(me.request, "a.b", data, timeout=limit, wait=True)))
        assert kinds(await asyncio.gather(*asked)) == {"RequestTimeout": 40}
    await aeventually(lambda: bus.queue("a:actions").stats().living == 0, what="all are cancelled: nobody else would")
    assert not [key for key in await keys(bus) if "carried" in key or "ended" in key or "waiters" in key]
    await bus.aclose()


def test_who_does_not_read_its_answers_loses_some_and_waits_for_none(engine: str, tmp_path: Path) -> None:
    """The server hangs up on a listener that does not read, and the answers are gone. Who asked is told so at once."""
    config = {"client-output-buffer-limit": "pubsub 2mb 1mb 1"}
    with Server(engine, directory=tmp_path / "impatient", config=config) as server:
        app, asker = (Relevo(name, url=server.url, env="test", prefix="b") for name in ("app", "asker"))

        @app.service("a").action("b")
        async def give() -> str:
            return "x" * 500_000

        async def ask() -> Counter[str]:
            me = asker.service("me")
            asked = [asyncio.create_task(outcome(me.arequest("a.b", timeout=20))) for _ in range(60)]
            await asyncio.sleep(0.02)
            time.sleep(0.7)  # the loop stands still
            found = await asyncio.wait_for(asyncio.gather(*asked), 10)
            assert len(await me.arequest("a.b", timeout=5)) == 500_000, "and the next one is answered"
            return kinds(found)

        with answering(app):
            found = asyncio.run(ask())
        assert set(found) <= {"answer", "RequestTimeout"}
        asker.close()
        app.close()


# --- what others may do to it


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize(
    "garbage",
    [b"", b"x", b"\xff" * 40, b"0" * 20 + b'{"state":"moon"}', b"ID", b"ID{", b"ID\xff"],
    ids=["nothing", "short", "no text", "unknown state", "no record", "half a record", "no JSON"],
)
async def test_what_a_stranger_says_to_an_inbox_disturbs_nobody(
    bus_factory: AppFactory, server: Server, blocking: bool, garbage: bytes
) -> None:
    """ID: of a request that is under way. Also a newer version may say what this one cannot read."""
    app, asker = bus_factory(), bus_factory("asker")
    gate = Gate(app)
    me = asker.service("me")

    async def ask(n: int) -> Any:
        if blocking:
            return await outcome(asyncio.to_thread(me.request, "a.b", {"n": n}, timeout=2))
        return await outcome(me.arequest("a.b", {"n": n}, timeout=2))

    async with answering(app):
        asked = [asyncio.create_task(ask(n)) for n in range(3)]
        await gate.reached(3)
        running = (await app.queue("a:actions").ajobs(state="running"))[0].id
        (channel,) = server.command("PUBSUB", "CHANNELS", f"*{app.settings.prefix}*asker*inbox*")
        for _ in range(2):
            server.command("PUBLISH", channel, garbage.replace(b"ID", running.encode()))
        gate.open()
        assert await asyncio.gather(*asked) == [0, 1, 2]
        assert await ask(7) == 7
    await asker.aclose()


# The name of an app is part of the channel of its inbox, and who waits is noted as channels parted by spaces.
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
            assert await app.service("me").arequest("a.b", {"n": 7}, timeout=1) == 7
            assert await asyncio.to_thread(app.service("me").request, "a.b", {"n": 8}, timeout=1) == 8
    finally:
        app.close()
        remove(server, prefix)


# In a cluster PUBLISH counts only those who listen at the same node: by its count most answers would be unheard.
@pytest.mark.slow
async def test_in_a_cluster_answers_are_heard_whatever_node_they_come_from(engine: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", engine) as cluster:
        app = Relevo("nooble", url=cluster.url, env="test", prefix="b")
        for n in range(6):
            Gate(app, f"s{n}.b").open()
        me = app.service("me")
        async with answering(app):
            asked = [outcome(me.arequest(f"s{n % 6}.b", {"n": n}, timeout=10)) for n in range(60)]
            assert await asyncio.gather(*asked) == list(range(60))
            for n in range(6):
                assert await asyncio.to_thread(me.request, f"s{n}.b", {"n": n}, timeout=5) == n
            with pytest.raises(NoResponders):
                await me.arequest("s0.c")
            totals = [app.queue(f"s{n}:actions").stats().totals for n in range(6)]
        app.close()
        assert sum(total["done"] for total in totals) == 66
        assert sum(total.get("unheard", 0) for total in totals) == 0
