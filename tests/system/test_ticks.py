"""The ticks of schedules: each fires once, whatever runs, was missed or fails."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from relevo import Relevo
from relevo.errors import OptionError
from relevo.schedules.schedule import GRACE_MS
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times, noting
from tests.working import drain, working


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory, at_full_hour=True)


# In time


async def test_each_tick_fires_once_and_its_job_knows_it(times: Times) -> None:
    app = times.app
    ticks = noting(app, cron="*/10 * * * *")
    await drain(app)
    expected = []
    for _ in range(5):
        expected.append(times.move_past(10 * MINUTE))
        await drain(app)
        await drain(app)
    assert ticks == expected
    info = await app.schedules.get("note").ainfo()
    assert (info.fired, info.skipped, info.dropped, info.next_ms) == (5, 0, 0, expected[-1] + 10 * MINUTE)
    history = await app.schedules.get("note").ahistory()
    assert [ran.tick_ms for ran in history] == expected[::-1]
    assert history[0].job == info.last_job
    assert len({ran.job for ran in history}) == 5
    assert all(ran.tick_ms <= ran.at_ms < ran.tick_ms + 10 * MINUTE for ran in history)
    assert [ran.tick_ms for ran in await app.schedules.get("note").ahistory(limit=2)] == expected[:-3:-1]
    for limit in (0, 51):
        with pytest.raises(OptionError, match="1 to 50 entries"):
            await app.schedules.get("note").ahistory(limit=limit)
    await app.aclose()


async def test_a_schedule_made_at_run_time_wakes_a_worker_that_sleeps(
    app: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.worker.consumer.REST_EVERY", 3600.0)  # it does not wake by itself
    monkeypatch.setattr("relevo.worker.consumer.IDLE_MS", HOUR)
    ticks = noting(app)
    async with working(app) as worker:
        await aeventually(lambda: worker.consumers and worker.consumers[0].is_resting, what="the worker rests")
        await app.aschedule("often", app.tasks["note"], every="1s")
        await aeventually(lambda: ticks, what="its first tick")
        await app.schedules.get("often").aremove()


async def test_starts_are_spread_over_the_jitter_and_not_before_the_tick(times: Times) -> None:
    app = times.app
    ticks = noting(app)
    for n in range(20):
        await app.aschedule(f"s{n}", app.tasks["note"], every="1h", jitter="30m")
    tick = times.move_past(HOUR)
    await drain(app)
    rows = await app.queue().ajobs(state="scheduled", limit=50)
    dues = sorted(row.due_ms - tick for row in rows if row.due_ms is not None)
    assert len(dues) + len(ticks) == 20
    assert dues[0] >= 0 and dues[-1] < 30 * MINUTE
    assert dues[-1] - dues[0] > 10 * MINUTE, "spread"
    times.move(30 * MINUTE)
    await drain(app)
    assert ticks == [tick] * 20
    await app.aclose()


@pytest.mark.parametrize(
    ("overlap", "ran", "skipped"), [("skip", [0], 2), ("queue", [0, 1, 2], 0), ("allow", [0, 1, 2], 0)]
)
async def test_the_overlap_policy_decides_on_ticks_during_a_run(
    times: Times, overlap: str, ran: list[int], skipped: int
) -> None:
    app = times.app
    ticks = noting(app, every="10m", overlap=overlap)
    await drain(app)
    await app.queue().apause()
    expected = []
    for _ in range(3):
        expected.append(times.move_past(10 * MINUTE))
        await drain(app)
    stats = await app.queue().astats()
    assert (stats.ready, stats.waiting) == {"skip": (1, 0), "queue": (1, 2), "allow": (3, 0)}[overlap]
    await app.queue().aresume()
    await drain(app)
    assert ticks == [expected[n] for n in ran]
    assert (await app.schedules.get("note").ainfo()).skipped == skipped
    await app.aclose()


# Missed ticks


@pytest.mark.parametrize(
    ("options", "made_up", "dropped"),
    [
        ({"missed": "once"}, 1, 5),
        ({"missed": "skip"}, 0, 6),
        ({"missed": "all"}, 6, 0),
        ({"missed": "all", "missed_limit": 2}, 2, 4),
    ],
)
async def test_ticks_that_no_worker_fired_follow_their_policy(
    times: Times, options: dict[str, Any], made_up: int, dropped: int
) -> None:
    """After an hour without workers."""
    app = times.app
    ticks = noting(app, every="10m", overlap="allow", **options)
    await drain(app)
    first = times.move_past(10 * MINUTE, by=0)
    missed = [first + n * 10 * MINUTE for n in range(6)]
    times.move_to(missed[-1] + GRACE_MS + MINUTE)
    await drain(app)
    assert ticks == (missed[-made_up:] if made_up else [])
    info = await app.schedules.get("note").ainfo()
    assert (info.fired, info.dropped, info.next_ms) == (made_up, dropped, missed[-1] + 10 * MINUTE)
    history = await app.schedules.get("note").ahistory()
    assert [ran.what for ran in history] == ["fired"] * made_up + [f"dropped {dropped}"] * bool(dropped)
    ticks.clear()
    tick = times.move_past(10 * MINUTE)
    await drain(app)
    assert ticks == [tick], "the next tick is fired as usual"


# Failures


async def test_a_stale_schedule_of_a_task_that_is_gone_does_not_pile_up_jobs(times: Times) -> None:
    """As after a deploy that took the task away."""
    noting(times.app, every="10m")
    await drain(times.app)
    newer = times.another()

    @newer.task
    def other() -> None: ...

    for _ in range(20):
        times.move_past(10 * MINUTE)
        await drain(newer)
    assert (await newer.queue().astats()).living == 1
    info = await newer.schedules.get("note").ainfo()
    assert (info.fired, info.skipped) == (1, 19)
    await newer.queue().aclear()
    await newer.aclose()


async def test_a_record_that_cannot_be_read_does_not_stop_the_others(
    times: Times, caplog: pytest.LogCaptureFixture
) -> None:
    app = times.app
    ticks = noting(app)
    await app.aschedule("bad", app.tasks["note"], every="10m")
    await app.aschedule("good", app.tasks["note"], every="10m")
    keys = app.engine.keys_of("default")
    await app.engine.arun(Call([b"HSET", keys.key("schedules"), b"bad", b'{"of": "a later version"}']))
    tick = times.move_past(10 * MINUTE)
    with caplog.at_level(logging.ERROR, "relevo"):
        await drain(app)
    assert ticks == [tick]
    assert "schedule bad cannot be read" in caplog.text
    assert [info.name for info in await app.schedules.alist()] == ["good"]
    assert await app.schedules.get("bad").aremove(), "it can still be removed"
    await app.aclose()
