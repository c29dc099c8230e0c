# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""Huey on its list storage, with the thread worker."""

from __future__ import annotations

import time
from typing import Any

from huey import RedisHuey

from bench.adapters.contract import KEEPS_RESULTS, URL, Adapter, program
from bench.probe import hit

huey = RedisHuey("bench", url=URL, results=KEEPS_RESULTS, notify_result=KEEPS_RESULTS)


@huey.task(name="noop")
def noop(i: int, s: str) -> int | None:
    hit(i)
    return i if KEEPS_RESULTS else None


class Huey(Adapter):
    distribution = "huey"
    is_async = False
    settings = "RedisHuey (list, BRPOP), -k thread -w 8, the fastest number of threads; notify_result with results"
    reliability = "none: a job is popped before it runs, a dead worker loses it"

    def enqueue(self, i: int, s: str) -> None:
        noop(i, s)

    def enqueue_at(self, i: int, s: str, when: float) -> None:
        noop.schedule((i, s), delay=max(0.001, when - time.time()))

    def call(self, i: int, s: str) -> Any:
        return noop(i, s).get(blocking=True, timeout=15)

    def worker(self) -> list[str]:
        return [program("huey_consumer"), "bench.adapters.huey.huey", "-k", "thread", "-w", "8", "-q"]
