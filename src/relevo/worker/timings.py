"""Wait and run times of jobs, summed in memory and written to the server every few seconds.

Adding costs a job well under a microsecond. A killed worker loses unwritten sums of about five seconds, which
is acceptable for statistics.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from relevo.engine.duty import Duty
from relevo.engine.ids import looks_like_id, made_ms
from relevo.errors import StoreError
from relevo.metrics.timing_store import PART, measure
from relevo.metrics.timings import BOUNDS, FAILED, NAME_MOST, OTHER, RAN, WAITED, WAITS, Sums, add, no_sums

if TYPE_CHECKING:
    from relevo.store.aio import AsyncDriver
    from relevo.store.keys import QueueKeys
    from relevo.worker.consumer import Consumer
    from relevo.worker.run import Run

#: Tasks of one queue with their own sums here; the store has a lower limit.
MOST_TASKS = 200


class Timings:
    """The timings of one consumer. All of it happens on the loop."""

    __slots__ = ("_keys", "_made", "_prefix", "_tasks", "ahead")

    def __init__(self, keys: QueueKeys) -> None:
        self._keys = keys
        self._tasks: dict[str, Sums] = {}
        # Cache: jobs that were made together have the same time in their ids.
        self._prefix, self._made = "", 0.0
        #: seconds by which the server's clock is ahead of the monotonic one
        self.ahead = time.time() - monotonic()

    def note(self, run: Run, *, is_failure: bool = False) -> None:
        """Add a run that has ended."""
        started = run.started
        if not started:
            return  # its function was never called
        target = run.task.target
        sums = self._tasks.get(target) or self._room_for(target)
        took = monotonic() - started
        sums[bisect_left(BOUNDS, took)] += 1
        sums[RAN] += took
        if is_failure:
            sums[FAILED] += 1
        held = run.held
        envelope = held.envelope
        if held.token != 1 or envelope is None or envelope.flow or envelope.takes == "taken" or envelope.later_ms == 0:
            return  # it also waited for a retry delay, for recovery, or for its parents
        id = held.id
        if id[:9] != self._prefix:
            self._prefix, self._made = id[:9], made_ms(id) / 1000 if looks_like_id(id) else started + self.ahead
        waited = started + self.ahead - self._made
        if envelope.later_ms is not None:
            waited -= envelope.later_ms / 1000
        sums[WAITS + bisect_left(BOUNDS, waited)] += 1
        if waited > 0:  # clocks differ
            sums[WAITED] += waited

    def _room_for(self, target: str) -> Sums:
        if len(self._tasks) >= MOST_TASKS or len(target) > NAME_MOST:
            target = OTHER
        return self._tasks.setdefault(target, no_sums())

    async def write(self, driver: AsyncDriver) -> None:
        """Write the sums to the server. After an error they are written again and may count twice."""
        tasks, self._tasks = self._tasks, {}
        rows = list(tasks.items())
        for start in range(0, len(rows), PART):
            try:
                await driver.perform(measure(self._keys, rows[start : start + PART]), patience=0)
            except BaseException:
                for target, sums in rows[start:]:
                    add(self._tasks.setdefault(target, no_sums()), sums)
                raise


class TimingsDuty(Duty[None]):
    """Writes the sums of all consumers; they are kept while the server cannot be reached."""

    name = "timings"
    #: Scrapes come every 15 seconds or more.
    interval = 5.0

    def __init__(self, consumers: Sequence[Consumer], driver: AsyncDriver) -> None:
        self._consumers = consumers
        self._driver = driver

    async def run_once(self) -> None:
        """Write them."""
        failed: StoreError | None = None
        for consumer in self._consumers:
            try:
                await consumer.timings.write(self._driver)
            except StoreError as error:  # queues of a cluster may be on other nodes
                failed = error
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """Write the last ones."""
        await self.run_once()
