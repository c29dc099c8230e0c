"""relevo through its public API: async code with async tasks, and plain code with plain functions."""

from __future__ import annotations

import datetime
import sys
from typing import Any

from bench.adapters.contract import CONCURRENCY, Adapter
from bench.adapters.relevo_tasks import app, noop, noop_plain
from bench.adapters.relevo_work import Work


def _calls(jobs: list[tuple[int, str]]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [(job, {}) for job in jobs]


def _eta(when: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(when, datetime.UTC)


class _Relevo(Adapter):
    distribution = "relevo"
    bulk = 1_000
    bulk_at = 1_000
    reliability = "lease per job, renewed and fenced; a dead worker's job runs again within 15 s"
    recovers = True

    def worker(self) -> list[str]:
        command = [sys.executable, "-m", "relevo.cli.main", "worker", "bench.adapters.relevo_tasks:app"]
        return [*command, "-c", str(CONCURRENCY), "--log-level", "WARNING"]


class Async(Work, _Relevo):
    """`await task.aenqueue(…)`, async tasks."""

    settings = "async API, async tasks; relevo worker -c 100, uvloop; lists of 1,000 in bulk"

    async def close(self) -> None:
        await app.aclose()

    async def enqueue(self, i: int, s: str) -> None:
        await noop.aenqueue(i, s)

    async def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> None:
        await noop.aenqueue_many(_calls(jobs))

    async def enqueue_at(self, i: int, s: str, when: float) -> None:
        await noop.using(eta=_eta(when)).aenqueue(i, s)

    async def enqueue_at_bulk(self, jobs: list[tuple[int, str]], when: float) -> None:
        await noop.using(eta=_eta(when)).aenqueue_many(_calls(jobs))

    async def call(self, i: int, s: str) -> int:
        job = await noop.aenqueue(i, s)
        return await job.aresult(timeout=15)

    async def unfinished(self) -> int:
        return (await app.queue().astats()).living


class Blocking(_Relevo):
    """`task.enqueue(…)`, plain functions in threads."""

    is_async = False
    settings = "blocking API, plain functions in threads; relevo worker -c 100, uvloop; lists of 1,000 in bulk"

    def close(self) -> None:
        app.close()

    def enqueue(self, i: int, s: str) -> None:
        noop_plain.enqueue(i, s)

    def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> None:
        noop_plain.enqueue_many(_calls(jobs))

    def enqueue_at(self, i: int, s: str, when: float) -> None:
        noop_plain.using(eta=_eta(when)).enqueue(i, s)

    def enqueue_at_bulk(self, jobs: list[tuple[int, str]], when: float) -> None:
        noop_plain.using(eta=_eta(when)).enqueue_many(_calls(jobs))

    def call(self, i: int, s: str) -> int:
        return noop_plain.enqueue(i, s).result(timeout=15)

    def unfinished(self) -> int:
        return app.queue().stats().living
