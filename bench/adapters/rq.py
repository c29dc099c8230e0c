# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""RQ, with the worker that does not fork for every job."""

from __future__ import annotations

import datetime
from typing import Any

from redis import Redis
from rq import Queue, SimpleWorker

from bench.adapters.contract import KEEPS_RESULTS, NEEDS_DELAYED, URL, Adapter
from bench.probe import hit

TTL = 500 if KEEPS_RESULTS else 0


def noop(i: int, s: str) -> int:
    hit(i)
    return i


class RQ(Adapter):
    distribution = "rq"
    is_async = False
    bulk = 500
    settings = "SimpleWorker, one job at a time; result_ttl=0 without results; scheduler process for delayed jobs"
    reliability = "heartbeat; the job of a dead worker is found and marked as failed, not run again"
    inflight = (("ZCARD", "rq:wip:bench"),)

    def open(self) -> None:
        self._queue = Queue("bench", connection=Redis.from_url(URL))

    def enqueue(self, i: int, s: str) -> Any:
        return self._queue.enqueue(noop, i, s, result_ttl=TTL)

    def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> None:
        self._queue.enqueue_many([Queue.prepare_data(noop, args=job, result_ttl=TTL) for job in jobs])

    def enqueue_at(self, i: int, s: str, when: float) -> None:
        due = datetime.datetime.fromtimestamp(when, datetime.UTC)
        self._queue.enqueue_at(due, noop, i, s, result_ttl=TTL)

    def call(self, i: int, s: str) -> Any:
        return self.enqueue(i, s).latest_result(timeout=15).return_value


def work() -> None:
    """One worker."""
    connection = Redis.from_url(URL)
    queues = [Queue("bench", connection=connection)]
    worker = SimpleWorker(queues, connection=connection, log_job_description=False)
    worker.work(logging_level="WARNING", with_scheduler=NEEDS_DELAYED)


if __name__ == "__main__":
    work()
