"""What upkeep gives every worker to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relevo.engine.duty import Duty, Host
from relevo.text.names import is_bus_name
from relevo.upkeep.deadline_duty import DeadlineDuty
from relevo.upkeep.purge_duty import PurgeDuty
from relevo.upkeep.sweep_duty import SweepDuty


def duties(worker: Host) -> Iterator[Duty[Any]]:
    """End expired jobs; purge and sweep as far as the settings say so."""
    settings = worker.engine.settings
    yield DeadlineDuty(worker.engine, worker.id)
    if settings.purge != "off":
        yield PurgeDuty(worker.engine, worker.id)
    if settings.lifecycle != "off" and any(map(is_bus_name, worker.queues)):
        yield SweepDuty(worker.engine)
