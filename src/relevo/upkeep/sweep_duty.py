"""The duty that removes subscriptions and queues of the bus that are no longer in use."""

from __future__ import annotations

import logging

from relevo.engine.duty import Duty
from relevo.engine.engine import Engine
from relevo.upkeep.sweeping import SweepReport, sweeping

log = logging.getLogger("relevo.worker")


class SweepDuty(Duty[SweepReport]):
    """The sweep, or only its report (setting `lifecycle` "observe")."""

    name = "sweep"
    #: Not urgent. Workers that run it in the same interval find nothing left to do.
    interval = 300.0
    first = 0.0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self) -> SweepReport:
        """Sweep once."""
        is_dry = self._engine.settings.lifecycle == "observe"
        report = await self._engine.client.arun(sweeping(self._engine, dry_run=is_dry), patience=0)
        for one in report.orphans if is_dry else ():
            log.info("observed: %s %s: %s; it %s", one.kind, one.name, one.reason, one.what)
        return report
