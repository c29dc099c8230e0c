"""Workers inside tests whose services can be asked, actions that wait for the test, and what becomes of requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

from relevo import Relevo
from relevo.errors import BusError, StoreError
from relevo.model.names import is_bus_name
from relevo.store.plan import Call
from relevo.worker import Worker
from tests.eventually import aeventually
from tests.working import working


class answering(working):
    """A worker that serves, for as long as the block lasts; used as `working` is."""

    async def __aenter__(self) -> Worker:
        worker = await super().__aenter__()
        await aeventually(lambda: self._is_known(worker), what="the worker is known to serve")
        return worker

    async def _is_known(self, worker: Worker) -> bool:
        for queue in worker.queues:
            key = self._app.keys_of(queue).key("instances")
            if is_bus_name(queue) and await self._app.arun(Call([b"ZSCORE", key, worker.id])) is None:
                return False
        return True


class Gate:
    """An action that waits until the test lets it go, and counts its runs."""

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
    """What became of a request: its answer, or the error."""
    try:
        return await asked
    except (BusError, StoreError) as error:
        return error


def kinds(outcomes: list[Any]) -> Counter[str]:
    return Counter(type(one).__name__ if isinstance(one, Exception) else "answer" for one in outcomes)
