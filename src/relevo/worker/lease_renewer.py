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
from relevo.worker.consumer import Lane
from relevo.worker.runner import Hands
from relevo.worker.time_limits import Watch

log = logging.getLogger("relevo.worker")

T = TypeVar("T")

#: Seconds between two tries while the server is away. When it is back, leases hold for some seconds (contact.lua), and
#: must be renewed within them.
_TRY_EVERY = 1.0


class Keeper:
    """Three renewals fit in a lease: two may fail before a job is lost."""

    def __init__(
        self,
        engine: Engine,
        hands: Hands,
        lanes: Sequence[Lane],
        watch: Watch,
    ) -> None:
        self._engine = engine
        self._hands = hands
        self._lanes = lanes
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._every = engine.settings.lease / 3
        #: Lanes that could not be renewed last time. They come last, so that the others need not wait for their node.
        self._unreached: set[Lane] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relevo keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        if self._hands.ledger is not None:
            self._hands.ledger.beat()
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
                log.exception("keeper: unexpected")

    def run_once(self) -> int:
        """Renew what is in hand: how many leases."""
        if time.monotonic() - self._watch.ticked > self._every:
            self._hand_back()
        renewed = 0
        for lane in sorted(self._lanes, key=self._unreached.__contains__):
            try:
                renewed += self._renew(lane)
            except StoreError as error:  # queues of a cluster may be on other nodes
                log.debug("keeper: %s: %s", lane.queue, error)
                self._unreached.add(lane)
            else:
                self._unreached.discard(lane)
        if self._hands.ledger is not None and not self._unreached:
            self._hands.ledger.beat()
        return renewed

    def _renew(self, lane: Lane) -> int:
        held, renewed = lane.held(), 0
        for start in range(0, len(held), MOST):
            part = held[start : start + MOST]
            if faults.ACTIVE:
                faults.at("renewing")
            asked = time.monotonic()
            lost, cancelled, now_ms = self._perform(renew(lane.keys, part, self._engine.lease_ms))
            self._loop.call_soon_threadsafe(lane.heed_clock, asked, time.monotonic(), now_ms)
            renewed += len(part) - len(lost)
            if lost or cancelled:
                self._loop.call_soon_threadsafe(self._hands.heed, lane, part, lost, cancelled)
        return renewed

    def _perform(self, call: Call[T]) -> T:
        # Where one server is away the others may be, too: it is tried again soon, and no lane waits for all before it.
        patience = 0 if self._unreached else self._every / 2
        return self._engine.client.blocking.perform(call, patience=patience)

    def _hand_back(self) -> None:
        """The loop is blocked: jobs that wait for it are for other workers."""
        waiting = [run for run in list(self._hands.runs.values()) if run.is_waiting and not run.settled]
        for run in waiting:
            run.settled = True  # before anything else: the loop may come to life, and must not start it any more
        if waiting:
            log.warning("the event loop is blocked; %d jobs that wait for it are handed back", len(waiting))
            self._loop.call_soon_threadsafe(self._hands.forget, waiting)
        for lane in self._lanes:
            runs = [run for run in waiting if run.lane is lane]
            for start in range(0, len(runs), MOST):
                try:
                    self._perform(lane.handing_back(runs[start : start + MOST]))
                except StoreError as error:  # their leases end
                    log.debug("keeper: %s: %s", lane.queue, error)
