"""What the features give to the engine of each app: duties of workers, observers of settlements, tasks of their own."""

from __future__ import annotations

from relevo.bus.bus import Bus
from relevo.bus.duties import duties as bus_duties
from relevo.bus.message_observer import MessageObserver
from relevo.engine.engine import Engine
from relevo.engine.task import Task
from relevo.health.duty import duties as health_duties
from relevo.limits import code_limits
from relevo.limits.breaker_observer import BreakerObserver
from relevo.pools.pool import Pools
from relevo.schedules.duty import duties as schedule_duties
from relevo.upkeep.duty import duties as upkeep_duties
from relevo.workflows.storing import GATHER, gather


def add_features(engine: Engine) -> None:
    """Add them to the engine of a new app."""
    engine.built_in[GATHER] = Task(engine, gather, GATHER, engine.default_options)
    for feature in (Bus, Pools):
        engine.part(feature)
    engine.duties += [schedule_duties, code_limits.duties, bus_duties, health_duties, upkeep_duties]
    engine.observers += [MessageObserver, BreakerObserver]
