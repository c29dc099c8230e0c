# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""Celery on Redis, with the thread pool."""

from __future__ import annotations

import datetime
from typing import Any

import celery

from bench.adapters.contract import KEEPS_RESULTS, URL, Adapter, program
from bench.probe import hit

app = celery.Celery("bench", broker=URL, backend=URL if KEEPS_RESULTS else None)
app.conf.update(
    task_ignore_result=not KEEPS_RESULTS,
    result_expires=3600,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(i: int, s: str) -> int:
    hit(i)
    return i


class Celery(Adapter):
    distribution = "celery"
    is_async = False
    settings = "--pool threads -c 100, the fastest pool; without gossip, mingle, heartbeat and events; JSON"
    reliability = "acknowledged when a job starts (default): a dead worker loses what it runs"
    inflight = (("HLEN", "unacked"),)

    def enqueue(self, i: int, s: str) -> None:
        noop.delay(i, s)

    def enqueue_at(self, i: int, s: str, when: float) -> None:
        noop.apply_async((i, s), eta=datetime.datetime.fromtimestamp(when, datetime.UTC))

    def call(self, i: int, s: str) -> Any:
        return noop.delay(i, s).get(timeout=15)

    def worker(self) -> list[str]:
        options = ["--pool", "threads", "-c", "100", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        return [program("celery"), "-A", "bench.adapters.celery", "worker", *options, "-l", "WARNING"]
