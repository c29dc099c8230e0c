"""Jobs that run by the clock, which the testing kit moves in these tests."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from relevo import Relevo, current_job
from relevo.errors import OptionError, UnknownSchedule
from relevo.testing import TestKit
from tests.eventually import PATIENCE


def test_a_task_runs_by_the_clock(app: Relevo, kit: TestKit) -> None:
    # Given a task with an interval
    fetched: list[str] = []

    @app.task(every="10m")
    def fetch_feeds() -> None:
        fetched.append("feeds")

    # If a worker runs, I expect it to register the schedule, and no run before its time
    kit.drain()
    assert fetched == []

    # If time passes, I expect a run for each ten minutes
    for _ in range(3):
        kit.clock.move("10m")
        kit.drain()
    assert fetched == ["feeds"] * 3


def test_a_time_of_day_has_a_time_zone(app: Relevo, kit: TestKit) -> None:
    # Given a task that runs at a time of day, in a city
    @app.task(name="report", cron="30 2 * * *", tz="Europe/Madrid")
    def report() -> None: ...

    # If I look at its schedule
    kit.drain()
    info = app.schedules.get("report").info()

    # I expect a description in words, and the next run at that local time
    assert info.words == "at 02:30 every day, Europe/Madrid time"
    assert info.next_ms is not None
    next_tick = datetime.fromtimestamp(info.next_ms / 1000, ZoneInfo("Europe/Madrid"))
    assert (next_tick.hour, next_tick.minute) == (2, 30)


def test_a_schedule_is_made_at_run_time_with_arguments_and_options(app: Relevo, kit: TestKit) -> None:
    # Given a task that takes arguments
    reported: list[tuple[str, int]] = []

    @app.task
    def report(customer: str, *, days: int) -> None:
        reported.append((customer, days))

    # If I schedule calls of it, each under a name of its own
    app.schedule("report-ana", report.s("ana", days=7), every="1d", priority=50)
    app.schedule("report-luis", report.s("luis", days=1), every="1d")
    app.schedule("report-luis", report.s("luis", days=2), every="1d")  # the same name: changed, not doubled

    # I expect one run of each a day
    kit.clock.move("1d")
    kit.drain()
    assert sorted(reported) == [("ana", 7), ("luis", 2)]


def test_the_first_run_is_at_the_next_tick_unless_run_now_is_set(app: Relevo, kit: TestKit) -> None:
    # Given a task
    ran: list[str] = []

    @app.task
    def warm_up(what: str) -> None:
        ran.append(what)

    # If I schedule it with and without a run now, and start my program a second time
    for _ in range(2):
        app.schedule("later", warm_up.s("later"), every="1d")
        app.schedule("now", warm_up.s("now"), every="1d", run_now=True)

    # I expect one run at once
    kit.drain()
    assert ran == ["now"]


def test_a_job_knows_its_tick(app: Relevo, kit: TestKit) -> None:
    # Given a task that reports on the hour before it
    hours: list[datetime] = []

    @app.task(cron="@hourly")
    def report() -> None:
        tick_ms = current_job().tick_ms
        assert tick_ms is not None
        hours.append(datetime.fromtimestamp(tick_ms / 1000, UTC))

    # If its job starts
    kit.drain()
    kit.clock.move("1h")
    kit.drain()

    # I expect it to know which hour it is for
    (hour,) = hours
    assert (hour.minute, hour.second, hour.microsecond) == (0, 0, 0)


def test_runs_of_a_schedule_do_not_overlap(app: Relevo, kit: TestKit) -> None:
    # Given tasks that cannot run, because their queue is paused
    ran: list[str] = []

    @app.task(name="skips", every="10m")
    def skips() -> None:
        ran.append("skips")

    @app.task(name="queues", every="10m", overlap="queue")
    def queues() -> None:
        ran.append("queues")

    kit.drain()
    app.queue().pause()

    # If three ticks pass
    for _ in range(3):
        kit.clock.move("10m")
        kit.drain()
    app.queue().resume()
    kit.drain()

    # I expect the second and third to be skipped, or, with overlap="queue", to run one after the other
    assert sorted(ran) == ["queues", "queues", "queues", "skips"]
    assert app.schedules.get("skips").info().skipped == 2


def test_after_an_outage_missed_ticks_run_once(app: Relevo, kit: TestKit) -> None:
    # Given tasks that run every hour, and eight hours without workers
    ran: list[str] = []

    @app.task(name="once", every="1h")
    def once() -> None:
        ran.append("once")

    @app.task(name="each", every="1h", missed="all", overlap="allow")
    def each() -> None:
        ran.append("each")

    kit.drain()
    kit.clock.move("8h")

    # If a worker starts, I expect one run, or, with missed="all", one for each hour
    kit.drain()
    assert (ran.count("once"), ran.count("each")) == (1, 8)


def test_a_task_that_fails_does_not_end_its_schedule(app: Relevo, kit: TestKit) -> None:
    # Given a task that always fails
    @app.task(name="broken", every="1h", retries=0)
    def broken() -> None:
        raise ValueError("no connection")

    # If its jobs become dead letters, I expect the schedule to go on
    kit.drain()
    for _ in range(3):
        kit.clock.move("1h")
        kit.drain()
    assert len(app.dead.list()) == 3
    assert app.schedules.get("broken").info().paused_ms is None


def test_a_schedule_is_paused_run_by_hand_and_resumed(app: Relevo, kit: TestKit) -> None:
    # Given a paused schedule
    ran: list[str] = []

    @app.task
    def clean_up() -> str:
        ran.append("clean")
        return "cleaned"

    schedule = app.schedule("clean-up", clean_up, every="1h")
    assert schedule.pause()

    # I expect no tick to fire
    kit.clock.move("5h")
    kit.drain()
    assert ran == []

    # If I run it by hand, I expect one run, and its result
    job = schedule.run_now()
    kit.drain()
    assert job.result(timeout=PATIENCE) == "cleaned"

    # If it is resumed, I expect the next tick to fire, and none of those that passed
    assert schedule.resume()
    kit.drain()
    assert ran == ["clean"]
    kit.clock.move("1h")
    kit.drain()
    assert ran == ["clean", "clean"]

    # and both runs in its history, newest first
    by_hand, by_clock = schedule.history()[1], schedule.history()[0]
    assert (by_hand.tick_ms, by_hand.job, by_clock.tick_ms > 0) == (0, job.id, True)


def test_a_schedule_is_changed_and_removed(app: Relevo, kit: TestKit) -> None:
    # Given a schedule
    @app.task
    def clean_up() -> None: ...

    schedule = app.schedule("clean-up", clean_up, every="1h")

    # If I change when it fires, I expect the rest to stay as it was
    assert schedule.edit(cron="0 4 * * SUN", tz="America/New_York").words == "at 04:00 on Sunday, America/New_York time"

    # If I remove it, I expect it to be gone, and nothing to fire
    assert schedule.remove()
    assert app.schedules.list() == []
    with pytest.raises(UnknownSchedule):
        schedule.info()


def test_a_time_that_never_comes_is_refused_where_it_is_written(app: Relevo) -> None:
    # If I write an expression that can never fire, I expect an error with the reason
    with pytest.raises(OptionError, match="never comes: there is no day 30 in February"):

        @app.task(cron="0 0 30 2 *")
        def report() -> None: ...
