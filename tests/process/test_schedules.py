"""Each tick fires once, whatever happens to the workers that fire it and to the server that stores it.

A tick is fired when its job is on the queue. That job may run twice, like every job whose worker was killed while it
ran; what must not be is a second job, or none. `RELEVO_CHAOS=1` kills sixty of twenty processes.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from relevo.schedules.handle import Schedule
from relevo.schedules.store import RUNS_MAX, Ran
from relevo.worker.kill_points import Point
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process.harness import Site, let_pass
from tests.servers import Server

IS_NIGHTLY = os.environ.get("RELEVO_CHAOS") == "1"
SECOND = 1000


class Beat:
    """A schedule of one tick a second, and all its ticks."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: dict[tuple[int, str], Ran] = {}
        # "allow": each tick has a job of its own, whatever became of the one before. "all": none may be dropped.
        self.handle: Schedule = site.app.schedule(
            "beat", site.app.tasks["tick"], every="1s", overlap="allow", missed="all"
        )

    def fired(self) -> dict[int, Ran]:
        """Ticks by their time. The history is short, so this must be called now and then."""
        for ran in self.handle.history(RUNS_MAX):
            assert ran.what == "fired", ran
            self._seen[ran.tick_ms, ran.job] = ran
        ticks = {tick_ms: ran for (tick_ms, _), ran in self._seen.items()}
        assert len(ticks) == len(self._seen), f"fired more than once: {sorted(self._seen)}"
        return ticks

    def wait(self, ticks: int) -> None:
        """Until so many more ticks have fired."""
        wanted = len(self.fired()) + ticks
        eventually(lambda: len(self.fired()) >= wanted, what=f"{ticks} more ticks")

    def check(self) -> None:
        """Each second from the first to the last fired once and ran."""
        self.handle.pause()
        self._site.move("61s")  # leases of workers that were killed have ended
        self._site.drain()
        fired = self.fired()
        first, last = min(fired), max(fired)
        assert sorted(fired) == list(range(first, last + 1, SECOND)), "a tick is missing"
        info = self.handle.info()
        assert (info.fired, info.skipped, info.dropped) == (len(fired), 0, 0)
        eventually(lambda: self._site.queue.stats().living == 0, what="all jobs have ended")
        ran: dict[int, set[str]] = {}
        for effect in self._site.effects():
            ran.setdefault(effect.n, set()).add(effect.what.removeprefix("ticked-"))
        assert ran == {tick_ms: {one.job} for tick_ms, one in fired.items()}, "each ran, and nothing else did"
        assert all(one.at_ms >= tick_ms for tick_ms, one in fired.items()), "before its time"
        self.handle.remove()
        eventually(lambda: not leaks(self._site.server, self._site.name), what="nothing is left")


class Crowd:
    """Workers that are killed at about the time of a tick, or kill themselves while they fire one, and are replaced."""

    def __init__(self, site: Site, size: int, chance: random.Random) -> None:
        self._site = site
        self._chance = chance
        # Two clocks are an hour wrong: the server's is the one that counts.
        clocks = (3600.0, -3600.0, *[0.0] * (size - 2))
        self._workers = [site.start(wait=False, clock=clock) for clock in clocks]
        self.wait_for_all()

    def kill_one(self) -> None:
        """At the next tick, give or take some milliseconds."""
        let_pass(max(0.0, 1 - time.time() % 1 + self._chance.uniform(-0.005, 0.03)))
        # One that has not begun cannot fire.
        begun = eventually(
            lambda: [worker for worker in self._workers if worker.ids and worker.is_running], what="a worker to kill"
        )
        self._chance.choice(begun).kill()
        for place, worker in enumerate(self._workers):
            if not worker.is_running:
                point = self._chance.choice(["", "errand_taken", "errand_done"])
                fault = point and f"{point}:{self._chance.randint(1, 3)}"
                self._workers[place] = self._site.start(wait=False, fault=fault)

    def wait_for_all(self) -> None:
        eventually(lambda: all(worker.ids or not worker.is_running for worker in self._workers), what="all begin")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_each_second_fires_once_while_workers_are_killed(server: Server, tmp_path: Path) -> None:
    processes, deaths = (20, 60) if IS_NIGHTLY else (3, 4)
    with Site(server, tmp_path) as site:
        crowd = Crowd(site, processes, random.Random())
        beat = Beat(site)
        beat.wait(1)
        for _ in range(deaths):
            crowd.kill_one()
            beat.fired()
        crowd.wait_for_all()
        with site.working():  # one that is not killed
            beat.wait(2)
        beat.check()


#: The points, and how often the worker had fired ticks when it died there the second time. Ticks that a slow machine
#: missed are fired together.
POINTS: dict[Point, int] = {"errand_taken": 1, "errand_done": 2}


@pytest.mark.parametrize("point", POINTS)
def test_worker_killed_while_it_fires_neither_loses_nor_repeats_the_tick(
    server: Server, tmp_path: Path, point: Point
) -> None:
    """Another worker fires it ten seconds later, and does not wait for the lease of a job, which is an hour."""
    with Site(server, tmp_path, lease="1h") as site:
        victim = site.start(fault=f"{point}:2", wait=False)
        beat = Beat(site)
        eventually(lambda: not victim.is_running, what=f"the worker dies at {point}")
        assert len({ran.at_ms for ran in beat.fired().values()}) == POINTS[point]
        site.move("10s")
        with site.working():
            beat.wait(3)
        site.move("1h")  # of the job that ran when the worker died
        beat.check()


def test_each_second_fires_once_over_restarts_of_the_server(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path) as site:
        workers = [site.start(wait=False) for _ in range(2)]
        site.wait_begun(*workers)
        beat = Beat(site)
        for end in (mortal.stop, mortal.kill):
            beat.wait(2)
            end()
            mortal.start()
            site.move("3s")  # ticks for which there was no server
        beat.wait(5)
        beat.check()
        assert all("Traceback" not in worker.log for worker in workers)
