"""Workers inside tests: one that drains a queue, and one that works as long as a `with` block lasts."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Any

from relevo import Relevo
from relevo.worker import Worker
from tests.eventually import PATIENCE


async def drain(app: Relevo, **options: Any) -> Worker:
    """Run what can run now, and give the worker that did; what is scheduled for later stays."""
    worker = Worker(app, burst=True, **options)
    await asyncio.wait_for(worker.run(), PATIENCE)
    await app.aclose()
    return worker


def drained(app: Relevo, **options: Any) -> Worker:
    """`drain` for plain code."""
    return asyncio.run(drain(app, **options))


class working:
    """A worker, for as long as the block lasts.

    async with working(app):    # on the test's own event loop
        ...
    with working(app):          # in a thread of its own, for tests of the blocking calls
        ...
    """

    def __init__(self, app: Relevo, **options: Any) -> None:
        self._app = app
        self._options = options

    async def __aenter__(self) -> Worker:
        self._worker = Worker(self._app, **self._options)
        self._run = asyncio.create_task(self._worker.run())
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.stop(fast=True)
        await asyncio.wait_for(self._run, PATIENCE)
        await self._app.aclose()

    def __enter__(self) -> Worker:
        started = threading.Event()
        self._error: BaseException | None = None

        async def live() -> None:
            self._loop = asyncio.get_running_loop()
            async with self as self._worker:
                started.set()
                await asyncio.wait({self._run})

        def work() -> None:
            try:
                asyncio.run(live())
            except BaseException as error:
                self._error = error
                started.set()

        self._thread = threading.Thread(target=work, name="worker under test")
        self._thread.start()
        assert started.wait(PATIENCE)
        return self._worker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(lambda: self._worker.stop(fast=True))
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker does not stop"
        if self._error is not None:
            raise self._error
