"""Failed attempts of tasks that have a breaker, told to the server before the next turn asks for more of them."""

from __future__ import annotations

import logging

from relevo.engine.breaker import Breaker
from relevo.engine.job import Attempt
from relevo.engine.outcome import End, Outcome, TryAgain
from relevo.engine.pauses import LONGEST_TEXT, note_of
from relevo.limits.limit import TASK
from relevo.limits.store import adopt_all, trip
from relevo.store.aio import AsyncDriver
from relevo.store.keys import QueueKeys
from relevo.text.durations import spoken

log = logging.getLogger("relevo.worker")


class BreakerObserver:
    """Counts for one queue. Tasks without a breaker, and attempts that go well, never come here."""

    def __init__(self, keys: QueueKeys, queue: str, driver: AsyncDriver) -> None:
        self._keys = keys
        self._queue = queue
        self._driver = driver
        #: task -> its breaker, attempts that failed since the last telling, and the last of them
        self.failed: dict[str, tuple[Breaker, int, Attempt]] = {}

    def count(self, task: str, breaker: Breaker, outcome: Outcome) -> None:
        """An attempt failed."""
        last = outcome.story.last if isinstance(outcome, TryAgain | End) else Attempt("")
        self._add(task, breaker, 1, last)

    def _add(self, task: str, breaker: Breaker, count: int, last: Attempt) -> None:
        before = self.failed[task][1] if task in self.failed else 0
        self.failed[task] = (breaker, before + count, last)

    async def tell(self) -> None:
        """Tell the server; what cannot be told is told with the next turn."""
        while self.failed:
            # Taken out first: what fails while this is told is told next.
            task, (breaker, count, last) = self.failed.popitem()
            why = "".join(c if c.isprintable() else " " for c in f"{breaker} failed, last {last.words}")
            note = note_of(why[:LONGEST_TEXT], "breaker")
            try:
                probe_ms = await self._driver.perform(trip(self._keys, task, count, breaker, note), patience=0)
            except BaseException:
                self._add(task, breaker, count, last)
                raise
            if probe_ms:
                log.warning(
                    "%s: the breaker of %s opens for %s or more: %s", self._queue, task, spoken(breaker.rest), why
                )
                await self._driver.perform(adopt_all(self._keys, TASK + task), patience=0)
