"""Looks after the health of the app: keeps the counters of its queues once a minute, and with the setting `health` on
takes its turn in looking at all of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from typing import TYPE_CHECKING

from relevo.errors import StoreError
from relevo.health import watching
from relevo.model.health import Health
from relevo.model.vitals import Fault
from relevo.store.vitals import keep_minute

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Seconds between two samples of the counters. Who comes first in a minute keeps them, all others find them kept.
SAMPLE_EVERY = 60.0


class Watcher:
    """One for each worker; of all workers of an app, one at a time looks."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._app = worker.app
        self._driver = worker.app.client.driver()
        self._sample_at = time.monotonic() + SAMPLE_EVERY * random.uniform(0.5, 1.0)
        self._told: dict[str, dict[str, Fault]] = {}

    async def run(self) -> None:
        """Look, for ever."""
        settings = self._app.settings
        # Asked five times in an interval, so that the look is not late if the one who took the turn before has died.
        every = min(SAMPLE_EVERY, settings.health_every / 5) if settings.health else SAMPLE_EVERY
        pause = random.uniform(0.0, min(1.0, every)) if settings.health else every / 2
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(StoreError):
                await self.run_once()
            pause = every * random.uniform(0.9, 1.0)

    async def run_once(self) -> Health | None:
        """Keep a sample if it is time, and look if it is this worker's turn: what was found."""
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + SAMPLE_EVERY * 0.9
            for queue in self._worker.queues:
                self._tell(queue, await self._driver.perform(keep_minute(self._app.keys_of(queue)), patience=0))
        if not self._app.settings.health:
            return None
        return await self._driver.perform(watching(self._app, self._worker.id), patience=0)

    def _tell(self, queue: str, faults: dict[str, Fault]) -> None:
        """Say once what another program wrote into the keys of a queue."""
        told = self._told.get(queue, {})
        for name, fault in faults.items():
            if name not in told or told[name].text != fault.text:
                log.error("%s: key %s: %s", queue, name, fault.text)
        self._told[queue] = faults
