"""The duty for the app's health: samples the counters of its queues once a minute, and with the setting `health` on
takes health snapshots when it is this worker's turn."""

from __future__ import annotations

import logging
import random
import time
from typing import Any

from relevo.engine.duty import Duty, Host
from relevo.health.gathering import watching
from relevo.health.status import Health
from relevo.health.vitals import Fault
from relevo.health.vitals_store import keep_minute

log = logging.getLogger("relevo.worker")

#: Seconds between two samples of the counters. The first worker in a minute writes the sample.
SAMPLE_EVERY = 60.0


class HealthDuty(Duty[Health | None]):
    """One for each worker; one worker of an app at a time takes the snapshots."""

    name = "health"

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._engine = worker.engine
        self._driver = worker.engine.client.driver()
        self._sample_at = time.monotonic() + SAMPLE_EVERY * random.uniform(0.5, 1.0)
        self._logged: dict[str, dict[str, Fault]] = {}
        settings = worker.engine.settings
        # Tries five times per interval, so that the snapshot is not late if the worker of the last turn has died.
        self.interval = min(SAMPLE_EVERY, settings.health_every / 5) if settings.health else SAMPLE_EVERY
        self.first = random.uniform(0.0, min(1.0, self.interval)) if settings.health else None

    async def run_once(self) -> Health | None:
        """Write a sample if it is due; returns a snapshot if it is this worker's turn."""
        if time.monotonic() >= self._sample_at:
            self._sample_at = time.monotonic() + SAMPLE_EVERY * 0.9
            for queue in self._worker.queues:
                self._log(queue, await self._driver.perform(keep_minute(self._engine.keys_of(queue)), patience=0))
        if not self._engine.settings.health:
            return None
        return await self._driver.perform(watching(self._engine, self._worker.id), patience=0)

    def _log(self, queue: str, faults: dict[str, Fault]) -> None:
        """Log each foreign value in the keys of a queue once."""
        logged = self._logged.get(queue, {})
        for name, fault in faults.items():
            if name not in logged or logged[name].text != fault.text:
                log.error("%s: key %s: %s", queue, name, fault.text)
        self._logged[queue] = faults


def duties(worker: Host) -> list[Duty[Any]]:
    """What this feature gives every worker to do."""
    return [HealthDuty(worker)]
