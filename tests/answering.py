"""For tests of the bus: workers that serve, actions that wait for the test, outcomes of requests, keys of a bus."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from relevo import Relevo
from relevo.errors import BusError, RequestTimeout, StoreError
from relevo.store.plan import Call
from relevo.text.names import is_bus_name
from relevo.worker import Worker
from tests.eventually import PATIENCE, aeventually
from tests.working import working


class answering(working):
    """A worker that serves, for as long as the block lasts; used as `working` is."""

    async def __aenter__(self) -> Worker:
        worker = await super().__aenter__()
        await aeventually(lambda: self._is_known(worker), what="the worker has announced its services")
        return worker

    async def _is_known(self, worker: Worker) -> bool:
        for queue in worker.queues:
            key = self._app.engine.keys_of(queue).key("instances")
            if is_bus_name(queue) and await self._app.engine.arun(Call([b"ZSCORE", key, worker.id])) is None:
                return False
        return True


class Gate:
    """An action that blocks until the test opens the gate, and counts its runs."""

    def __init__(self, app: Relevo, type: str = "a.b", **options: Any) -> None:
        self.runs: Counter[int] = Counter()
        self.cancelled: list[int] = []
        self._open = asyncio.Event()
        service, _, action = type.partition(".")

        @app.service(service).action(action, **options)
        async def wait(n: int = 0) -> int:
            self.runs[n] += 1
            try:
                await self._open.wait()
            except asyncio.CancelledError:
                self.cancelled.append(n)
                raise
            return n

    async def reached(self, count: int) -> None:
        await aeventually(lambda: self.runs.total() >= count, what=f"{count} requests have begun")

    def open(self) -> None:
        self._open.set()


async def outcome(asked: Awaitable[Any]) -> Any:
    """The answer of a request, or its error."""
    try:
        return await asked
    except (BusError, StoreError) as error:
        return error


async def times_out(ask: Callable[[float], Awaitable[Any]], *, once: Callable[[], object]) -> None:
    """Ask with a short timeout until a request timed out after `once` held, each time with a longer one.

    On a machine that stood still, a short timeout may pass before the request has reached its handler.
    """
    timeout = 0.2
    while timeout < PATIENCE:
        found = await outcome(ask(timeout))
        assert isinstance(found, RequestTimeout), found
        if once():
            return
        timeout *= 3
    raise AssertionError("no request got as far as the test needs before it timed out")


async def keys(app: Relevo) -> list[str]:
    """All keys under the app's prefix."""
    found: list[bytes] = await app.engine.arun(Call([b"KEYS", f"*{app.settings.prefix}*".encode()]))
    return sorted(key.decode() for key in found)


def kinds(outcomes: list[Any]) -> Counter[str]:
    return Counter(type(one).__name__ if isinstance(one, Exception) else "answer" for one in outcomes)
