"""Notices queues for which a worker has had no free slot for a while although jobs wait.

Jobs that do not end have taken all slots. It costs running jobs nothing: it looks once a second.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from msgspec import Struct

from relevo.engine.duty import Duty
from relevo.store.plan import Call
from relevo.text.durations import spoken

if TYPE_CHECKING:
    from relevo.worker.consumer import Consumer
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Seconds without a job that ends, after which a queue without a free slot counts as full. A busy worker has no free
#: slot at any moment, but a job ends many times a second.
FULL_AFTER = 5.0
#: Seconds between two lines of the log about one queue.
LOGGED_EVERY = 60.0


class _Standing(Struct):
    """A queue that has no free slot."""

    #: monotonic time since when no job of it has ended, and how many had ended by then
    since: float
    ended: int
    #: since when by the server's clock, once it counts as full
    full_ms: int = 0


class SlotsDuty(Duty[dict[str, int]]):
    """One for each worker. The worker's record names the queues that are full."""

    name = "slots"
    interval = 1.0

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._driver = worker.engine.client.driver()
        self._standing: dict[str, _Standing] = {}
        self._logged_at: dict[str, float] = {}

    async def run_once(self) -> dict[str, int]:
        """Look at each queue; returns those that are full, and since when by the server's clock."""
        for consumer in self._worker.consumers:
            await self._look_at(consumer)
        found = {queue: one.full_ms for queue, one in self._standing.items() if one.full_ms}
        self._worker.full = found
        return found

    async def _look_at(self, consumer: Consumer) -> None:
        capacity, queue, now = self._worker.capacity, consumer.queue, time.monotonic()
        if consumer.is_resting or self._worker.is_stopping or capacity.free(consumer) > 0:
            self._standing.pop(queue, None)
            return
        ended, standing = capacity.ended(consumer), self._standing.get(queue)
        if standing is None or standing.ended != ended:
            self._standing[queue] = _Standing(now, ended)
        elif not standing.full_ms and now - standing.since >= FULL_AFTER:
            call = Call([b"ZCOUNT", consumer.keys.key("ready"), b"-inf", b"+inf"], int)
            if waiting := await self._driver.perform(call, patience=0):
                standing.full_ms = consumer.now_ms() - round((now - standing.since) * 1000)
                self._log(consumer, now - standing.since, waiting)

    def _log(self, consumer: Consumer, seconds: float, waiting: int) -> None:
        queue, now = consumer.queue, time.monotonic()
        if now - self._logged_at.get(queue, -LOGGED_EVERY) < LOGGED_EVERY:
            return
        self._logged_at[queue] = now
        own = f", slots of its own (-Q {queue}:N)" if len(self._worker.queues) > 1 else ""
        log.warning(
            "%s: all of its %d slots are taken, no job has ended for %s, %d wait: more slots (-c)%s, "
            "more workers, or a timeout for its tasks would help",
            queue, self._worker.capacity.most(consumer), spoken(round(seconds)), waiting, own,
        )  # fmt: skip
