"""The duty that ends expired jobs in queues without a worker; one worker of the app at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from relevo.engine.workers import take_turn
from relevo.errors import StoreError
from relevo.upkeep.deadlines import expiring

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Seconds between two sweeps of an app: not urgent, since callers of a request measure the deadline themselves.
EVERY = 60.0


class DeadlineDuty:
    """The sweep as a duty of one worker."""

    def __init__(self, engine: Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker
        self._offsets: dict[str, int] = {}

    async def run(self) -> None:
        """Sweep when it is this worker's turn, until cancelled."""
        while True:
            await asyncio.sleep(EVERY * random.uniform(0.4, 0.6))
            with contextlib.suppress(StoreError):
                await self.run_once()

    async def run_once(self) -> int:
        """Sweep; returns the number of ended jobs, 0 if another worker swept in this interval."""
        if not await self._engine.arun(take_turn(self._engine.keys.swept, self._worker, EVERY)):
            return 0
        return await self._engine.arun(expiring(self._engine, self._offsets))
