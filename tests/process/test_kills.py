"""Workers that are killed or frozen: their jobs run elsewhere, and they cannot settle a job that they lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import get_args

import pytest

from relevo.worker.kill_points import Point
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
#: At these no job has done anything, so that none may start twice.
BEFORE_ANY_START = ("turn_sent", "claimed", "handed_over")


def test_every_point_has_its_test() -> None:
    """Those of errands are tested in test_workflow_kills.py and test_schedules.py, those of Django in tests/django."""
    others = {point for point in get_args(Point) if point.startswith(("errand_", "outbox_", "rows_", "jobs_"))}
    assert {*PASSES, *others} == set(get_args(Point))


@pytest.mark.parametrize("point", PASSES)
def test_jobs_of_a_worker_killed_at_any_point_all_run(server: Server, tmp_path: Path, point: Point) -> None:
    """Those that the worker had not settled run again, as soon as their leases have ended and not before."""
    count = 10
    # A worker renews after a third of a lease: only this worker need not be waited for.
    lease = "3s" if point == "renewing" else "60s"
    task = "gated" if point in ("renewing", "stopping") else "nap"
    with Site(server, tmp_path, lease=lease) as site:
        if point != "handed_over":
            site.enqueue_many(task, range(count))
        victim = site.start(fault=f"{point}:{PASSES[point]}", wait=point == "handed_over")
        if point == "handed_over":
            site.wait_idle(victim)
            for n in range(count):
                site.enqueue(task, n)
        if point == "stopping":
            site.wait_effect("start", count - 1)
            victim.signal(signal.SIGTERM)
        eventually(lambda: not victim.is_running, what=f"the worker dies at {point}")
        assert victim.process.returncode == -signal.SIGKILL
        started = {effect.n for effect in site.effects("start")}
        assert not (started and point in BEFORE_ANY_START)
        lost = {n for n in started if not site.acknowledged[n].state().has_ended}
        assert lost or point in (*BEFORE_ANY_START, "started", "settled")
        site.open(*range(count))
        if lease == "60s":
            site.drain()
            assert not [effect for effect in site.effects("start") if effect.n in lost and effect.pid == os.getpid()]
        site.move("61s")
        site.drain()
        site.check(again=lost)


def test_idle_worker_runs_the_job_of_a_killed_worker_again(server: Server, tmp_path: Path) -> None:
    """Without a supervisor, when the lease has ended; nothing calls the idle worker."""
    with Site(server, tmp_path, lease="2s") as site:
        victim = site.start()
        site.enqueue("nap_once", 1, 600.0)
        assert site.wait_effect("start", 1).pid == victim.pid
        victim.kill()
        with site.working():
            assert site.wait_effect("start", 1, times=2).pid == os.getpid()
            site.check(again={1})


def test_job_of_a_killed_worker_runs_again_at_once_under_a_supervisor(server: Server, tmp_path: Path) -> None:
    """The supervisor saw the worker die: it runs again although its lease lasts for an hour."""
    with Site(server, tmp_path, lease="1h") as site:
        site.start(supervised=True)
        site.enqueue("nap_once", 1, 600.0)
        first = site.wait_effect("start", 1)
        os.kill(first.pid, signal.SIGKILL)
        again = site.wait_effect("start", 1, times=2)
        assert again.pid != first.pid
        eventually(lambda: len(site.app.health().lost_workers) == 1, what="the worker is known to be lost")
        site.check(again={1})


def test_frozen_worker_that_comes_back_cannot_settle_a_job_it_lost(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path) as site:
        zombie = site.start()
        job = site.enqueue("gated", 1)
        site.wait_effect("start", 1)
        zombie.signal(signal.SIGSTOP)
        site.open(1)
        site.move("61s")
        heir = site.drain()
        assert site.wait_effect("end", 1).pid == os.getpid()
        record = job.info()
        assert record.worker == heir.id
        assert [attempt.how for attempt in record.attempts] == ["lost"]
        zombie.signal(signal.SIGCONT)
        eventually(lambda: "was refused" in zombie.log or "has lost its lease" in zombie.log, what="the refusal")
        assert job.info() == record
        site.move("-61s")  # the server has it on its list of idle workers
        site.enqueue("nap", 2)  # it works on
        assert site.wait_effect("end", 2).pid == zombie.pid
        site.check(again={1})


def test_worker_frozen_under_its_supervisor_does_not_keep_its_job(server: Server, tmp_path: Path) -> None:
    """A supervisor renews for a process that is busy, not for one that was stopped."""
    with Site(server, tmp_path, lease="2s") as site:
        site.start(supervised=True)
        site.enqueue("gated", 1)
        frozen = site.wait_effect("start", 1).pid
        os.kill(frozen, signal.SIGSTOP)
        site.open(1)
        with site.working():
            eventually(lambda: os.getpid() in {effect.pid for effect in site.effects("end", 1)}, what="it runs here")
        os.kill(frozen, signal.SIGCONT)
        site.check(again={1})
