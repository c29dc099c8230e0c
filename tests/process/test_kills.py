"""Workers that are killed or frozen: what they had in hand runs elsewhere, and their word no longer counts."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import get_args

import pytest

from relevo.worker.faults import Point
from tests.eventually import eventually
from tests.process.harness import Site
from tests.servers import Server

#: The points, and the pass at which to die: the second turn is the first that settles something.
PASSES: dict[Point, int] = {
    "turn_sent": 1,
    "claimed": 1,
    "handed_over": 1,
    "started": 1,
    "returned": 1,
    "settled": 2,
    "renewing": 1,
    "stopping": 1,
}
#: At these no job has done anything: a second start would be one too many.
BEFORE_ANY_START = ("turn_sent", "claimed", "handed_over")


def test_every_point_has_its_test() -> None:
    """The points of errands have theirs in test_workflow_kills.py and test_schedules.py."""
    assert {*PASSES, "errand_taken", "errand_done"} == set(get_args(Point))


@pytest.mark.parametrize("point", PASSES)
def test_jobs_of_a_worker_killed_at_any_point_all_run(server: Server, tmp_path: Path, point: Point) -> None:
    count = 10
    # Where nothing may run twice, a lease must outlast a machine that stands still for a moment.
    with Site(server, tmp_path, lease="4s" if point in BEFORE_ANY_START else "1.5s") as site:
        if point != "handed_over":
            site.enqueue_many("nap", range(count), 0.7)
        victim = site.start(fault=f"{point}:{PASSES[point]}")
        if point == "handed_over":
            site.wait_idle(victim)
            for n in range(count):
                site.enqueue("nap", n, 0.7)
        if point == "stopping":
            site.wait_effect("start", count - 1)
            victim.signal(signal.SIGTERM)
        eventually(lambda: not victim.is_running, what=f"the worker dies at {point}")
        assert victim.process.returncode == -signal.SIGKILL
        site.start()
        site.check(duplicates=0 if point in BEFORE_ANY_START else count)


@pytest.mark.slow
def test_job_of_a_killed_worker_runs_again_within_15_seconds_by_default(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path) as site:
        other = site.start()
        site.wait_idle(other)
        victim = site.start()
        site.wait_idle(victim, other)
        site.enqueue("nap", 1, 1.0)  # for the one that came last
        assert site.wait_effect("start", 1).pid == victim.pid
        victim.kill()
        killed = time.monotonic()
        again = site.wait_effect("start", 1, times=2, timeout=20)
        print(f"started again {again.when - killed:.2f} s after the kill")
        assert again.pid == other.pid
        assert again.when - killed < 15
        site.check(duplicates=1)


def test_supervised_job_runs_again_within_3_seconds_by_default(server: Server, tmp_path: Path) -> None:
    """Whoever sees a worker die need not wait for its leases."""
    with Site(server, tmp_path) as site:
        site.start(supervised=True)
        site.enqueue("nap", 1, 0.5)
        first = site.wait_effect("start", 1)
        os.kill(first.pid, signal.SIGKILL)
        killed = time.monotonic()
        again = site.wait_effect("start", 1, times=2)
        print(f"started again {again.when - killed:.2f} s after the kill")
        assert again.when - killed < 3
        eventually(lambda: len(site.app.health().lost_workers) == 1, what="it is known to be lost, not after a minute")
        site.check(duplicates=1)


def test_frozen_worker_comes_back_and_its_word_is_refused(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path, lease="1.5s") as site:
        zombie = site.start()
        job = site.enqueue("nap", 1, 1.0)
        site.wait_effect("start", 1)
        zombie.signal(signal.SIGSTOP)
        heir = site.start()
        again = site.wait_effect("start", 1, times=2)
        assert again.pid == heir.pid
        site.wait_effect("end", 1)
        eventually(lambda: job.status().has_ended, what="the job has ended")
        record = job.info()
        zombie.signal(signal.SIGCONT)
        eventually(lambda: "was refused" in zombie.log or "is not ours any more" in zombie.log, what="the refusal")
        assert job.info() == record
        assert record.worker == heir.ids[-1]
        assert [attempt.how for attempt in record.attempts] == ["lost"]
        site.enqueue("nap", 2)  # it works on
        site.check(duplicates=1)


def test_worker_frozen_under_its_supervisor_does_not_keep_its_job(server: Server, tmp_path: Path) -> None:
    """A supervisor renews for a process that is busy, not for one that somebody stopped."""
    with Site(server, tmp_path, lease="1.5s") as site:
        site.start(supervised=True)
        site.enqueue("nap", 1, 0.5)
        frozen = site.wait_effect("start", 1).pid
        os.kill(frozen, signal.SIGSTOP)
        heir = site.start()
        assert site.wait_effect("start", 1, times=2).pid == heir.pid
        os.kill(frozen, signal.SIGCONT)
        site.check(duplicates=1)
