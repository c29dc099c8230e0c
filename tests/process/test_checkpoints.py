"""Long jobs whose worker is stopped or killed in the middle: another one goes on where they were."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from relevo import State
from tests.eventually import aeventually
from tests.process import checkpoint_tasks, harness, jobs, process_tasks
from tests.process.harness import Site
from tests.process.test_processes import Pool, run_of
from tests.servers import Server

TASKS = ("nap", "work", "work_apart")
ITEM = checkpoint_tasks.ITEM


@pytest.fixture(autouse=True)
def with_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of these tests import tasks of their own."""
    monkeypatch.setattr(harness, "TARGET", "tests.process.checkpoint_tasks:app")
    monkeypatch.setattr(jobs, "build", checkpoint_tasks.build)


def items(site: Site) -> Counter[int]:
    """How often each item was worked on."""
    return Counter(effect.n for effect in site.effects("item"))


def only_once(total: int) -> dict[int, int]:
    return dict.fromkeys(range(total), 1)


@pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])
@pytest.mark.parametrize("task", TASKS)
def test_after_sigterm_the_next_worker_goes_on_and_nothing_is_done_twice(
    server: Server, tmp_path: Path, task: str, supervised: bool
) -> None:
    """Twice in a row, at once although the grace time is long, and no attempt is spent."""
    total = 150
    with Site(server, tmp_path, lease="10s", grace="60s") as site:
        job = site.enqueue(task, 1, total, 3600)
        for at in (20, 60):
            worker = site.start(supervised=supervised)
            site.wait_effect("item", at)
            told = time.monotonic()
            assert worker.stop() == 0
            assert time.monotonic() - told < 5
            assert job.status() is State.READY
            assert job.info().attempts == ()
            assert site.effects("item")[-1].n < total - 1
        site.start()
        site.check(duplicates=2)
        assert items(site) == only_once(total)
        assert len(site.effects("begin")) == 1
        assert job.result(timeout=10) == site.effects("begin")[0].pid


@pytest.mark.parametrize("task", TASKS)
def test_after_a_kill_no_item_is_left_out_and_few_come_again(server: Server, tmp_path: Path, task: str) -> None:
    total, every = 100, 0.2
    with Site(server, tmp_path, lease="3s") as site:
        job = site.enqueue(task, 1, total, every)
        for at in (25, 60):
            worker = site.start()
            site.wait_effect("item", at)
            worker.kill()
        site.start()
        site.check(duplicates=2)
        worked_on = items(site)
        assert set(worked_on) == set(range(total))
        # What was worked on since the last write, the item with which a write came due, and the one in hand.
        most = every / ITEM + 2
        assert sum(worked_on.values()) - total <= 2 * most
        assert max(worked_on.values()) <= 2
        assert len(site.effects("begin")) == 1
        assert [attempt.how for attempt in job.info().attempts] == ["lost", "lost"]


def test_a_job_goes_on_after_its_own_process_was_killed(server: Server, tmp_path: Path) -> None:
    """executor="process": the child dies, its worker lives."""
    total = 60
    with Site(server, tmp_path) as site:
        site.start()
        site.enqueue("work_apart", 1, total, 0)
        child = site.wait_effect("item", 20).pid
        os.kill(child, signal.SIGKILL)
        site.check(duplicates=1)
        worked_on = items(site)
        assert set(worked_on) == set(range(total))
        assert sum(worked_on.values()) <= total + 1
        assert len({effect.pid for effect in site.effects("item")}) == 2


@pytest.mark.parametrize("task", ["nap", "work"])
def test_a_frozen_worker_that_comes_back_stops_at_its_next_checkpoint(
    server: Server, tmp_path: Path, task: str
) -> None:
    """And it does not overwrite how far the other one is."""
    total = 200
    with Site(server, tmp_path, lease="3s") as site:
        zombie = site.start()
        site.enqueue(task, 1, total, 0)
        site.wait_effect("item", 20)
        zombie.signal(signal.SIGSTOP)
        site.start()
        site.wait_effect("start", 1, times=2)
        site.wait_effect("item", 60)
        zombie.signal(signal.SIGCONT)
        back = time.monotonic()
        site.check(duplicates=1)
        worked_on = items(site)
        assert set(worked_on) == set(range(total))
        assert sum(worked_on.values()) <= total + 2, "the item in hand when it was frozen, and the one after it"
        assert all(one.when < back + 5 for one in site.effects("item") if one.pid == zombie.pid)


async def test_a_word_to_pause_that_comes_late_harms_no_later_attempt() -> None:
    """Of a job without checkpoints, which ends as if nothing had been said."""
    pool = Pool(1)
    try:
        run = run_of(process_tasks.wait_a_little)
        pool.submit(run)
        await aeventually(lambda: pool.started)
        for _ in range(3):
            pool.processes.pause(run)
        assert (await pool.end_of(run))[2] is None
        pool.processes.pause(run)  # it has ended
        assert await pool.result(process_tasks.add, 1, 2) == 3
    finally:
        pool.processes.close()
