"""Detects steps of the server's clock, and repairs a queue's times after it was set back."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from relevo.engine.clock_steps import Replanned, set_back
from relevo.schedules import store as schedules
from relevo.schedules.cron import next_after
from relevo.text.durations import spoken

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.store.aio import AsyncDriver

log = logging.getLogger("relevo.worker")

#: Smaller steps are ignored: they delay jobs only a little.
LEAST_MS = 2000
#: After a longer time without a reply from the server, the repair is left to other workers, which may have done it.
MEMORY = 60.0
SCHEDULES_AT_ONCE = 500


class ServerClock:
    """The clock of one queue's server, compared with this machine's monotonic clock."""

    def __init__(self) -> None:
        #: bounds of the server's time minus ours, in ms
        self._low = self._high = 0.0
        self._seen = 0.0
        #: sum of the steps forward seen so far
        self._ahead = 0.0
        #: server's clock minus this machine's, in ms
        self._skew_ms = 0

    def now_ms(self) -> int:
        """The server's clock, as last set."""
        return int(time.time() * 1000) + self._skew_ms

    def set(self, now_ms: int) -> None:
        """The server's clock shows this now."""
        self._skew_ms = now_ms - int(time.time() * 1000)

    def note(self, sent_at: float, read_at: float, now_ms: int) -> int:
        """The step of the clock, or 0, by the reply `now_ms` to a call at `sent_at`, read by `read_at` (monotonic).

        The reply may have been delayed or unread for any time: only a difference that no delay explains is a step. The
        order of overlapping calls is unknown, so the second of them is ignored.
        """
        if sent_at < self._seen:
            return 0
        low, high = now_ms - read_at * 1000, now_ms - sent_at * 1000
        step = 0.0
        if self._seen and low > self._high + LEAST_MS:
            step = low - self._high
            self._ahead += step
        elif self._seen and high < self._low - LEAST_MS:
            step = high - self._low
        known = read_at - self._seen < MEMORY
        self._low, self._high, self._seen = low, high, read_at
        return round(step) if known else 0

    def missing(self, step_ms: int) -> int:
        """The part of a step back that does not undo earlier steps forward: stored times must move by this."""
        undone = min(self._ahead, float(-step_ms))
        self._ahead -= undone
        return round(-step_ms - undone)


async def repair(engine: Engine, queue: str, driver: AsyncDriver, step_ms: int, now_ms: int, idle_ms: int) -> None:
    """Move stored times by the step, and replan schedules that would be delayed by more than a period."""
    keys = engine.keys_of(queue)
    names = [name for name, home in (await driver.perform(schedules.homes(engine.keys))).items() if home == queue]
    for start in range(0, max(1, len(names)), SCHEDULES_AT_ONCE):
        replanned = []
        for standing in await driver.perform(schedules.look(keys, names[start : start + SCHEDULES_AT_ONCE])):
            next_ms = next_after(standing.schedule.when, now_ms)
            period_ms = next_after(standing.schedule.when, next_ms) - next_ms
            if standing.due_ms and standing.due_ms > next_ms and period_ms < step_ms:
                replanned.append(Replanned(standing.schedule.name, standing.due_ms, next_ms))
        while await driver.perform(
            set_back(keys, step_ms, lease_ms=engine.lease_ms, idle_ms=idle_ms, schedules=replanned)
        ):
            pass


class StepLog:
    """Logs a step of the server's clock once per worker, not once per queue."""

    def __init__(self) -> None:
        self._step_ms = 0
        self._until = 0.0

    def say(self, queue: str, step_ms: int) -> None:
        now = time.monotonic()
        if now > self._until or abs(step_ms - self._step_ms) > LEAST_MS:
            self._step_ms, self._until = step_ms, now + MEMORY
            how = "forward" if step_ms > 0 else "back"
            log.warning("%s: the server's clock was set %s by %s", queue, how, spoken(round(abs(step_ms) / 1000)))
