# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""BullMQ's Python port."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bullmq import Queue, QueueEvents, Worker

from bench.adapters.contract import CONCURRENCY, KEEPS_RESULTS, PORT, Adapter
from bench.probe import hit

# redis-py 8 ends a read after 5 s by default; its worker then never starts a job that is delayed by more than that.
CONNECTION = {"host": "127.0.0.1", "port": PORT, "socket_timeout": None}
OPTIONS = {"removeOnComplete": not KEEPS_RESULTS}


async def noop(job: Any, token: str) -> int:
    number: int = job.data["i"]
    hit(number)
    return number


def _rows(jobs: list[tuple[int, str]], options: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "noop", "data": {"i": i, "s": s}, "opts": options} for i, s in jobs]


def _due(when: float) -> dict[str, Any]:
    return {**OPTIONS, "delay": max(1, round((when - time.time()) * 1000))}


class BullMQ(Adapter):
    distribution = "bullmq"
    bulk = 1000
    bulk_at = 1000
    settings = "Python port, uvloop, concurrency 100, socket_timeout=None, removeOnComplete; results by QueueEvents"
    reliability = "lock per job, renewed; a stalled job runs again after 30 s"
    recovers = True
    inflight = (("LLEN", "bull:bench:active"), ("LLEN", "bull:bench:wait"), ("ZCARD", "bull:bench:delayed"))

    async def open(self) -> None:
        self._queue = Queue("bench", {"connection": CONNECTION})
        self._events: Any = None
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._early: dict[str, Any] = {}  # an end may be told before `add` has given the job's id

    async def close(self) -> None:
        if self._events:
            await self._events.close()
        await self._queue.close()

    async def enqueue(self, i: int, s: str) -> None:
        await self._queue.add("noop", {"i": i, "s": s}, OPTIONS)

    async def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> None:
        await self._queue.addBulk(_rows(jobs, OPTIONS))

    async def enqueue_at(self, i: int, s: str, when: float) -> None:
        await self._queue.add("noop", {"i": i, "s": s}, _due(when))

    async def enqueue_at_bulk(self, jobs: list[tuple[int, str]], when: float) -> None:
        await self._queue.addBulk(_rows(jobs, _due(when)))

    async def call(self, i: int, s: str) -> int:
        if self._events is None:
            self._events = QueueEvents("bench", {"connection": CONNECTION})
            self._events.on("completed", self._completed)
            await asyncio.sleep(0.5)  # it has no way to say that it listens now
        job = await self._queue.add("noop", {"i": i, "s": s}, OPTIONS)
        if job.id in self._early:
            return int(self._early.pop(job.id))
        told = self._waiting[job.id] = asyncio.get_running_loop().create_future()
        return int(await asyncio.wait_for(told, 15))

    def _completed(self, told: dict[str, Any], _: str) -> None:
        waiting = self._waiting.pop(told["jobId"], None)
        if waiting is None:
            self._early[told["jobId"]] = told["returnvalue"]
        else:
            waiting.set_result(told["returnvalue"])


async def work() -> None:
    """One worker."""
    await Worker("bench", noop, {"connection": CONNECTION, "concurrency": CONCURRENCY, "autorun": False}).run()


if __name__ == "__main__":
    import uvloop

    uvloop.run(work())
