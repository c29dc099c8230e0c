"""Registers a live worker: in the list of workers, and at the queues and services that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from relevo.bus.bus import Bus
from relevo.bus.event_store import relay_events
from relevo.bus.serving import offered
from relevo.bus.subscription_store import subscribe, unsubscribe
from relevo.engine.lists import tidying
from relevo.engine.offers_store import SERVE_EVERY, TASKS_FULL_EVERY, Known, retire, serve, serve_tasks, stay
from relevo.engine.workers import WorkerInfo, forget_lost, gone, listed, present
from relevo.errors import FormatError, StoreError
from relevo.upkeep.sweeping import sweeping

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Seconds between heartbeats of an idle worker, and of one whose counters change, so that `relevo status` is current.
PRESENT_EVERY = 20.0
BUSY_EVERY = 5.0
#: Seconds after which the worker is listed again, in case the list was lost.
LISTED_EVERY = 120.0
#: Approximate seconds between two sweeps for orphans; not urgent.
SWEEP_EVERY = 300.0


class Presence:
    """The heartbeats of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._engine = worker.engine
        self._driver = worker.engine.client.driver()
        #: queue -> action -> description
        self._offers = offered(worker.engine, worker.queues)
        self._known = {
            queue: Known(offer.build, offer.text) for queue in worker.queues for offer in (worker.intake.offer(queue),)
        }
        #: queue of tasks -> when to send the full offer again
        self._full_at = dict.fromkeys((queue for queue in worker.queues if queue not in self._offers), 0.0)
        self._subscriptions = [
            one
            for subscribed in worker.engine.part(Bus).subscriptions.values()
            if (one := subscribed.registered(worker.id)).queue in worker.queues
        ]
        self._sweep_at = 0.0
        self._list_at = 0.0
        self._forgotten = asyncio.Event()
        self._is_serving = True
        self._is_due = False

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        engine = self._engine
        while True:
            sent, self._is_due = self._about(), False
            with contextlib.suppress(StoreError):
                await self._driver.perform(present(engine.keys, sent), patience=0)
                await self._stay()
                if time.monotonic() >= self._list_at:
                    try:
                        await self._worker.register()
                    except FormatError as error:
                        self._worker.give_up(error)
                        return
                    await self._driver.perform(listed(engine.keys, self._worker.id), patience=0)
                    await self._driver.perform(tidying(engine), patience=0)
                    now_ms = await self._driver.perform(engine.now_ms(), patience=0)
                    await self._driver.perform(forget_lost(engine.keys, now_ms), patience=0)
                    self._list_at = time.monotonic() + LISTED_EVERY
            send_at = time.monotonic() + PRESENT_EVERY
            while time.monotonic() < send_at:
                await asyncio.sleep(BUSY_EVERY)
                if self._is_due or self._about() != sent or time.monotonic() >= self._list_at:
                    break

    async def announce(self) -> None:
        """Send the offers before the first claim: jobs may be waiting for this worker."""
        await self._stay()
        await self._serve_once()

    async def _stay(self) -> None:
        """Report that the worker still serves its queues of tasks."""
        for consumer in self._worker.consumers:
            if consumer.queue not in self._full_at or not self._is_serving:
                continue
            if time.monotonic() < self._full_at[consumer.queue] and await self._perform(
                stay(consumer.keys, self._worker.id, consumer.now_ms())
            ):
                continue
            await self._perform(serve_tasks(consumer.keys, self._worker.id, self._known[consumer.queue]))
            self._full_at[consumer.queue] = time.monotonic() + TASKS_FULL_EVERY

    def on_the_bus(self) -> list[tuple[str, Callable[[], Coroutine[Any, Any, None]]]]:
        """The duties for the bus, by name; empty if no service is served."""
        if not self._offers:
            return []
        return [("services", self._serve), ("aftermath", self._worker.aftermath.run), ("upkeep", self._look_after)]

    async def _serve(self) -> None:
        while self._is_serving:
            self._forgotten.clear()
            with contextlib.suppress(StoreError):
                await self._serve_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SERVE_EVERY):
                    await self._forgotten.wait()

    async def _serve_once(self) -> None:
        about = self._about()
        if self._subscriptions:
            await self._perform(subscribe(self._engine.bus_keys, self._subscriptions))
        for queue, actions in self._offers.items():
            if self._is_serving:
                await self._perform(serve(self._engine.keys_of(queue), about, self._known[queue], actions))

    def say_again(self, was_open: bool) -> None:
        """Register again after a connect; after a reconnect the server may be another one, without our entries."""
        self._forgotten.set()
        if was_open:
            self._engine.forget_lists()
            self._list_at = 0.0

    def say_soon(self) -> None:
        """Register again soon: the server's clock was set, so earlier entries expire too early or too late."""
        self._is_due = True
        self._forgotten.set()

    async def _look_after(self) -> None:
        """Maintain the whole bus, from any worker: relay events of dead publishers, sweep orphans."""
        engine = self._engine
        while True:
            with contextlib.suppress(StoreError):
                await self._perform(relay_events(engine.bus_keys, engine.keys_of, engine.settings.dead_max))
                if engine.settings.lifecycle != "off" and time.monotonic() > self._sweep_at:
                    self._sweep_at = time.monotonic() + SWEEP_EVERY * random.uniform(0.5, 1.5)
                    await self._sweep(observe=engine.settings.lifecycle == "observe")
            await asyncio.sleep(SERVE_EVERY * random.uniform(0.5, 1.0))

    async def _sweep(self, *, observe: bool) -> None:
        report = await self._perform(sweeping(self._engine, dry_run=observe))
        for one in report.orphans if observe else ():
            log.info("observed: %s %s: %s; it %s", one.kind, one.name, one.reason, one.what)

    def _perform(self, plan: Any) -> Any:
        return self._driver.perform(plan, patience=0)

    async def stop_serving(self) -> None:
        """Withdraw the offers: this worker takes no more messages."""
        self._is_serving = False
        for queue in self._known:
            await self._perform(retire(self._engine.keys_of(queue), self._worker.id))

    async def leave(self) -> None:
        """Remove the worker's entries."""
        if self._engine.part(Bus).worker == self._worker.id:
            self._engine.part(Bus).worker = ""
        for one in self._subscriptions:
            if one.lease_ms:  # a subscription of this process only
                await self._perform(unsubscribe(self._engine.bus_keys, one.queue))
        await self.stop_serving()
        await self._worker.aftermath.write()
        await self._perform(gone(self._engine.keys, self._worker.id))

    def _about(self) -> WorkerInfo:
        from relevo.version import __version__

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
