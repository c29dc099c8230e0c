"""Renews leases from a thread with a connection of its own, which a blocked event loop cannot stop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from typing import TypeVar

from relevo.engine.engine import Engine
from relevo.engine.turn import MOST, renew
from relevo.errors import StoreError
from relevo.store.plan import Call
from relevo.worker import kill_points as faults
from relevo.worker.consumer import Consumer
from relevo.worker.runner import Runner
from relevo.worker.time_limits import TimeLimits

log = logging.getLogger("relevo.worker")

T = TypeVar("T")

#: Seconds between two tries while the server is away. When it is back, leases hold for some seconds (contact.lua), and
#: must be renewed within them.
_TRY_EVERY = 1.0


class LeaseRenewer:
    """Three renewals fit in a lease: two may fail before a job is lost."""

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        consumers: Sequence[Consumer],
        time_limits: TimeLimits,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._consumers = consumers
        self._time_limits = time_limits
        self._loop = asyncio.get_running_loop()
        self._every = engine.settings.lease / 3
        #: Consumers that could not be renewed last time. They come last, so that the others do not wait for their node.
        self._unreached: set[Consumer] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relevo lease renewer", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._runner.ledger is not None:
            self._runner.ledger.beat()
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(2)

    def _run(self) -> None:
        pause = self._every
        while not self._stop.wait(pause):
            pause = self._every
            try:
                self.run_once()
                if self._unreached:
                    pause = min(self._every, _TRY_EVERY)
            except Exception:
                log.exception("lease renewer: unexpected")

    def run_once(self) -> int:
        """Renew what is in hand: how many leases."""
        if time.monotonic() - self._time_limits.ticked > self._every:
            self._hand_back()
        renewed = 0
        for consumer in sorted(self._consumers, key=self._unreached.__contains__):
            try:
                renewed += self._renew(consumer)
            except StoreError as error:  # queues of a cluster may be on other nodes
                log.debug("lease renewer: %s: %s", consumer.queue, error)
                self._unreached.add(consumer)
            else:
                self._unreached.discard(consumer)
        if self._runner.ledger is not None and not self._unreached:
            self._runner.ledger.beat()
        return renewed

    def _renew(self, consumer: Consumer) -> int:
        held, renewed = consumer.held(), 0
        for start in range(0, len(held), MOST):
            part = held[start : start + MOST]
            if faults.ACTIVE:
                faults.at("renewing")
            asked = time.monotonic()
            lost, cancelled, now_ms = self._perform(renew(consumer.keys, part, self._engine.lease_ms))
            self._loop.call_soon_threadsafe(consumer.heed_clock, asked, time.monotonic(), now_ms)
            renewed += len(part) - len(lost)
            if lost or cancelled:
                self._loop.call_soon_threadsafe(self._runner.heed, consumer, part, lost, cancelled)
        return renewed

    def _perform(self, call: Call[T]) -> T:
        # Where one node is away the others may be, too: it is tried again soon, and no queue waits for all before it.
        patience = 0 if self._unreached else self._every / 2
        return self._engine.client.blocking.perform(call, patience=patience)

    def _hand_back(self) -> None:
        """The loop is blocked: jobs that wait for it are for other workers."""
        waiting = [run for run in list(self._runner.runs.values()) if run.is_waiting and not run.settled]
        for run in waiting:
            run.settled = True  # before anything else: the loop may come to life, and must not start it any more
        if waiting:
            log.warning("the event loop is blocked; %d jobs that wait for it are handed back", len(waiting))
            self._loop.call_soon_threadsafe(self._runner.forget, waiting)
        for consumer in self._consumers:
            runs = [run for run in waiting if run.origin is consumer]
            for start in range(0, len(runs), MOST):
                try:
                    self._perform(consumer.handing_back(runs[start : start + MOST]))
                except StoreError as error:  # their leases end
                    log.debug("lease renewer: %s: %s", consumer.queue, error)
