"""Workers, makers and servers that are killed in the middle of a workflow: it loses no job, and runs none too often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo, State, Workflow
from relevo.flow import group
from relevo.store.plan import Call
from relevo.store.push import CHUNK
from relevo.worker.faults import Point
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process import flow_jobs, harness, jobs
from tests.process.flow_jobs import CROWD
from tests.process.harness import START, Site
from tests.servers import Server
from tests.working import drained, working

QUEUES = ("left", "right")
RESULT = sum(range(10, 20))  # of `relay_race`
JOBS = {1, 2, *range(10, 20), 30, 31, 40, 41}
#: The points, and the passes at which the first worker and the second one die.
PASSES: dict[Point, tuple[int, int]] = {
    "turn_sent": (2, 5),
    "claimed": (1, 3),
    "started": (2, 5),
    "returned": (1, 6),
    "settled": (3, 4),
    "errand_taken": (1, 3),
    "errand_done": (1, 3),
}
#: In the first of these passes nothing is in hand but a job that was settled before.
NOTHING_IN_HAND = ("errand_taken", "errand_done")
_CLOCK = "relevo-test-clock-of-makers"


class FlowSite(Site):
    """A site with the app of `flow_jobs`."""

    def __init__(self, server: Server, directory: Path, **settings: str) -> None:
        super().__init__(server, directory, **settings)
        self.app.close()
        self.app = flow_jobs.build(self.name, url=server.url, env="test", **settings)
        self.queue = self.app.queue("left")

    def wait_end(self, flow: Workflow[Any], *, timeout: float = START) -> State:
        eventually(lambda: flow.status().has_ended, timeout=timeout, what="the workflow has ended")
        eventually(self.is_empty, timeout=timeout, what="and its callbacks, too")
        return flow.status()

    def is_empty(self) -> bool:
        letters: list[int] = [self.app.run(Call([b"HLEN", self.app.keys_of(name).key("letters")])) for name in QUEUES]
        return not any(letters) and not any(self.app.queue(name).stats().living for name in QUEUES)

    def check_runs(self) -> list[int]:
        """Every job ran; a second time only if its worker died before it could tell, so that nothing had followed.

        Gives those that ran a second time.
        """
        starts = self.effects("start")
        assert {effect.n for effect in starts} == JOBS
        assert {effect.n for effect in self.effects("end")} == JOBS
        died = {worker.pid for worker in self.workers if worker.was_ended}
        again = []
        for at, effect in enumerate(starts):
            before = [one for one in starts[:at] if one.n == effect.n]
            if before:
                again.append(effect.n)
                assert {one.pid for one in before} <= died, f"{effect.n} ran again although its worker lives"
                followed = {one.n // 10 for one in starts[:at] if one.n // 10 > effect.n // 10}
                assert not followed, f"{effect.n} ran again although it was known to be done"
        return again

    def check_left(self) -> None:
        eventually(lambda: not leaks(self.server, self.name), what="nothing is left without an end")


@pytest.fixture(autouse=True)
def of_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes import these tasks."""
    monkeypatch.setattr(harness, "TARGET", "tests.process.flow_jobs:app")


@pytest.mark.parametrize("point", PASSES)
def test_a_workflow_outlives_workers_that_are_killed_at_any_point(server: Server, tmp_path: Path, point: Point) -> None:
    with FlowSite(server, tmp_path, lease="1s") as site:
        flow = flow_jobs.relay_race(site.app).enqueue()
        for turn in PASSES[point]:
            victim = site.start(fault=f"{point}:{turn}", concurrency=4, wait=False)
            eventually(lambda: not victim.is_running, timeout=START, what=f"the worker dies at {point}")
            assert victim.process.returncode == -signal.SIGKILL
        assert not flow.status().has_ended, "they died in the middle of it"
        site.start()
        assert site.wait_end(flow) is State.DONE
        assert flow.result(1) == RESULT
        again = site.check_runs()
        print(f"{point}: ran again: {again}")
        if point in NOTHING_IN_HAND:
            assert 1 not in again
        site.check_left()


def test_of_two_workers_the_one_that_lives_goes_on(server: Server, tmp_path: Path) -> None:
    with FlowSite(server, tmp_path, lease="1s") as site:
        victim, heir = site.start(fault="returned:3", concurrency=2), site.start(concurrency=2)
        site.wait_idle(victim, heir)
        flow = flow_jobs.relay_race(site.app, 0.1).enqueue()
        eventually(lambda: not victim.is_running, timeout=START, what="one of them has died")
        assert not flow.status().has_ended
        assert site.wait_end(flow) is State.DONE
        assert flow.result(1) == RESULT
        assert 1 <= len(site.check_runs()) <= 2, "what the dead one had in hand"
        site.check_left()


# makers


def make_and_die(site: FlowSite, calls: int) -> None:
    """A process of its own stores the large flow and is killed after so many calls."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
    env |= {
        "RELEVO_URL": site.server.url,
        "RELEVO_ENV": "test",
        jobs.APP: site.name,
        flow_jobs.CALLS: str(calls),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = "from tests.process.flow_jobs import die_making_a_crowd; die_making_a_crowd()"
    maker = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert maker.returncode == -signal.SIGKILL, maker.stderr


@pytest.fixture
def later(server: Server) -> Iterator[None]:
    """Eleven minutes later, for whoever reads the clock that is shifted."""
    server.command("SET", _CLOCK, 660_000, "EX", 600)
    yield
    server.command("DEL", _CLOCK)


def shifted(site: FlowSite) -> Relevo:
    """The same app in the shifted time."""
    return flow_jobs.build(site.name, url=site.server.url, env="test", _clock_key=_CLOCK)


def cancelled(app: Relevo) -> int:
    return sum(app.queue(name).stats().totals.get("cancelled", 0) for name in QUEUES)


#: Two queues are listed, one call stores the workflow, four its jobs, and one founds it.
@pytest.mark.parametrize(("calls", "stored"), [(4, CHUNK), (5, CROWD // 2 + 1), (7, CROWD + 2)])
def test_a_flow_whose_maker_was_killed_half_way_never_runs_and_is_cancelled(
    server: Server, tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch, calls: int, stored: int
) -> None:
    with FlowSite(server, tmp_path) as site:
        monkeypatch.setenv(jobs.EFFECTS, str(site._effects))
        make_and_die(site, calls)
        assert sum(site.app.queue(name).stats().waiting for name in QUEUES) == stored
        drained(site.app)
        assert sum(site.app.queue(name).stats().waiting for name in QUEUES) == stored
        after = shifted(site)
        with working(after):
            eventually(site.is_empty, what="nothing of it is left alive")
        assert cancelled(after) == stored
        assert not site.effects()
        after.close()
        site.check_left()


def test_a_flow_whose_maker_was_killed_after_its_founding_is_started_by_workers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FlowSite(server, tmp_path) as site:
        monkeypatch.setenv(jobs.EFFECTS, str(site._effects))
        make_and_die(site, 8)
        with working(site.app):
            eventually(lambda: site.effects("end", 9001), timeout=30, what="its callback")
            eventually(site.is_empty, what="all of it has ended")
        numbers = [effect.n for effect in site.effects("start")]
        assert sorted(numbers) == [*range(CROWD), 9000, 9001]
        assert cancelled(site.app) == 0
        site.check_left()


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_a_worker_killed_while_others_join_leaves_a_workflow_that_ends(
    server: Server, tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """The next run adds them anew. Those of the first, half announced, are waited for until their gate has closed."""
    with FlowSite(server, tmp_path, lease="1s") as site:
        monkeypatch.setenv(jobs.EFFECTS, str(site._effects))
        grow, total, call = (site.app.tasks[name] for name in ("grow", "total", "call"))
        flow = (group(grow.s(None, 50, calls), grow.s(None, 50, calls)) | total.s(60)).on_complete(call.s(61)).enqueue()
        victim = site.start(wait=False, concurrency=1)
        victim.was_ended = True
        eventually(lambda: not victim.is_running, timeout=START, what="the worker dies")
        heir = site.start(concurrency=1)
        eventually(lambda: len(site.effects("end", 50)) == 2, timeout=START, what="both were run again")
        eventually(lambda: len(site.effects("end")) >= 6, what="four have joined")
        heir.stop()
        after = shifted(site)
        with working(after):
            assert site.wait_end(flow) is State.DONE
        after.close()
        assert flow.result(1) == 50 + 50 + 51 + 52 + 51 + 52
        assert len(site.effects("start", 60)) == len(site.effects("start", 61)) == 1
        assert flow.progress().open == 0
        site.check_left()


# servers


def test_a_workflow_goes_on_where_it_was_when_the_server_is_killed(engine: str, tmp_path: Path) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with (
        Server(engine, directory=tmp_path / "mortal", config=config) as mortal,
        FlowSite(mortal, tmp_path, lease="2s") as site,
    ):
        flow = flow_jobs.relay_race(site.app, 0.3).enqueue()
        site.start(concurrency=2)
        for n in (2, 14, 18):
            site.wait_effect("start", n)
            mortal.kill()
            mortal.start()
        assert site.wait_end(flow) is State.DONE
        assert flow.result(1) == RESULT
        assert {effect.n for effect in site.effects("end")} == JOBS
        site.check_left()
