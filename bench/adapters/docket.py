# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-any-return"
"""docket (pydocket)."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import docket

from bench.adapters.contract import CONCURRENCY, KEEPS_RESULTS, URL, Adapter
from bench.probe import hit


async def noop(i: int, s: str) -> int:
    hit(i)
    return i


def _docket() -> Any:
    # A hundred jobs at once use up the default pool of a hundred connections, and then fail.
    kept = datetime.timedelta(minutes=10 if KEEPS_RESULTS else 0)
    made = docket.Docket(name="bench", url=URL + "?max_connections=1000", execution_ttl=kept)
    made.register(noop)
    return made


class Docket(Adapter):
    distribution = "pydocket"
    bulk = 1000
    bulk_at = 1000
    settings = (
        "uvloop, concurrency 100, minimum_check_interval=5 ms (a full worker sleeps so long; the default is 250 ms), "
        "max_connections=1000, execution_ttl=0 without results; add_many in bulk"
    )
    reliability = "pending list of the stream with leases; a dead worker's job runs again after 5 minutes (default)"
    recovers = True
    inflight = (("XLEN", "bench:stream"), ("ZCARD", "bench:queue"))

    async def open(self) -> None:
        self._docket = await _docket().__aenter__()

    async def close(self) -> None:
        await self._docket.__aexit__(None, None, None)

    async def enqueue(self, i: int, s: str) -> None:
        await self._docket.add("noop")(i, s)

    async def enqueue_bulk(self, jobs: list[tuple[int, str]]) -> None:
        await self._docket.add_many(self._docket.call("noop")(i, s) for i, s in jobs)

    async def enqueue_at(self, i: int, s: str, when: float) -> None:
        await self._docket.add("noop", when=_due(when))(i, s)

    async def enqueue_at_bulk(self, jobs: list[tuple[int, str]], when: float) -> None:
        await self._docket.add_many(self._docket.call("noop", when=_due(when))(i, s) for i, s in jobs)

    async def call(self, i: int, s: str) -> Any:
        execution = await self._docket.add("noop")(i, s)
        return await execution.get_result(timeout=datetime.timedelta(seconds=15))


def _due(when: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(when, datetime.UTC)


async def work() -> None:
    """One worker."""
    often = datetime.timedelta(milliseconds=5)
    async with (
        _docket() as shared,
        docket.Worker(shared, concurrency=CONCURRENCY, minimum_check_interval=often) as worker,
    ):
        await worker.run_forever()


if __name__ == "__main__":
    import uvloop

    logging.basicConfig(level=logging.WARNING)
    uvloop.run(work())
