# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""arq."""

from __future__ import annotations

import datetime
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker

from bench.adapters.contract import CONCURRENCY, KEEPS_RESULTS, URL, Adapter
from bench.probe import hit


async def noop(context: dict[str, Any], i: int, s: str) -> int:
    hit(i)
    return i


class Arq(Adapter):
    distribution = "arq"
    settings = (
        "uvloop, max_jobs=100, poll_delay=50 ms (the default of 500 ms halves its drain and may start jobs so late), "
        "keep_result=0 without results; results looked for every 5 ms"
    )
    reliability = "in-progress key with a time limit; the job of a dead worker runs again after 310 s"
    recovers = True
    inflight = (("ZCARD", "arq:queue"),)

    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(URL))

    async def close(self) -> None:
        await self._pool.aclose()

    async def enqueue(self, i: int, s: str) -> None:
        await self._pool.enqueue_job("noop", i, s)

    async def enqueue_at(self, i: int, s: str, when: float) -> None:
        due = datetime.datetime.fromtimestamp(when, datetime.UTC)
        await self._pool.enqueue_job("noop", i, s, _defer_until=due)

    async def call(self, i: int, s: str) -> Any:
        job = await self._pool.enqueue_job("noop", i, s)
        return await job.result(timeout=15, poll_delay=0.005)


def work() -> None:
    """One worker."""
    import uvloop

    uvloop.install()
    Worker(
        functions=[noop],
        redis_settings=RedisSettings.from_dsn(URL),
        max_jobs=CONCURRENCY,
        keep_result=3600 if KEEPS_RESULTS else 0,
        poll_delay=0.05,
    ).run()


if __name__ == "__main__":
    work()
