"""The duty of upkeep: one worker of an app at a time ends what has expired, purges, sweeps and tidies the lists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

from relevo.engine.duty import Duty, Host
from relevo.engine.engine import Engine
from relevo.engine.leader import take_turn
from relevo.store.plan import Steps
from relevo.text.names import is_bus_name
from relevo.upkeep.deadlines import expiring
from relevo.upkeep.lists import tidying
from relevo.upkeep.purge import purging
from relevo.upkeep.report import UpkeepReport
from relevo.upkeep.sweeping import log_sweep, sweeping

log = logging.getLogger("relevo.worker")


class UpkeepDuty(Duty[UpkeepReport | None]):
    """One piece of upkeep, done by the worker whose turn it is."""

    def __init__(
        self, engine: Engine, worker: str, name: str, every: float, plan: Callable[[], Steps[UpkeepReport]]
    ) -> None:
        self.name = name
        # More often than it is due, in case the worker whose turn it was has died.
        self.interval = min(60.0, every / 4)
        self._engine = engine
        self._worker = worker
        self._every = every
        self._plan = plan

    async def run_once(self) -> UpkeepReport | None:
        """Do it if no worker did so in this interval; else None."""
        if not await self._engine.arun(take_turn(self._engine.keys.turn(self.name), self._worker, self._every)):
            return None
        return await self._engine.arun(self._plan())


def expiry_duty(engine: Engine, worker: str) -> UpkeepDuty:
    """Ends expired jobs of queues without workers. Not urgent: who waits for an answer measures its deadline, too."""
    return UpkeepDuty(engine, worker, "deadlines", 60.0, partial(expiring, engine, {}))


def lists_duty(engine: Engine, worker: str) -> UpkeepDuty:
    """Removes what has ended from the lists of queues, pools and workers."""
    return UpkeepDuty(engine, worker, "lists", 120.0, partial(tidying, engine))


def purge_duty(engine: Engine, worker: str) -> UpkeepDuty:
    """Purges, or only reports it (setting `purge` "observe")."""
    settings = engine.settings
    is_dry = settings.purge == "observe"
    return UpkeepDuty(engine, worker, "purge", settings.purge_every, partial(purging, engine, dry_run=is_dry))


def sweep_duty(engine: Engine, worker: str) -> UpkeepDuty:
    """Sweeps the bus, or only reports it (setting `lifecycle` "observe")."""
    duty = UpkeepDuty(engine, worker, "sweep", 300.0, partial(_sweeping, engine))
    duty.first = 0.0
    return duty


def _sweeping(engine: Engine) -> Steps[UpkeepReport]:
    is_dry = engine.settings.lifecycle == "observe"
    report = yield from sweeping(engine, dry_run=is_dry)
    if is_dry:
        log_sweep(log, report, "observed: ")
    return report


def duties(worker: Host) -> Iterator[UpkeepDuty]:
    """What upkeep gives every worker to do, as far as the settings say so."""
    engine, settings = worker.engine, worker.engine.settings
    yield expiry_duty(engine, worker.id)
    yield lists_duty(engine, worker.id)
    if settings.purge != "off":
        yield purge_duty(engine, worker.id)
    if settings.lifecycle != "off" and any(map(is_bus_name, worker.queues)):
        yield sweep_duty(engine, worker.id)
