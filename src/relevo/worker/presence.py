"""Duties that make a worker known: its queues on their lists, its heartbeat, and what it offers to run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from relevo.engine.duty import Duty
from relevo.engine.key_format import agreeing
from relevo.engine.offers_store import TASKS_FULL_EVERY, retire, serve_tasks, stay
from relevo.engine.workers import WorkerInfo, gone, listed, present
from relevo.text.names import is_bus_name

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

#: Seconds between heartbeats of an idle worker, and of one whose counters change, so that `relevo status` is current.
PRESENT_EVERY = 20.0
BUSY_EVERY = 5.0
#: Seconds after which queues and workers are listed again, in case the lists were lost.
LISTED_EVERY = 120.0


class Registration(Duty[None]):
    """Puts the queues on the lists through which they are found. FormatError: the keys are of another version."""

    name = "registration"
    interval = LISTED_EVERY
    is_registration = True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engine = worker.engine

    async def run_once(self) -> None:
        """List them, if the format of the keys is compatible."""
        engine, client = self._engine, self._engine.client
        is_on_bus = any(map(is_bus_name, self._worker.queues))
        for keys in [engine.own_keys, *([engine.bus_keys] if is_on_bus else [])]:
            await client.arun(agreeing(keys), patience=0)
        for queue in self._worker.queues:
            await client.arun(engine.list_served(queue), patience=0)


class Presence(Duty[bool]):
    """The heartbeat of a worker, and its offers for queues of tasks."""

    name = "presence"
    interval = BUSY_EVERY
    is_registration = True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engine = worker.engine
        self._driver = worker.engine.client.driver()
        #: queue of tasks -> when to send the full offer again
        self._full_at = dict.fromkeys((queue for queue in worker.queues if not is_bus_name(queue)), 0.0)
        self._sent: WorkerInfo | None = None
        self._send_at = 0.0
        self._list_at = 0.0
        self._is_serving = True

    async def run_once(self) -> bool:
        """Send a heartbeat if it is due or says something new; returns whether it was sent."""
        now, about = time.monotonic(), self._worker.about()
        if now < self._send_at and about == self._sent:
            return False
        await self._perform(present(self._engine.keys, about))
        await self._stay()
        if now >= self._list_at:
            await self._perform(listed(self._engine.keys, about.id))
            self._list_at = now + LISTED_EVERY
        self._sent, self._send_at = about, now + PRESENT_EVERY
        return True

    def hurry(self) -> None:
        """Send everything now: the server may have lost it."""
        self._send_at = self._list_at = 0.0
        super().hurry()

    async def _stay(self) -> None:
        """Report that the worker still serves its queues of tasks."""
        for consumer in self._worker.consumers:
            if consumer.queue not in self._full_at or not self._is_serving:
                continue
            if time.monotonic() < self._full_at[consumer.queue] and await self._perform(
                stay(consumer.keys, self._worker.id, consumer.now_ms())
            ):
                continue
            await self._perform(serve_tasks(consumer.keys, self._worker.id, self._worker.known(consumer.queue)))
            self._full_at[consumer.queue] = time.monotonic() + TASKS_FULL_EVERY

    async def withdraw(self) -> None:
        """Withdraw all offers: the worker takes no more jobs and messages."""
        self._is_serving = False
        for queue in self._worker.queues:
            await self._perform(retire(self._engine.keys_of(queue), self._worker.id))

    async def close(self) -> None:
        """Remove the worker's entries."""
        await self.withdraw()
        await self._perform(gone(self._engine.keys, self._worker.id))

    def _perform(self, plan: Any) -> Any:
        return self._driver.perform(plan, patience=0)
