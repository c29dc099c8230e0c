# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""SAQ."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from saq import Queue, Worker

from bench.adapters.contract import CONCURRENCY, KEEPS_RESULTS, URL, Adapter
from bench.probe import hit

TTL = 600 if KEEPS_RESULTS else -1


async def noop(context: Any, *, i: int, s: str) -> int:
    hit(i)
    return i


class SAQ(Adapter):
    distribution = "saq"
    fill_lanes = 20
    settings = "uvloop, concurrency 100, ttl=-1 without results; results by subscription (apply() polls every 500 ms)"
    reliability = "list of active jobs; every 60 s those past their time limit or heartbeat run again"
    recovers = True
    inflight = (("LLEN", "saq:bench:active"), ("ZCARD", "saq:bench:incomplete"))

    async def open(self) -> None:
        self._queue = Queue.from_url(URL, name="bench")
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def enqueue(self, i: int, s: str) -> None:
        await self._queue.enqueue("noop", i=i, s=s, ttl=TTL)

    async def enqueue_at(self, i: int, s: str, when: float) -> None:
        await self._queue.enqueue("noop", i=i, s=s, ttl=TTL, scheduled=int(when))

    async def call(self, i: int, s: str) -> Any:
        job = await self._queue.enqueue("noop", i=i, s=s, ttl=TTL)
        while not job.completed:
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await job.refresh(1)
        return job.result


async def work() -> None:
    """One worker."""
    queue = Queue.from_url(URL, name="bench")
    await queue.connect()
    await Worker(queue, [noop], concurrency=CONCURRENCY).start()


if __name__ == "__main__":
    import uvloop

    uvloop.run(work())
