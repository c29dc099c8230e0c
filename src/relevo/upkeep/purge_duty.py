"""The duty that purges the app's queues and pools by its settings; one worker at a time."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from relevo.engine.workers import take_turn
from relevo.errors import StoreError
from relevo.upkeep.purge import purging
from relevo.upkeep.report import PurgeReport

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.purge")


class PurgeDuty:
    """The purge as a duty of one worker."""

    def __init__(self, engine: Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker

    async def run(self) -> None:
        """Purge when it is due, until cancelled. Checks more often, in case the worker whose turn it was has died."""
        every, is_logged = self._engine.settings.purge_every, False
        while True:
            await asyncio.sleep(min(60.0, every / 4) * random.uniform(0.5, 1.0))
            try:
                await self.run_once()
            except StoreError as error:
                if not is_logged:  # a purge that never runs would go unnoticed otherwise
                    log.warning("the purge broke off: %s", error)
                is_logged = True
            else:
                is_logged = False

    async def run_once(self) -> PurgeReport | None:
        """Purge, or only report (setting "observe"); None if another worker did so in this interval."""
        settings = self._engine.settings
        if not await self._engine.arun(take_turn(self._engine.keys.purged, self._worker, settings.purge_every)):
            return None
        return await self._engine.arun(purging(self._engine, dry_run=settings.purge == "observe"))
