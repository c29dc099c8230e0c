"""The duty that purges the app's queues and pools by its settings; one worker at a time."""

from __future__ import annotations

from relevo.engine.duty import Duty
from relevo.engine.engine import Engine
from relevo.engine.workers import take_turn
from relevo.upkeep.purge import purging
from relevo.upkeep.report import PurgeReport


class PurgeDuty(Duty[PurgeReport | None]):
    """The purge as a duty of one worker."""

    name = "purge"

    def __init__(self, engine: Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker
        # More often than it is due, in case the worker whose turn it was has died.
        self.interval = min(60.0, engine.settings.purge_every / 4)

    async def run_once(self) -> PurgeReport | None:
        """Purge, or only report (setting "observe"); None if another worker did so in this interval."""
        settings = self._engine.settings
        if not await self._engine.arun(take_turn(self._engine.keys.purged, self._worker, settings.purge_every)):
            return None
        return await self._engine.arun(purging(self._engine, dry_run=settings.purge == "observe"))
