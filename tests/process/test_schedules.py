"""Each tick fires once, whatever happens to the workers that fire it and to the server that knows of it.

A tick is fired when its job is on the queue. That job may run twice, like every job whose worker was killed while it
ran; what must not be is a second job, or none. `RELEVO_CHAOS=1` goes on for a minute with twenty processes.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from relevo.schedules import Schedule
from relevo.store.schedules import RUNS_MAX, Ran
from relevo.worker.faults import Point
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process.harness import Site, let_pass
from tests.servers import Server

IS_NIGHTLY = os.environ.get("RELEVO_CHAOS") == "1"
SECOND = 1000


class Beat:
    """A schedule of one tick a second, and all that is known of its ticks."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: dict[tuple[int, str], Ran] = {}
        # "allow": each tick has a job of its own, whatever became of the one before. "all": none may be dropped.
        self.handle: Schedule = site.app.schedule(
            "beat", site.app.tasks["tick"], every="1s", overlap="allow", missed="all"
        )

    def fired(self) -> dict[int, Ran]:
        """Ticks by their time. The history is short, so this must be asked now and then."""
        for ran in self.handle.history(RUNS_MAX):
            assert ran.what == "fired", ran
            self._seen[ran.tick_ms, ran.job] = ran
        ticks = {tick_ms: ran for (tick_ms, _), ran in self._seen.items()}
        assert len(ticks) == len(self._seen), f"fired more than once: {sorted(self._seen)}"
        return ticks

    def wait(self, ticks: int, *, timeout: float = 30.0) -> None:
        """Until so many more ticks have fired."""
        wanted = len(self.fired()) + ticks
        eventually(lambda: len(self.fired()) >= wanted, timeout=timeout, what=f"{ticks} more ticks")

    def check(self) -> int:
        """Each second from the first to the last fired once and ran: how many did."""
        self.handle.pause()
        fired = self.fired()
        first, last = min(fired), max(fired)
        assert sorted(fired) == list(range(first, last + 1, SECOND)), "a tick is missing"
        info = self.handle.info()
        assert (info.fired, info.skipped, info.dropped) == (len(fired), 0, 0)
        eventually(lambda: self._site.queue.stats().living == 0, timeout=30, what="all jobs have ended")
        ran: dict[int, set[str]] = {}
        for effect in self._site.effects():
            ran.setdefault(effect.n, set()).add(effect.what.removeprefix("ticked-"))
        assert ran == {tick_ms: {one.job} for tick_ms, one in fired.items()}, "each ran, and nothing else did"
        late = sorted(one.at_ms - tick_ms for tick_ms, one in fired.items())
        assert late[0] >= 0, "before its time"
        print(f"{len(fired)} ticks; fired {late[len(late) // 2]} ms late (median), {late[-1]} ms (worst)")
        self.handle.remove()
        eventually(lambda: not leaks(self._site.server, self._site.name), what="nothing is left")
        return len(fired)


class Crowd:
    """Workers that are killed at about the time of a tick, or kill themselves while they fire one; and are replaced."""

    def __init__(self, site: Site, size: int, chance: random.Random) -> None:
        self._site = site
        self._chance = chance
        self.deaths = 0
        # Two clocks are an hour wrong: the server's is the one that counts.
        clocks = (3600.0, -3600.0, *[0.0] * (size - 2))
        self._workers = [site.start(wait=False, clock=clock) for clock in clocks]
        self.wait_for_all()

    def kill_one(self) -> None:
        """At the next tick, give or take some milliseconds."""
        let_pass(1 - time.time() % 1 + self._chance.uniform(-0.005, 0.03))
        grown = [worker for worker in self._workers if worker.ids]  # who has not begun cannot fire
        if grown:
            self._chance.choice(grown).kill()
        for place, worker in enumerate(self._workers):
            if not worker.is_running:
                self.deaths += 1
                point = self._chance.choice(["", "errand_taken", "errand_done"])
                fault = point and f"{point}:{self._chance.randint(1, 3)}"
                self._workers[place] = self._site.start(wait=False, fault=fault)

    def wait_for_all(self) -> None:
        eventually(
            lambda: all(worker.ids or not worker.is_running for worker in self._workers), timeout=90, what="all begin"
        )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_each_second_fires_once_while_workers_are_killed(server: Server, tmp_path: Path) -> None:
    processes, seconds = (20, 60.0) if IS_NIGHTLY else (6, 15.0)
    with Site(server, tmp_path, lease="2s") as site:
        crowd = Crowd(site, processes, random.Random())
        beat = Beat(site)
        beat.wait(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            crowd.kill_one()
            beat.fired()
        crowd.wait_for_all()
        site.start()  # one that nobody kills
        beat.wait(2)
        ticks = beat.check()
        print(f"{crowd.deaths} deaths among {processes} workers in {seconds:g} s")
        assert ticks >= seconds
        assert crowd.deaths >= seconds / 2


#: The points, and whether the tick had been fired when the worker died there.
POINTS: dict[Point, bool] = {"errand_taken": False, "errand_done": True}


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_while_it_fires_neither_loses_nor_repeats_the_tick(
    server: Server, tmp_path: Path, point: Point
) -> None:
    with Site(server, tmp_path, lease="2s") as site:
        victim = site.start(fault=f"{point}:2")
        beat = Beat(site)
        eventually(lambda: not victim.is_running, what=f"the worker dies at {point}")
        before = set(beat.fired())
        assert len(before) == (2 if POINTS[point] else 1)
        site.start()
        beat.wait(3)
        beat.check()


def test_a_tick_whose_worker_died_is_fired_by_another_within_seconds(server: Server, tmp_path: Path) -> None:
    """It need not wait for its next tick, nor for a lease of a job."""
    with Site(server, tmp_path) as site:
        victim = site.start(fault="errand_taken:2")
        beat = Beat(site)
        heir = site.start()
        eventually(lambda: not victim.is_running, what="the worker dies with a tick in its hands")
        beat.wait(3)
        late = max(ran.at_ms - tick_ms for tick_ms, ran in beat.fired().items())
        print(f"fired {late} ms late")
        assert late < 6 * SECOND
        assert heir.is_running
        beat.check()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_each_second_fires_once_over_restarts_of_the_server(
    engine: str, server: Server, tmp_path: Path, how: str
) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with (
        Server(engine, directory=tmp_path / "mortal", config=config) as mortal,
        Site(mortal, tmp_path, lease="2s") as site,
    ):
        workers = [site.start() for _ in range(2)]
        beat = Beat(site)
        for _ in range(3):
            beat.wait(2)
            mortal.stop() if how == "stopped" else mortal.kill()
            let_pass(1.5)  # a tick comes while nobody can fire it
            mortal.start()
        beat.wait(2)
        beat.check()
        assert all("Traceback" not in worker.log for worker in workers)
