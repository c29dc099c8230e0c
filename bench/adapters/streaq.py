# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""streaq."""

from __future__ import annotations

import datetime
from typing import Any

import streaq

from bench.adapters.contract import CONCURRENCY, KEEPS_RESULTS, URL, Adapter
from bench.probe import hit

worker = streaq.Worker(redis_url=URL, concurrency=CONCURRENCY, anyio_kwargs={"use_uvloop": True})


@worker.task(name="noop", ttl=300 if KEEPS_RESULTS else 0, silent=True)
async def noop(i: int, s: str) -> int:
    hit(i)
    return i


class Streaq(Adapter):
    distribution = "streaq"
    bulk = 1000
    bulk_at = 1000
    settings = "uvloop, concurrency 100, pickle, silent, ttl=0 without results; enqueue_many in bulk"
    reliability = "pending list of the stream; jobs that are idle for 60 s are claimed by another worker"
    recovers = True
    inflight = (("XLEN", "streaq:default:queues:normal"), ("ZCARD", "streaq:default:queues:delayed:normal"))

    async def open(self) -> None:
        await worker.__aenter__()

    async def close(self) -> None:
        await worker.__aexit__(None, None, None)

    async def enqueue(self, i: int, s: str) -> None:
        await noop.enqueue(i, s)

    async def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> None:
        await worker.enqueue_many([noop.enqueue(i, s) for i, s in jobs])

    async def enqueue_at(self, i: int, s: str, when: float) -> None:
        await noop.enqueue(i, s).start(schedule=_due(when))

    async def enqueue_at_bulk(self, jobs: list[tuple[int, str]], when: float) -> None:
        await worker.enqueue_many([noop.enqueue(i, s).start(schedule=_due(when)) for i, s in jobs])

    async def call(self, i: int, s: str) -> Any:
        task = await noop.enqueue(i, s)
        return (await task.result(timeout=15)).result


def _due(when: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(when, datetime.UTC)


if __name__ == "__main__":
    # Its jobs carry the module of their task, so the worker must be the one of this module's real name.
    import logging

    from bench.adapters import streaq as real

    logging.basicConfig(level=logging.WARNING)
    real.worker.run_sync()
