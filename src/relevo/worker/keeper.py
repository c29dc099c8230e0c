"""Renews leases from a thread with a connection of its own, which a blocked event loop cannot stop."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from relevo.errors import StoreError
from relevo.store.turns import MOST, renew
from relevo.worker import faults

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")


class Keeper:
    """Three renewals fit in a lease: two may fail before a job is lost."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._every = worker.app.settings.lease / 3
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relevo keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                self.run_once()
            except StoreError as error:
                log.debug("keeper: %s", error)
            except Exception:
                log.exception("keeper: unexpected")

    def run_once(self) -> int:
        """Renew what is in hand: how many leases."""
        worker = self._worker
        now = time.monotonic()
        # While the loop is blocked, jobs that wait for it are let go: other workers can run them.
        blocked = now - worker.loop_ticked > self._every
        renewed = 0
        for lane in worker.lanes:
            held = [
                (run.held.id, run.held.token)
                for run in list(worker.runs.values())
                if run.lane is lane and not run.settled and (run.started or not blocked)
            ]
            for start in range(0, len(held), MOST):
                part = held[start : start + MOST]
                if faults.ACTIVE:
                    faults.at("renewing")
                call = renew(lane.keys, part, worker.app.lease_ms)
                lost, cancelled = worker.app.client.blocking.perform(call, patience=self._every / 2)
                renewed += len(part) - len(lost)
                if lost or cancelled:
                    worker.from_thread(lost, cancelled)
        if worker.ledger is not None:
            worker.ledger.beat()
        return renewed
