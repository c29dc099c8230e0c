"""Long jobs whose worker is stopped or killed in the middle: another one goes on where they were."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from relevo import State
from tests.eventually import PATIENCE, aeventually, eventually
from tests.process import checkpoint_tasks, harness, jobs, process_tasks
from tests.process.checkpoint_tasks import number
from tests.process.harness import Site, is_gone
from tests.process.test_processes import Pool, run_of
from tests.servers import Server

#: The tasks, by the number of their job: on the event loop, in a thread, in a child process.
TASKS = {1: "nap", 2: "work", 3: "work_apart"}
TOTAL = 100
#: Items that wait for the test.
GATES = (20, 60)


@pytest.fixture(autouse=True)
def with_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of these tests import tasks of their own."""
    monkeypatch.setattr(harness, "TARGET", "tests.process.checkpoint_tasks:app")
    monkeypatch.setattr(jobs, "build", checkpoint_tasks.build)


def enqueue(site: Site, numbers: Iterable[int], *, every: float, gates: tuple[int, ...] = GATES) -> None:
    for n in numbers:
        site.enqueue(TASKS[n], n, TOTAL, every, list(gates))


def wait_at(site: Site, item: int, numbers: Iterable[int]) -> None:
    """Until these jobs wait at an item."""
    for n in numbers:
        site.wait_effect("item", number(n, item))


def open_at(site: Site, item: int, numbers: Iterable[int]) -> None:
    site.open(*(number(n, item) for n in numbers))


def items_twice(site: Site, n: int) -> dict[int, int]:
    """Items of a job that were worked on more than once; all items were worked on."""
    found = Counter(effect.n - number(n, 0) for effect in site.effects("item") if effect.n // 1000 == n)
    assert set(found) == set(range(TOTAL))
    return {item: times for item, times in found.items() if times > 1}


def test_after_sigterm_the_next_worker_goes_on_and_nothing_is_done_twice(server: Server, tmp_path: Path) -> None:
    """Twice in a row, at once although the grace time is long, and no attempt is spent."""
    with Site(server, tmp_path, grace="1h") as site:
        enqueue(site, TASKS, every=3600)
        for at, supervised in zip(GATES, (False, True), strict=True):
            worker = site.start(supervised=supervised)
            wait_at(site, at, TASKS)
            worker.was_ended = True
            worker.signal(signal.SIGTERM)
            worker.wait_log("stopping: 3 jobs")
            open_at(site, at, TASKS)
            assert worker.process.wait(PATIENCE) == 0
            for n, job in site.acknowledged.items():
                assert job.state() is State.READY, TASKS[n]
                assert job.info().attempts == ()
        site.drain()
        site.check(duplicates=6)
        for n, job in site.acknowledged.items():
            assert len(site.effects("start", n)) == 3
            assert items_twice(site, n) == {}
            [begun] = site.effects("begin", n)
            assert job.result(timeout=PATIENCE) == begun.pid


def test_after_a_kill_only_the_item_in_hand_comes_again(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path) as site:
        enqueue(site, TASKS, every=0)
        for at in GATES:
            worker = site.start()
            wait_at(site, at, TASKS)
            worker.kill()
            eventually(lambda: all(is_gone(effect.pid) for effect in site.effects("item")), what="its child ends")
            open_at(site, at, TASKS)
            site.move("61s")
        site.drain()
        site.check(duplicates=6)
        for n, job in site.acknowledged.items():
            assert items_twice(site, n) == dict.fromkeys(GATES, 2)
            assert len(site.effects("begin", n)) == 1
            assert [attempt.how for attempt in job.info().attempts] == ["lost", "lost"]


def test_job_goes_on_after_its_own_process_was_killed(server: Server, tmp_path: Path) -> None:
    """executor="process": the child dies, its worker lives."""
    with Site(server, tmp_path) as site, site.working():
        enqueue(site, [3], every=0, gates=(20,))
        child = site.wait_effect("item", number(3, 20)).pid
        os.kill(child, signal.SIGKILL)
        open_at(site, 20, [3])
        site.check(again={3})
        assert items_twice(site, 3) == {20: 2}
        assert len({effect.pid for effect in site.effects("item")}) == 2


def test_frozen_worker_that_comes_back_stops_at_its_next_checkpoint(server: Server, tmp_path: Path) -> None:
    """And it does not overwrite how far the other one is."""
    both = (1, 2)
    with Site(server, tmp_path) as site:
        zombie = site.start()
        enqueue(site, both, every=0)
        wait_at(site, 20, both)
        zombie.signal(signal.SIGSTOP)
        open_at(site, 20, both)
        site.move("61s")
        with site.working():
            wait_at(site, 60, both)
            zombie.signal(signal.SIGCONT)
            eventually(lambda: len(zombie.lines("WARNING")) >= 2, what="the jobs are not its own any more")
            open_at(site, 60, both)
            site.check(again=both)
        for n in both:
            # The item in hand when it was frozen, and perhaps the one after it.
            assert items_twice(site, n) in ({20: 2}, {20: 2, 21: 2})
            assert len(site.effects("begin", n)) == 1


async def test_late_request_to_pause_does_not_affect_a_later_attempt() -> None:
    """Of a job without checkpoints, which ends as it would have without the request."""
    pool = Pool(1)
    try:
        run = run_of(process_tasks.wait_a_little)
        pool.submit(run)
        await aeventually(lambda: pool.started)
        for _ in range(3):
            pool.processes.ask_to_pause(run)
        assert (await pool.end_of(run))[2] is None
        pool.processes.ask_to_pause(run)  # it has ended
        assert await pool.result(process_tasks.add, 1, 2) == 3
    finally:
        pool.processes.close()
