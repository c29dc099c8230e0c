"""The duty of workers that relays what is left in an outbox: by a process that died, or because the server was away."""

from __future__ import annotations

import asyncio
import logging

from django.db import DatabaseError

from relevo.django.connections import around
from relevo.django.outbox.relay import databases, relay
from relevo.engine.duty import Duty
from relevo.engine.engine import Engine
from relevo.engine.push import CHUNK

log = logging.getLogger("relevo.django")


class OutboxDuty(Duty[int]):
    """Relays the outboxes of all databases."""

    name = "Django outbox"
    #: Seconds. What is enqueued is relayed by its own process at once; this is for what that one could not do.
    interval = 10.0
    first = 0.0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self) -> int:
        """How many jobs were relayed."""
        try:
            return await asyncio.to_thread(around(self._relay))
        except DatabaseError as error:
            log.warning("the outbox cannot be read: %s", error)
            return 0

    def _relay(self) -> int:
        moved = 0
        for alias in databases():
            while some := len(relay(self._engine, alias)):
                moved += some
                if some < CHUNK:
                    break
        return moved
