"""A worker says that it lives: to those who list workers, and to those who ask its services."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from relevo.bus.serving import offered
from relevo.errors import StoreError
from relevo.store.presence import SERVE_EVERY, retire, serve
from relevo.store.workers import WorkerInfo, gone, listed, present

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

#: Seconds between signs of life, and after how many of them the worker is listed anew, should the list have been lost.
PRESENT_EVERY = 20.0
LISTED_EVERY = 6


class Presence:
    """The signs of life of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._app = worker.app
        self._driver = worker.app.client.driver()
        #: queue -> action -> description
        self._offers = offered(worker.app, worker.queues)

    async def run(self) -> None:
        """Say that the worker lives, for ever."""
        app, unlisted = self._app, LISTED_EVERY
        while True:
            with contextlib.suppress(StoreError):
                await self._driver.perform(present(app.keys, self._about()), patience=0)
                unlisted += 1
                if unlisted > LISTED_EVERY:
                    await self._worker.register_schedules()
                    await self._driver.perform(listed(app.keys, self._worker.id, int(time.time() * 1000)), patience=0)
                    unlisted = 1
            await asyncio.sleep(PRESENT_EVERY)

    def on_the_bus(self) -> list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """What is said of services, by name; nothing where none is served."""
        if not self._offers:
            return []
        self._app.bus.worker = self._worker.id
        return [("services", self._serve)]

    async def _serve(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                about = self._about()
                for queue, actions in self._offers.items():
                    await self._driver.perform(serve(self._app.keys_of(queue), about, actions), patience=0)
            await asyncio.sleep(SERVE_EVERY)

    async def leave(self) -> None:
        """Say goodbye."""
        if self._app.bus.worker == self._worker.id:
            self._app.bus.worker = ""
        for queue in self._offers:
            await self._driver.perform(retire(self._app.keys_of(queue), self._worker.id), patience=0)
        await self._driver.perform(gone(self._app.keys, self._worker.id), patience=0)

    def _about(self) -> WorkerInfo:
        from relevo import __version__

        worker = self._worker
        return WorkerInfo(
            worker.id,
            socket.gethostname(),
            os.getpid(),
            worker.queues,
            worker.concurrency,
            worker.started_ms,
            worker.in_hand,
            worker.done,
            worker.failed,
            __version__,
        )
