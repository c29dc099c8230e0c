"""A rolling deploy: workers of two releases serve side by side, and every job goes to one that knows it.

A task gives the number of its delivery: 1 where the first worker took it, 2 after one hand-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo import Job, Relevo
from relevo.errors import JobFailed, RemoteError
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks
from tests.process import harness
from tests.process.harness import Site, WorkerProcess
from tests.process.releases import RELEASE, bill, remind
from tests.servers import Server

TARGET = "tests.process.releases:app"
AT_ONCE = 20
ROUNDS = 5


class Shop(Site):
    """A site whose workers are of the first or the second release."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.prefix = f"b{uuid4().hex[:12]}"
        super().__init__(server, directory, prefix=self.prefix)
        self.app.close()
        self.app = Relevo(self.name, url=server.url, env="test", _clock_key=self.clock, **self._settings)
        self.app.task(name="bill")(bill)
        self.app.task(name="remind")(remind)
        self.queue = self.app.queue()

    def release(self, number: int, count: int = 1) -> list[WorkerProcess]:
        """Workers of a release that wait for jobs."""
        variables = {RELEASE: str(number)}
        found = [self.start(target=TARGET, variables=variables, concurrency=5) for _ in range(count)]
        self.wait_idle(*found)
        return found

    def ask(self, action: str, data: dict[str, Any], count: int = 1) -> list[int]:
        """Requests, some at a time; at which delivery each was answered."""

        async def ask() -> list[int]:
            found: list[int] = []
            front = self.app.service("front")
            for _ in range(0, count, AT_ONCE):
                some = [front.arequest(action, data, timeout=PATIENCE) for _ in range(min(count, AT_ONCE))]
                found += await asyncio.gather(*some)
            await self.app.aclose()
            return found

        return asyncio.run(ask())

    def totals(self, queue: str) -> dict[str, int]:
        """The counters of a queue."""
        return self.app.queue(queue).stats().totals


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Iterator[Shop]:
    with Shop(server, tmp_path) as site:
        yield site
        for worker in site.workers:
            assert worker.was_ended or worker.is_running, worker.log
            assert "Traceback" not in worker.log
            if worker.is_running:
                worker.stop()
        assert leaks(server, site.prefix) == []


@pytest.mark.parametrize("action", ["shop.refund", "shop.charge"])
def test_requests_go_to_a_worker_that_takes_them(shop: Shop, action: str) -> None:
    """A new action, and an argument that is new: beside two old workers, one new one answers everything."""
    shop.release(1, 2)
    shop.release(2)
    data = {"cents": 1, "currency": "USD"} if action == "shop.charge" else {"cents": 1}
    delivered = shop.ask(action, data, AT_ONCE * ROUNDS)
    assert len(delivered) == AT_ONCE * ROUNDS
    assert set(delivered) <= {1, 2}, "at most one hand-over"
    totals = shop.totals("shop:actions")
    assert totals.get("dead", 0) == 0
    assert totals.get("rerouted", 0) == delivered.count(2)


@pytest.mark.parametrize("task", ["remind", "bill"])
def test_jobs_go_to_a_worker_that_takes_them(shop: Shop, task: str) -> None:
    shop.release(1, 2)
    shop.release(2)
    args: tuple[Any, ...] = (1, "USD") if task == "bill" else (1,)
    delivered = []
    for _ in range(ROUNDS):
        some = [shop.app.tasks[task].enqueue(*args) for _ in range(AT_ONCE)]
        delivered += [job.result(timeout=PATIENCE) for job in some]
    assert set(delivered) <= {1, 2}, "at most one hand-over"
    totals = shop.totals("default")
    assert totals.get("dead", 0) == totals.get("retry", 0) == 0
    assert totals.get("rerouted", 0) == delivered.count(2)


def test_jobs_wait_for_a_release_that_knows_them(shop: Shop) -> None:
    shop.release(1)
    some: list[Job[Any]] = [shop.app.tasks["remind"].enqueue(1) for _ in range(AT_ONCE)]
    eventually(lambda: shop.totals("default").get("rerouted", 0) == AT_ONCE, what="no worker knows them")
    assert some[0].info().held_up == "no live worker knows task 'remind'"
    assert "default: no live worker knows task 'remind', 20 jobs waiting" in [
        reason.text for reason in shop.app.health().reasons
    ]
    shop.release(2)
    assert [job.result(timeout=PATIENCE) for job in some] == [2] * AT_ONCE


def test_what_no_live_worker_takes_is_refused(shop: Shop) -> None:
    shop.release(1)
    (new,) = shop.release(2)
    assert shop.app.tasks["bill"].enqueue(1, "USD").result(timeout=PATIENCE) in (1, 2)
    assert new.stop() == 0
    with pytest.raises(JobFailed, match="bad_arguments"):
        shop.app.tasks["bill"].enqueue(1, "USD").result(timeout=PATIENCE)
    with pytest.raises(RemoteError):
        shop.ask("shop.charge", {"cents": 1, "currency": "USD"})
    assert shop.app.tasks["bill"].enqueue(1).result(timeout=PATIENCE) == 1


def test_jobs_that_were_handed_to_a_worker_that_is_killed_go_to_the_next_one(shop: Shop) -> None:
    shop.release(1)
    (new,) = shop.release(2)
    some = [shop.app.tasks["remind"].enqueue(n) for n in range(AT_ONCE * ROUNDS)]
    new.kill()
    shop.release(2)
    shop.move(harness.AFTER_LEASES)
    shop.release(1)
    assert all(job.result(timeout=PATIENCE) >= 1 for job in some)
