"""Workers, makers and servers that are killed in the middle of a workflow: it loses no job, and runs none too often."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import State, Workflow
from relevo.engine.push import CHUNK
from relevo.store.plan import Call
from relevo.workflows.steps import group
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks
from tests.process import flow_jobs, harness
from tests.process.flow_jobs import CROWD
from tests.process.harness import AFTER_LEASES, Site
from tests.servers import Server
from tests.working import drained, working

QUEUES = ("left", "right")
RESULT = sum(range(10, 20))  # of `relay_race`
JOBS = {1, 2, *range(10, 20), 30, 31, 40, 41}
#: Points and passes at which a worker dies. What two queues exchange is an errand, so these die at several of them.
KILLS = [
    "turn_sent:2",
    "claimed:3",
    "started:5",
    "returned:1",
    "returned:6",
    "settled:4",
    "errand_taken:1",
    "errand_taken:3",
    "errand_done:1",
    "errand_done:3",
]
#: In these nothing is in hand but a job that was settled before.
NOTHING_IN_HAND = ("errand_taken:1", "errand_done:1")
#: After this time a flow that was not founded is given up.
UNFOUNDED = "11m"


class FlowSite(Site):
    """A site with the app of `flow_jobs`, and a clock that the test moves."""

    def __init__(self, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(server, directory)
        monkeypatch.setattr(harness, "TARGET", "tests.process.flow_jobs:app")
        self.app.close()
        self.app = flow_jobs.build(self.name, url=server.url, env="test", _clock_key=self.clock, **self._settings)
        self.queue = self.app.queue("left")

    def finish(self, flow: Workflow[Any], *, after: str = AFTER_LEASES) -> State:
        """A worker in this process does what is left, after that time."""
        self.move(after)
        with working(self.app):
            eventually(lambda: flow.state().has_ended, what="the workflow has ended")
            eventually(self.is_empty, what="and its callbacks, too")
        return flow.state()

    def is_empty(self) -> bool:
        outbox: list[int] = [
            self.app.engine.run(Call([b"HLEN", self.app.engine.keys_of(name).key("letters")])) for name in QUEUES
        ]
        return not any(outbox) and not any(self.app.queue(name).stats().living for name in QUEUES)

    def check_runs(self) -> list[int]:
        """Every job ran; a second time only if its worker died before it settled it, so that nothing had followed.

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


@pytest.fixture
def site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FlowSite]:
    with FlowSite(server, tmp_path, monkeypatch) as site:
        yield site


@pytest.mark.parametrize("fault", KILLS)
def test_a_workflow_outlives_a_worker_that_is_killed_at_any_point(site: FlowSite, fault: str) -> None:
    flow = flow_jobs.relay_race(site.app).enqueue()
    site.wait_killed(site.start(fault=fault, concurrency=4, wait=False))
    assert not flow.state().has_ended, "it died in the middle of it"
    assert site.finish(flow) is State.DONE
    assert flow.result(PATIENCE) == RESULT
    again = site.check_runs()
    print(f"{fault}: ran again: {again}")
    if fault in NOTHING_IN_HAND:
        assert 1 not in again
    site.check_left()


# makers


def make_and_die(site: FlowSite, *calls: int) -> None:
    """Processes of their own store the large flow, and are killed after so many calls."""
    code = f"from tests.process.flow_jobs import die_making_crowds; die_making_crowds{(*calls,)}"
    command = [sys.executable, "-c", code]
    makers = subprocess.run(command, env=site.environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert makers.stdout.split() == ["-9"] * len(calls), makers.stderr


def cancelled(site: FlowSite) -> int:
    return sum(site.app.queue(name).stats().totals.get("cancelled", 0) for name in QUEUES)


def test_a_flow_whose_maker_was_killed_half_way_never_runs_and_is_cancelled(site: FlowSite) -> None:
    """Two queues are listed; one call stores the workflow, six its jobs, and one founds it."""
    make_and_die(site, 4, 5, 9)
    stored = CHUNK + CROWD // 2 + (CROWD + 2)
    assert sum(site.app.queue(name).stats().waiting for name in QUEUES) == stored
    drained(site.app)
    assert sum(site.app.queue(name).stats().waiting for name in QUEUES) == stored
    site.move(UNFOUNDED)
    with working(site.app):
        eventually(site.is_empty, what="nothing of it is left alive")
    assert cancelled(site) == stored
    assert not site.effects()
    site.check_left()


def test_a_flow_whose_maker_was_killed_after_its_founding_is_started_by_workers(site: FlowSite) -> None:
    make_and_die(site, 10)
    site.move(AFTER_LEASES)
    with working(site.app):
        eventually(lambda: site.effects("end", 9001), what="its callback")
        eventually(site.is_empty, what="all of it has ended")
    numbers = [effect.n for effect in site.effects("start")]
    assert sorted(numbers) == [*range(CROWD), 9000, 9001]
    assert cancelled(site) == 0
    site.check_left()


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_a_worker_killed_while_others_join_leaves_a_workflow_that_ends(site: FlowSite, calls: int) -> None:
    """The next run adds them anew. Those of the first, half announced, are waited for until their gate has closed."""
    grow, total, call = (site.app.tasks[name] for name in ("grow", "total", "call"))
    flow = (group(grow.s(None, 50, calls), grow.s(None, 50, calls)) | total.s(60)).on_complete(call.s(61)).enqueue()
    victim = site.start(wait=False, concurrency=1)
    victim.was_ended = True
    site.wait_killed(victim)
    site.move(AFTER_LEASES)
    with working(site.app, concurrency=1):
        eventually(lambda: len(site.effects("end", 50)) == 2, what="both were run again")
        eventually(lambda: len(site.effects("end")) >= 6, what="four have joined")
    assert site.finish(flow, after=UNFOUNDED) is State.DONE
    assert flow.result(PATIENCE) == 50 + 50 + 51 + 52 + 51 + 52
    assert len(site.effects("start", 60)) == len(site.effects("start", 61)) == 1
    assert flow.progress().open == 0
    site.check_left()


# servers


def test_a_workflow_goes_on_where_it_was_when_the_server_is_killed(
    mortal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FlowSite(mortal, tmp_path, monkeypatch) as site:
        flow = flow_jobs.relay_race(site.app, 0.1).enqueue()
        worker = site.start(concurrency=2, wait=False)
        for count in (2, 5):  # what a dying server handed out and the worker did not receive waits for the lease
            eventually(lambda: len(site.effects("start")) >= count, what=f"{count} jobs have begun")
            mortal.kill()
            mortal.start()
        assert worker.stop() == 0
        assert site.finish(flow) is State.DONE
        assert flow.result(PATIENCE) == RESULT
        assert {effect.n for effect in site.effects("end")} == JOBS
        site.check_left()
