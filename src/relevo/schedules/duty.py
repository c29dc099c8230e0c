"""The duty that registers the schedules that code and settings name."""

from __future__ import annotations

import logging
from typing import Any

from relevo.engine.duty import Duty, Host
from relevo.errors import ConfigurationError, FormatError
from relevo.schedules.firing import registering_all

log = logging.getLogger("relevo.worker")


class ScheduleDuty(Duty[None]):
    """Registers them before the first claim, and again in case the server lost them."""

    name = "schedules"
    interval = 120.0
    is_registration = True

    def __init__(self, worker: Host) -> None:
        self._engine = worker.engine

    async def run_once(self) -> None:
        """Register all of them; a wrong one does not keep the others from being registered."""
        try:
            await self._engine.client.arun(registering_all(self._engine), patience=0)
        except FormatError:
            raise
        except ConfigurationError as error:
            log.error("%s", error)


def duties(worker: Host) -> list[Duty[Any]]:
    """What this feature gives every worker to do."""
    return [ScheduleDuty(worker)]
