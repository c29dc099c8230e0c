# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""Dramatiq on its Redis broker, with one process of threads."""

from __future__ import annotations

import time
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.adapters.contract import KEEPS_RESULTS, URL, Adapter, program
from bench.probe import hit

broker = RedisBroker(url=URL)
if KEEPS_RESULTS:
    from dramatiq.results import Results
    from dramatiq.results.backends import RedisBackend

    broker.add_middleware(Results(backend=RedisBackend(url=URL), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(i: int, s: str) -> int | None:
    hit(i)
    return i if KEEPS_RESULTS else None


class Dramatiq(Adapter):
    distribution = "dramatiq"
    is_async = False
    settings = "-p 1 -t 32, the fastest number of threads (the default 8 reaches a third); default middleware"
    reliability = "acknowledged after the job; those of a worker without heartbeat run again after 60 s"
    recovers = True
    inflight = (("HLEN", "dramatiq:default.msgs"), ("HLEN", "dramatiq:default.DQ.msgs"))

    def enqueue(self, i: int, s: str) -> None:
        noop.send(i, s)

    def enqueue_at(self, i: int, s: str, when: float) -> None:
        noop.send_with_options(args=(i, s), delay=max(1, round((when - time.time()) * 1000)))

    def call(self, i: int, s: str) -> Any:
        return noop.send(i, s).get_result(block=True, timeout=15_000)

    def worker(self) -> list[str]:
        return [program("dramatiq"), "-p", "1", "-t", "32", "bench.adapters.dramatiq"]
