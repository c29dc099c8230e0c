"""What a worker does for a queue besides its jobs: carry letters to other queues, fire schedules that are due."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from relevo.engine.engine import Engine
from relevo.engine.outbox import Taken, deliver, relay, take_outbox
from relevo.errors import OutOfMemory, StoreError
from relevo.schedules.firing import fire_due
from relevo.store.aio import AsyncDriver
from relevo.worker import kill_points as faults

log = logging.getLogger("relevo.worker")

#: Seconds until an errand is tried again that failed because the server was away.
AGAIN = 1.0


class OutboxCarrier:
    """The outbox of one queue, one round at a time. Any worker may deliver it: doing so twice changes nothing."""

    def __init__(self, engine: Engine, queue: str, driver: AsyncDriver, on_done: Callable[[], None]) -> None:
        self._engine = engine
        self._queue = queue
        self._driver = driver
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether errands are being done."""
        return self._task is not None

    def heed(self, errand_ms: int, now_ms: int) -> None:
        """The server says when the next errand is due (0: none)."""
        if errand_ms and self._task is None:
            at = self._loop.time() + max(0, errand_ms - now_ms) / 1000
            if errand_ms <= now_ms:
                self._start()
            elif self._alarm is None or at < self._alarm_at:
                self._set_alarm(at)

    def look(self) -> None:
        """Look now: what was due later may be due."""
        self._start()

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._loop.call_at(at, self._start), at

    def _start(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"relevo errands {self._queue}")

    async def _run(self) -> None:
        again: float | None = None
        try:
            _, next_ms, now_ms = await self.run_once()
            again = max(0, next_ms - now_ms) / 1000 if next_ms else None
        except StoreError as error:
            log.debug("%s: errands: %s", self._queue, error)
            again = AGAIN
        except Exception:
            log.exception("%s: an errand failed; it is tried again", self._queue)
            again = AGAIN
        finally:
            self._task = None
        if again is not None:
            self._set_alarm(self._loop.time() + again)
        self._on_done()

    async def run_once(self) -> tuple[int, int, int]:
        """Do what is due: how many errands, when the next one is (0: there is none), what time it is."""
        engine, finished, done = self._engine, list[str](), 0
        keys, dead_max = engine.keys_of(self._queue), engine.settings.dead_max
        while True:
            taken: Taken = await self._perform(take_outbox(keys, finished, ticks=True))
            if not taken.ids:
                return done, taken.next_ms, taken.now_ms
            if faults.ACTIVE:
                faults.at("errand_taken")
            pairs = list(zip(taken.ids, taken.texts, strict=True))
            letters = [(id, text) for id, text in pairs if not id.startswith("@")]
            finished, onward = await self._perform(deliver(engine.keys_of, keys, letters, dead_max))
            for id, text in pairs:
                if id.startswith("@"):
                    await self._fire(id[1:], text, taken.now_ms)
            if faults.ACTIVE:
                faults.at("errand_done")
            if onward - {self._queue}:  # queues that no worker may serve
                await self._perform(relay(engine.keys_of, onward - {self._queue}, dead_max))
            done += len(taken.ids)

    async def _fire(self, name: str, text: bytes, now_ms: int) -> None:
        try:
            await self._perform(fire_due(self._engine, self._queue, name, text, now_ms))
        except OutOfMemory as error:  # it is due again in a moment; letters, which free memory, go on
            log.warning("schedule %s cannot fire: %s", name, error)

    def _perform(self, plan: Any) -> Any:
        return self._driver.perform(plan, patience=0)

    async def finish(self) -> None:
        """Wait for what is under way."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._task)
