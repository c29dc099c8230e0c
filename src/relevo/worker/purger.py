"""A worker purges its app's queues and pools, by the settings, in turn with the other workers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

from relevo.errors import StoreError
from relevo.purging import PurgeReport, aperformed, purging
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo


class Purger:
    """The purge as a duty of one worker."""

    def __init__(self, app: Relevo, worker: str) -> None:
        self._app = app
        self._worker = worker

    async def run(self) -> None:
        """Purge when it is time, for ever. Looks more often than that, for whoever was to do it may have died."""
        every = self._app.settings.purge_every
        while True:
            await asyncio.sleep(min(60.0, every / 4) * random.uniform(0.5, 1.0))
            with contextlib.suppress(StoreError):
                await self.run_once()

    async def run_once(self) -> PurgeReport | None:
        """Purge, or only tell what would be; None if somebody did so in this interval already."""
        settings = self._app.settings
        lock: list[bytes | str | int] = [b"SET", self._app.keys.purged, self._worker, b"NX"]
        if not await self._app.arun(Call([*lock, b"PX", max(1, round(settings.purge_every * 1000))])):
            return None
        return await aperformed(self._app, purging(self._app, dry_run=settings.purge == "observe"))
