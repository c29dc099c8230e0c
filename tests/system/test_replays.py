"""Replays: dead letters run again at a rate and behind canaries, watched, stopped and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relevo import Relevo, State
from relevo.dead.replay import SILENT_MS, Replay
from relevo.errors import JobError, UnknownJob
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.servers import Server
from tests.system.timed import Times
from tests.working import drain, drained, working


class Site:
    """An app whose jobs fail until `mend` is called."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.bad: Callable[[int], bool] = lambda _: True
        self.ran: list[int] = []

        @app.task(name="step", retries=0)
        def step(number: int) -> None:
            self.ran.append(number)
            if self.bad(number):
                raise ValueError(number)

        self.step = step

    def bury(self, count: int) -> None:
        """Let so many jobs die, one after the other."""
        for number in range(count):
            self.step.enqueue(number)
            drained(self.app)
        assert len(self.app.dead.list(limit=1000)) == count
        self.ran.clear()

    def mend(self, *, but: int | None = None) -> None:
        self.bad = lambda number: number == but


@pytest.fixture
def site(app: Relevo) -> Site:
    return Site(app)


def test_a_replay_retries_matching_dead_letters_oldest_first_and_reports(site: Site) -> None:
    site.bury(5)
    site.mend()
    steps: list[int] = []
    run = site.app.dead.replay(all=True, who="ana", watch=lambda run: steps.append(run.retried))
    assert (run.state, run.retried, run.looked, run.total, run.left, run.who) == ("done", 5, 5, 5, 0, "ana")
    assert steps == [1, 2, 3, 4, 5, 5]
    assert site.app.dead.list() == []
    drained(site.app, threads=1)
    assert site.ran == list(range(5))
    (seen,) = site.app.dead.runs()
    assert (seen.id, seen.state, seen.retried, seen.is_led) == (run.id, "done", 5, False)
    assert site.app.dead.run(run.id) == seen


def test_dead_letters_that_die_again_are_not_replayed_again(site: Site) -> None:
    site.bury(3)
    run = site.app.dead.replay(error="ValueError: no such number")
    assert (run.retried, run.looked, run.total) == (0, 3, 3), "only dead letters that match are replayed"
    with working(site.app):
        run = site.app.dead.replay(all=True, rate="50/s")
        # Before the worker stops: it hands back what it has not settled by then.
        eventually(lambda: len(site.ran) == 3 and len(site.app.dead.list()) == 3)
    assert run.retried == 3
    assert sorted(site.ran) == [0, 1, 2]


class Clock:
    """Time as replays see it: it passes while they rest, and when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.went: list[float] = []  # when each dead letter was retried
        time = SimpleNamespace(monotonic=lambda: self.now, sleep=self.pass_by)
        monkeypatch.setattr("relevo.dead.replaying.time", time)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def watch(self, run: Replay) -> None:
        self.went += [self.now] * (run.retried - len(self.went))


def test_a_rate_is_kept(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.bury(4)
    clock = Clock(monkeypatch)
    run = site.app.dead.replay(all=True, rate="1/m", watch=clock.watch)
    assert (run.retried, run.rate) == (4, "1/m")
    assert clock.went == [1000.0, 1060.0, 1120.0, 1180.0]


def test_a_replay_does_not_catch_up_after_a_wait(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.bury(14)
    site.mend()
    clock = Clock(monkeypatch)
    canaries: set[int] = set()

    def watch(run: Replay) -> None:
        clock.watch(run)
        if run.watched and run.stage not in canaries:
            canaries.add(run.stage)
            clock.pass_by(600)

    with working(site.app):
        run = site.app.dead.replay(all=True, rate="1/m", canary=True, watch=watch)
    assert (run.state, run.retried) == ("done", 14)
    assert clock.went[1] - clock.went[0] >= 600, "the first canary took its time"
    assert min(later - one for one, later in pairwise(clock.went)) >= 60


def test_a_slow_replay_is_not_taken_for_dead_and_can_be_stopped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.bury(2)
    clock = Clock(monkeypatch)

    def watch(run: Replay) -> None:
        if clock.now > 1000 + SILENT_MS / 2000:
            site.app.dead.stop(run.id)

    run = site.app.dead.replay(all=True, rate="1/h", watch=watch)
    assert (run.state, run.retried) == ("stopped", 1)
    assert clock.now < 1000 + SILENT_MS / 1000


def test_canaries_go_first_and_the_rest_follows_if_they_end_well(site: Site) -> None:
    site.bury(14)
    site.mend()
    stages: list[tuple[int, int]] = []

    def watch(run: Replay) -> None:
        if not stages or stages[-1] != (run.stage, run.retried):
            stages.append((run.stage, run.retried))

    with working(site.app):
        run = site.app.dead.replay(all=True, canary=True, watch=watch)
    assert (run.state, run.retried, run.well) == ("done", 14, 11)
    assert (0, 1) in stages and (1, 11) in stages and (2, 14) in stages
    assert not any(stage == 0 and retried > 1 for stage, retried in stages)
    assert not any(stage == 1 and retried > 11 for stage, retried in stages)


@pytest.mark.parametrize(("bad", "retried"), [(0, 1), (5, 11)])
def test_a_canary_that_fails_stops_it(site: Site, bad: int, retried: int) -> None:
    site.bury(14)
    site.mend(but=bad)
    with working(site.app):
        run = site.app.dead.replay(all=True, canary=True)
    assert (run.state, run.retried) == ("stopped", retried)
    assert "is dead again: retries_exhausted" in run.why
    assert len(site.app.dead.list()) == 14 - retried + 1

    site.mend()
    with working(site.app):
        run = site.app.dead.resume(run.id)
        eventually(lambda: len(set(site.ran)) == 14)
    assert (run.state, run.retried, run.why) == ("done", 14, "")
    assert [row.error for row in site.app.dead.list()] == [f"ValueError: {bad}"], "it died after the replay began"


def test_a_canary_of_which_no_result_is_kept_counts_as_done(site: Site, app: Relevo) -> None:
    fails = [True]

    @app.task(name="quiet", retries=0, result_ttl=0)
    def quiet() -> None:
        if fails:
            raise ValueError

    quiet.enqueue()
    drained(app)
    fails.clear()
    with working(app):
        run = app.dead.replay(all=True, canary=True)
    assert (run.state, run.well) == ("done", 1)


def test_canaries_that_no_worker_runs_are_given_up(site: Site) -> None:
    site.bury(3)
    site.mend()
    run = site.app.dead.replay(all=True, canary=True, patience="50ms")
    assert (run.state, run.retried) == ("stopped", 1)
    assert "has not ended in time" in run.why


def test_on_a_full_server_a_replay_goes_on_and_can_be_stopped(engine: str, tmp_path: Path) -> None:
    """A dead letter that is retried takes no room, and its progress is kept."""
    with Server(engine, directory=tmp_path) as full:
        app = Relevo("full", url=full.url, env="test")
        site = Site(app)
        site.bury(4)

        def watch(run: Replay) -> None:
            if run.retried == 2 and run.state == "running":
                assert app.dead.stop(run.id) is True

        full.command("CONFIG", "SET", "maxmemory", "1")
        run = app.dead.replay(all=True, watch=watch)
        assert (run.state, run.retried, app.dead.run(run.id).retried) == ("stopped", 3, 3)
        assert (run.why, app.dead.stop(run.id)) == ("it was asked to stop", False)
        assert app.dead.resume(run.id).retried == 4
        full.command("CONFIG", "SET", "maxmemory", "0")
        app.close()


def test_an_interrupted_replay_is_stopped_and_goes_on_at_once(site: Site) -> None:
    site.bury(4)

    def interrupt(run: Replay) -> None:
        if run.retried == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        site.app.dead.replay(all=True, watch=interrupt)
    (left,) = site.app.dead.runs()
    assert (left.state, left.retried, left.is_led) == ("stopped", 2, False)
    assert "interrupted" in left.why
    assert site.app.dead.resume(left.id).retried == 4


async def test_a_cancelled_replay_is_stopped_and_goes_on_at_once(app: Relevo) -> None:
    @app.task(name="step", retries=0)
    async def step() -> None:
        raise ValueError

    for _ in range(3):
        await step.aenqueue()
    await drain(app)
    leading = asyncio.create_task(app.dead.areplay(all=True, rate="1/h"))
    await aeventually(lambda: app.dead.aruns(), what="it began")
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading
    (left,) = await app.dead.aruns()
    assert (left.state, left.is_led) == ("stopped", False)


class Killed(BaseException):
    """As if the process had ended there."""


def test_a_replay_whose_process_died_goes_on_where_it_was(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    site = Site(times.app)
    site.bury(6)

    def die(run: Replay) -> None:
        if run.retried == 3:
            raise Killed

    with pytest.raises(Killed):
        site.app.dead.replay(all=True, watch=die)
    (left,) = site.app.dead.runs()
    assert (left.state, left.retried, left.is_led) == ("running", 3, True)
    with pytest.raises(JobError, match="is led by another process"):
        site.app.dead.resume(left.id)
    times.move(SILENT_MS)
    run = site.app.dead.resume(left.id, who="bo")
    assert (run.id, run.state, run.retried, run.who) == (left.id, "done", 6, "bo")
    drained(site.app)
    assert sorted(site.ran) == list(range(6)), "each of them once"
    assert site.app.dead.resume(run.id).retried == 6, "nothing is left to do"


def test_a_dead_letter_that_another_program_retried_is_not_retried_again(site: Site) -> None:
    """It was read before that, with others of its part: it died again, or was cancelled, and is left as it is."""
    site.bury(4)
    ids = [row.id for row in reversed(site.app.dead.list())]

    def retry_others(run: Replay) -> None:
        if run.retried == 1 and not run.left and site.app.dead.list():
            assert site.app.dead.retry(ids[1:]) == 3
            assert site.app.job(ids[3]).cancel()
            drained(site.app)

    run = site.app.dead.replay(all=True, watch=retry_others)
    assert (run.state, run.retried, run.left) == ("done", 1, 3)
    drained(site.app)
    assert sorted(site.ran) == [0, 1, 2]
    assert site.app.job(ids[3]).info().state is State.CANCELLED


async def test_a_replay_for_async_code(app: Relevo) -> None:
    fails = [True]

    @app.task(name="step", retries=0)
    async def step(number: int) -> None:
        if fails:
            raise ValueError(number)

    jobs = [await step.aenqueue(number) for number in range(12)]
    async with working(app):
        for job in jobs:
            with pytest.raises(JobError):
                await job.aresult(timeout=PATIENCE)
        fails.clear()
        run = await app.dead.areplay(all=True, canary=True, rate=1000)
        assert (run.state, run.retried, run.well) == ("done", 12, 11)
        assert (await app.dead.aresume(run.id)).state == "done"
        for job in jobs:
            await job.aresult(timeout=PATIENCE)
    assert [one.id for one in await app.dead.aruns()] == [run.id]
    assert (await app.dead.arun(run.id)).retried == 12
    assert await app.dead.astop(run.id) is False


def test_a_replay_of_nothing_is_done(site: Site) -> None:
    run = site.app.dead.replay(all=True, canary=True)
    assert (run.state, run.retried, run.total) == ("done", 0, 0)


def test_an_unknown_replay_is_unknown(app: Relevo) -> None:
    for call in (app.dead.run, app.dead.resume, app.dead.stop):
        do: Any = call
        with pytest.raises(UnknownJob, match="no replay"):
            do("0" * 20)


def test_dead_letters_that_cannot_run_again_are_left(site: Site) -> None:
    from tests.system.test_dead import push

    push(site.app, b"garbage")
    drained(site.app)
    run = site.app.dead.replay(all=True)
    assert (run.state, run.retried, run.left) == ("done", 0, 1)
    assert site.app.dead.list()[0].state is State.DEAD
