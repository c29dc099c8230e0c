"""Reports to the supervisor that the event loop of this process runs and that the server answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.engine.duty import Duty
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.worker.ledger import Ledger

#: Seconds between two beats, and without a beat until the supervisor considers a process unhealthy.
EVERY = 2.0
FRESH = 3 * EVERY


class Pulse(Duty[None]):
    """The pulse as a duty."""

    name = "pulse"
    interval = EVERY
    first = 0.0

    def __init__(self, engine: Engine, ledger: Ledger) -> None:
        self._driver = engine.client.driver()
        self._ledger = ledger

    async def run_once(self) -> None:
        """Ping the server and record its answer."""
        await self._driver.perform(Call([b"PING"]), patience=0)
        self._ledger.pulse()
