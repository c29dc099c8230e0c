"""The wake-up read: an idle worker blocks on the server and starts the job it is handed, without asking for it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from relevo.errors import StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.wire import Wire
from relevo.worker.lane import Lane

log = logging.getLogger("relevo.worker")

#: Seconds one read blocks. With the margin, a second to notice and one before the next connection, a worker whose
#: connections went silent works again within 13 s.
BLOCK = 8
MARGIN = 3.0


class Bell:
    """Listens for some lanes on a connection of its own: a blocked read would hold up everybody else's calls."""

    def __init__(self, driver: AsyncDriver, worker: str, lanes: Sequence[Lane]) -> None:
        self._driver = driver
        self._lanes = {lane.keys.bell(worker): lane for lane in lanes}

    async def run(self) -> None:
        """Listen until cancelled."""
        keys = list(self._lanes)
        wire: Wire | None = None
        try:
            while True:
                try:
                    if wire is None or wire.closed is not None:
                        wire = await self._driver.open(keys[0], timeout=BLOCK + MARGIN)
                        self._ask_all()  # what was rung while nobody listened
                    rung = await wire.request((b"BLPOP", *keys, BLOCK))
                except StoreError as error:
                    log.debug("bell: %s", error)
                    if wire is not None:
                        wire.close()
                    wire = None
                    self._driver.forget()
                    await asyncio.sleep(random.uniform(0.1, 1.0))
                    continue
                if rung is not None:
                    self._lanes[rung[0]].bell(rung[1])
        finally:
            if wire is not None:
                wire.close()

    def _ask_all(self) -> None:
        for lane in self._lanes.values():
            lane.wake()
