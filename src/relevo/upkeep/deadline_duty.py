"""The duty that ends expired jobs in queues without a worker; one worker of the app at a time."""

from __future__ import annotations

from relevo.engine.duty import Duty
from relevo.engine.engine import Engine
from relevo.engine.workers import take_turn
from relevo.upkeep.deadlines import expiring

#: Seconds between two runs of an app: not urgent, since callers of a request measure the deadline themselves.
EVERY = 60.0


class DeadlineDuty(Duty[int]):
    """Ends expired jobs, as a duty of one worker."""

    name = "deadlines"
    #: Twice per turn, in case the worker whose turn it was has died.
    interval = EVERY / 2

    def __init__(self, engine: Engine, worker: str) -> None:
        self._engine = engine
        self._worker = worker
        self._offsets: dict[str, int] = {}

    async def run_once(self) -> int:
        """Returns the number of ended jobs; 0 if another worker did it in this interval."""
        if not await self._engine.arun(take_turn(self._engine.keys.swept, self._worker, EVERY)):
            return 0
        return await self._engine.arun(expiring(self._engine, self._offsets))
