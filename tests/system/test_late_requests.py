"""The first request of a caller is held by the network and arrives after the job that its repetition made has ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from relevo import Relevo
from tests.answering import answering
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.proxy import Proxy
from tests.servers import Server

runs: Counter[str] = Counter()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


def handlers(app: Relevo) -> None:
    """The same for both sides; nothing is left of what they do."""
    runs.clear()

    @app.task(name="work", result_ttl=0)
    async def work(what: str) -> None:
        runs[what] += 1

    @app.service("a").action("b")
    async def act(what: str) -> str:
        runs[what] += 1
        return what


Caller = Callable[[Relevo, str], Any]


def enqueue(app: Relevo, what: str) -> Any:
    return app.tasks["work"].enqueue(what)


def enqueue_many(app: Relevo, what: str) -> Any:
    return app.tasks["work"].enqueue_many([((what,), {}), ((what + " too",), {})])


def enqueue_tenant(app: Relevo, what: str) -> Any:
    return app.tasks["work"].using(tenant="t").enqueue(what)


def request(app: Relevo, what: str) -> Any:
    assert app.service("me").request("a.b", {"what": what}, timeout=PATIENCE) == what


def request_by_name(app: Relevo, what: str) -> Any:
    assert app.service("me").request("a.b", {"what": what}, timeout=PATIENCE, idempotency_key=what) == what


def send(app: Relevo, what: str) -> Any:
    app.service("me").send("a.b", {"what": what})


async def arequest(app: Relevo, what: str) -> Any:
    assert await app.service("me").arequest("a.b", {"what": what}, timeout=PATIENCE) == what


async def asend(app: Relevo, what: str) -> Any:
    await app.service("me").asend("a.b", {"what": what})


async def aenqueue(app: Relevo, what: str) -> Any:
    await app.tasks["work"].aenqueue(what)


ALL = [
    enqueue,
    enqueue_many,
    enqueue_tenant,
    request,
    request_by_name,
    send,
    arequest,
    asend,
    aenqueue,
]


@pytest.mark.parametrize("call", ALL)
async def test_a_request_that_arrives_after_its_job_has_ended_runs_nothing(
    bus_factory: AppFactory, proxy: Proxy, server: Server, call: Caller
) -> None:
    app, caller = bus_factory(), bus_factory(url=proxy.url, call_timeout="1s")
    for one in (app, caller):
        handlers(one)
    with ThreadPoolExecutor(1) as thread:

        def make(what: str) -> Awaitable[Any]:
            if asyncio.iscoroutinefunction(call):
                return cast("Awaitable[Any]", call(caller, what))
            return asyncio.get_running_loop().run_in_executor(thread, call, caller, what)

        async with answering(app):
            await make("first")  # connections are open, scripts are known
            await aeventually(lambda: runs["first"] == 1)
            proxy.hold_requests()
            await make("held")
            await aeventually(lambda: runs["held"] == 1)
            await aeventually(lambda: idle(app), what="it has ended")
            seen = late(server)
            proxy.let_requests_go()
            await aeventually(lambda: late(server) > seen, what="the first request reaches the server and is refused")
            await aeventually(lambda: idle(app))
    assert set(runs.values()) == {1}, runs
    await caller.aclose()


def idle(app: Relevo) -> bool:
    return all(app.queue(name).stats().living == 0 for name in ("default", "a:actions"))


def late(server: Server) -> int:
    """How many calls the server refused as late."""
    stats: Any = server.command("INFO", "errorstats")
    return int(stats["errorstat_LATE"]["count"]) if "errorstat_LATE" in stats else 0
