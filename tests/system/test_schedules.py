"""Schedules as their users rely on them: decorated, at run time, from settings; what fires, when, and what stops it."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from relevo import Relevo, State
from relevo.engine import job_store
from relevo.engine.ids import looks_like_id
from relevo.engine.job import Envelope
from relevo.errors import ConfigurationError, OptionError, PayloadError, SettingsError, UnknownSchedule
from relevo.schedules.cron import Cron, ticks_between
from relevo.schedules.firing import Timetable, described, registering
from relevo.schedules.handle import STALE_MS, ScheduleInfo
from relevo.store.plan import Call
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times, noting
from tests.working import drain, working


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory, at_full_hour=True)


def envelope_of(app: Relevo, id: str, queue: str = "default") -> Envelope:
    seen: job_store.Seen = app.engine.run(job_store.look(app.engine.keys_of(queue), id))
    assert seen.envelope is not None
    return seen.envelope


# Decorators


async def test_decorated_tasks_are_registered_by_a_worker_with_all_options(app: Relevo) -> None:
    @app.task(
        name="nightly",
        cron="30 2 * * *",
        tz="Europe/Madrid",
        overlap="queue",
        missed="all",
        missed_limit=7,
        jitter="10m",
        queue="reports",
        priority=7,
    )
    def nightly(days: int = 7) -> None: ...

    @app.task(name="often", every=timedelta(seconds=90))
    def often() -> None: ...

    assert await app.schedules.alist() == []
    await drain(app)
    first, second = await app.schedules.alist()
    assert first == ScheduleInfo(
        name="nightly",
        task="nightly",
        queue="reports",
        when="30 2 * * *",
        tz="Europe/Madrid",
        words="at 02:30 every day, Europe/Madrid time",
        args=[],
        kwargs={},
        priority=7,
        overlap="queue",
        missed="all",
        missed_limit=7,
        jitter=600.0,
        origin="code",
        stale=False,
        paused_ms=None,
        next_ms=first.next_ms,
        last_job="",
        fired=0,
        skipped=0,
        dropped=0,
    )
    assert (second.name, second.when, second.tz, second.words) == ("often", "90s", "", "every 90 seconds")
    assert (second.overlap, second.missed, second.jitter) == ("skip", "once", 0.0)
    assert first.next_ms is not None and second.next_ms is not None
    at = datetime.fromtimestamp(first.next_ms / 1000, UTC)
    assert (at.hour, at.minute, at.second) in ((0, 30, 0), (1, 30, 0)), "02:30 in Madrid"
    assert second.next_ms % 90_000 == 0
    assert 0 < second.next_ms - app.engine.run(app.engine.now_ms()) <= 90_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cron": "61 * * * *"}, r"cron: the minute of '61 \* \* \* \*' is wrong at '61': it is out of range"),
        ({"cron": "@daily", "every": "1d"}, "cron and every are two schedules"),
        ({"every": "10s", "tz": "UTC"}, "tz: a fixed distance has no time zone"),
        ({"tz": "UTC"}, "a schedule needs cron="),
        ({"every": "10ms"}, "every: from 1s to 366d is needed"),
        ({"every": "10s", "overlap": "skpi"}, "overlap: one of skip, queue, allow is needed, found 'skpi'"),
        ({"every": "10s", "jitter": "10s"}, "jitter: less than the 10s between two runs"),
        ({"every": "10s", "unique": "queued"}, "options of one job, not of a schedule"),
        ({"every": "10s", "evry": "10s"}, "unknown option 'evry'"),
        ({"every": "10s", "name": "other"}, "days"),
    ],
)
def test_a_wrong_schedule_is_refused_where_it_is_written(app: Relevo, options: dict[str, Any], said: str) -> None:
    def report() -> None: ...

    def other(days: int) -> None: ...

    with pytest.raises((OptionError, PayloadError), match=said.replace("?", r"\?")):
        app.task(**{"name": "report", **options})(other if "name" in options else report)
    assert (app.tasks, app.engine.part(Timetable).named) == ({}, {}), "neither a task nor a schedule is left"


# app.schedule


async def test_a_task_or_a_complete_call_is_scheduled(times: Times) -> None:
    app = times.app
    ran: list[tuple[int, str]] = []

    @app.task(name="report")
    async def report(days: int = 1, *, kind: str = "short") -> None:
        ran.append((days, kind))

    await app.aschedule("plain", report, every="1h")
    await app.aschedule("called", report.s(7, kind="long"), every="1h")
    await app.aschedule("whole", report.si(9), every="1h")
    called = await app.schedules.get("called").ainfo()
    assert (called.args, called.kwargs, called.task, called.origin) == ([7], {"kind": "long"}, "report", "call")
    await drain(app)
    assert ran == [], "it first runs at its next tick"
    times.move_past(HOUR)
    await drain(app)
    assert sorted(ran) == [(1, "short"), (7, "long"), (9, "short")]


def test_a_schedule_with_wrong_options_is_refused(app: Relevo, app_factory: AppFactory) -> None:
    @app.task(name="report")
    def report(days: int) -> None: ...

    @app_factory().task(name="other")
    def other() -> None: ...

    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: app.schedule("x", report, every="1h"), "days"),
        (lambda: app.schedule("x", report.s("seven"), every="1h"), "days"),  # type: ignore[call-overload]
        (lambda: app.schedule("x", lambda: None, every="1h"), "a schedule runs a task"),  # type: ignore[arg-type]
        (lambda: app.schedule("x", "report", every="1h"), "found 'report'"),  # type: ignore[arg-type]
        (lambda: app.schedule("x", other, every="1h"), "not of"),
        (lambda: app.schedule("x", report.s(7)), "a schedule needs cron="),
        (lambda: app.schedule("x y", report.s(7), every="1h"), "name: printable text"),
        (lambda: app.schedule("", report.s(7), every="1h"), "name: printable text"),
        (lambda: app.schedule("x", report.s(7), every="1h", delay="1m"), "delay: an option of one job"),
        (lambda: app.schedule("x", report.s(7), every="1h", name="y"), "name: an option of one job"),
        (lambda: app.schedule("x", report.using(eta=datetime.now(UTC)).s(7), every="1h"), "options of one job"),
        (lambda: app.schedule("x", report.using(name="y").s(7), every="1h"), "options of one job"),
        (lambda: app.schedule("x", report.s(7), every="1h", prioritty=3), "did you mean 'priority'?"),
        (lambda: app.schedule("x", report.s(7), every="1h", executor="thread"), "executor"),
        (lambda: app.schedule("x", report.s(7), every="1h", queue="dead_letter"), "reserved"),
    ]
    for attempt, said in refusals:
        with pytest.raises((ConfigurationError, PayloadError)) as refused:
            attempt()
        assert said in str(refused.value)
    assert app.schedules.list() == []


async def test_all_options_are_kept_on_the_jobs(times: Times) -> None:
    """Priority, retries and all options of the task are kept."""
    app = times.app

    @app.task(name="report", retries=1, timeout="1m")
    def report(days: int) -> None: ...

    await app.aschedule(
        "weekly",
        report.using(result_ttl="9m").s(7),
        every="1h",
        priority=3,
        retries=5,
        queue="reports",
        tenant="acme",
        weight=2,
        tags=["a", "b"],
        expires="30m",
        timeout="10s",
        failure_ttl="1d",
        on_failure="tell",
    )
    worker = Worker(app, queues=["default"], burst=True)  # it does not run what it should show
    tick = times.move_past(HOUR)
    await worker.run()
    assert (await app.schedules.get("weekly").ainfo()).fired == 0
    await app.queue("reports").apause()
    await drain(app, queues=["reports"])
    (row,) = await app.queue("reports").ajobs(state="ready")
    info = await (await app.ajob(row.id)).ainfo()
    assert (info.task, info.args, info.priority, info.tenant, info.tags) == ("report", [7], 3, "acme", ("a", "b"))
    body = await asyncio.to_thread(envelope_of, app, row.id, "reports")
    assert (body.retries, body.timeout, body.result_ttl, body.failure_ttl) == (5, 10.0, 540.0, 86_400.0)
    assert (body.expires_ms, body.tick_ms, body.weight, body.on_failure) == (tick + 30 * MINUTE, tick, 2.0, "tell")
    await app.queue("reports").aresume()
    times.move(31 * MINUTE)
    await drain(app, queues=["reports"])
    assert (await info_state(app, row.id)) is State.EXPIRED, "counted from its tick"
    await app.aclose()


async def info_state(app: Relevo, id: str) -> State:
    return (await (await app.ajob(id)).ainfo()).state


async def test_options_of_the_task_follow_the_task(times: Times) -> None:
    """As with all jobs: a deploy also changes what is scheduled."""
    app = times.app
    noting(app, retries=9, timeout="9s", every="1h")
    await drain(app)
    times.move_past(HOUR)
    await app.queue().apause()
    await drain(app)
    (row,) = await app.queue().ajobs(state="ready")
    body = await asyncio.to_thread(envelope_of, app, row.id)
    assert (body.retries, body.timeout) == (None, None)
    await app.queue().aresume()


async def test_run_now_is_for_new_schedules_only(app: Relevo) -> None:
    ticks = noting(app)
    before = app.engine.run(app.engine.now_ms())
    for _ in range(3):
        await app.aschedule("often", app.tasks["note"], every="1h", run_now=True)
    await app.aschedule("often", app.tasks["note"], every="2h", run_now=True)
    await drain(app)
    assert len(ticks) == 1
    assert before <= ticks[0] <= app.engine.run(app.engine.now_ms()), "asked for, and so due when it was asked for"
    (ran,) = await app.schedules.get("often").ahistory()
    assert (ran.tick_ms, ran.what) == (0, "fired")


async def test_workers_that_start_together_register_one_schedule_and_fire_each_tick_once(times: Times) -> None:
    app = times.app
    ticks = noting(app, every="5m")
    await drain(app)
    expected = []
    for _ in range(5):
        expected.append(times.move_past(5 * MINUTE))
        workers = [Worker(app) for _ in range(10)]
        running = asyncio.gather(*(worker.run() for worker in workers))
        await aeventually(lambda: len(ticks) >= len(expected), what="the tick")
        await aeventually(lambda: all(w.consumers and w.consumers[0].is_resting for w in workers), what="they rest")
        for worker in workers:
            worker.stop()
        await running
        assert ticks == expected
    assert len(await app.schedules.alist()) == 1
    await app.aclose()


# Handles: blocking and async


@pytest.mark.parametrize("how", ["blocking", "async"])
async def test_a_schedule_is_handled_from_blocking_and_from_async_code(times: Times, how: str) -> None:
    app = times.app
    noting(app)

    async def do(handle: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if how == "async":
            return await getattr(handle, f"a{method}")(*args, **kwargs)
        return await asyncio.to_thread(getattr(handle, method), *args, **kwargs)

    made = await do(app, "schedule", "often", app.tasks["note"], every="1h")
    assert made == app.schedules.get("often")
    assert repr(made) == "<Schedule often>"
    assert len({made, app.schedules.get("often"), app.schedules.get("other")}) == 2
    info = await do(made, "info")
    assert [info] == await do(app.schedules, "list")

    assert await do(made, "pause") is True
    assert await do(made, "pause") is False
    paused = await do(made, "info")
    assert (paused.next_ms, paused.paused_ms is not None) == (None, True)
    assert await do(made, "resume") is True
    assert await do(made, "resume") is False
    assert await do(made, "info") == info

    edited = await do(made, "edit", cron="@daily", tz="America/New_York", overlap="allow")
    assert (edited.when, edited.tz, edited.overlap) == ("@daily", "America/New_York", "allow")
    assert await do(made, "info") == edited

    job = await do(made, "run_now")
    assert looks_like_id(job.id)
    await drain(app)
    assert await job.astate() is State.DONE
    (ran,) = await do(made, "history")
    assert (ran.job, ran.what) == (job.id, "fired")

    assert await do(made, "remove") is True
    assert await do(made, "remove") is False
    assert await do(app.schedules, "list") == []
    assert await do(app.schedules, "remove_stale") == []
    await do(app, "schedule", "oftener", app.tasks["note"], every="1h")
    for method in ("info", "pause", "resume", "run_now", "edit", "history"):
        with pytest.raises(UnknownSchedule, match="no schedule 'often', did you mean 'oftener'"):
            await do(made, method)
    await app.aclose()


# Editing


async def test_an_edit_changes_when_it_fires_and_nothing_else(times: Times) -> None:
    app = times.app

    @app.task(name="report")
    def report(days: int) -> None: ...

    handle = await app.aschedule(
        "weekly", report.s(7), cron="@weekly", tz="Asia/Kolkata", missed="all", missed_limit=3, jitter="1h", priority=3
    )
    before = await handle.ainfo()
    edited = await handle.aedit(cron="0 9 * * *")
    assert edited == msgspec.structs.replace(
        before, when="0 9 * * *", words="at 09:00 every day, Asia/Kolkata time", next_ms=edited.next_ms
    )
    assert (await handle.aedit(tz="UTC")).words == "at 09:00 every day, UTC"
    edited = await handle.aedit(every="2h", jitter=0)
    assert (edited.when, edited.tz, edited.jitter, edited.args, edited.priority) == ("7200s", "", 0.0, [7], 3)
    assert (await handle.aedit(missed="skip", missed_limit=9)).next_ms == edited.next_ms
    edited = await handle.aedit(cron="@daily")
    assert (edited.when, edited.tz, edited.missed, edited.missed_limit) == ("@daily", "UTC", "skip", 9)
    assert await handle.aedit() == edited
    await app.aclose()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cron": "99 * * * *"}, "cron: the minute"),
        ({"cron": "@daily", "every": "1h"}, "two schedules"),
        ({"tz": "UTC"}, "a fixed distance has no time zone"),
        ({"overlap": "maybe"}, "overlap: one of"),
        ({"every": "1m"}, "jitter: less than the 1m between two runs"),
        ({"priority": 3}, "edit: 'priority' is not about when it fires; call app.schedule"),
        ({"evry": "1m"}, "did you mean 'every'?"),
    ],
)
def test_a_wrong_edit_is_refused_and_changes_nothing(app: Relevo, changes: dict[str, Any], said: str) -> None:
    noting(app)
    handle = app.schedule("often", app.tasks["note"], every="1h", jitter="5m")
    before = handle.info()
    with pytest.raises(OptionError) as refused:
        handle.edit(**changes)
    assert said in str(refused.value)
    assert handle.info() == before


async def test_an_edit_of_decorated_code_stands_until_the_code_changes(times: Times) -> None:
    noting(times.app, every="1h")
    await drain(times.app)
    handle = times.app.schedules.get("note")
    await handle.aedit(every="10m")
    for _ in range(3):
        times.move_past(10 * MINUTE)
        await drain(times.app)
    assert (await handle.ainfo()).when == "600s"
    assert (await handle.ainfo()).fired == 3
    newer = times.another()
    noting(newer, every="2h")
    await drain(newer)
    assert (await newer.schedules.get("note").ainfo()).when == "7200s"
    await newer.aclose()
    await times.app.aclose()


# Pausing and removing


async def test_a_decorated_schedule_that_is_removed_comes_back_with_the_next_worker(times: Times) -> None:
    app = times.app
    noting(app, every="10m")
    await drain(app)
    assert await app.schedules.get("note").aremove()
    assert await app.schedules.alist() == []
    await drain(app)
    assert [info.name for info in await app.schedules.alist()] == ["note"]
    await app.aclose()


# Stale


async def is_stale(app: Relevo, name: str = "note") -> bool:
    return (await app.schedules.get(name).ainfo()).stale


async def test_a_schedule_that_no_worker_named_for_five_minutes_is_stale_and_removed_by_one_command(
    times: Times,
) -> None:
    noting(times.app, every="10m")
    await drain(times.app)
    newer = times.another()

    @newer.task(name="other")
    def other() -> None: ...

    await newer.aschedule("called", other, every="1h")
    times.move(STALE_MS + MINUTE)
    assert not await is_stale(newer), "without a worker it could not be named"
    async with working(newer):
        await aeventually(lambda: is_stale(newer), what="stale")
        assert not await is_stale(newer, "called"), "nothing but a call named it, ever"
        assert not await is_stale(times.app), "this code names it"
        assert [(info.name, info.stale) for info in await newer.schedules.alist()] == [
            ("called", False),
            ("note", True),
        ]
        assert await newer.schedules.aremove_stale() == ["note"]
        assert await newer.schedules.aremove_stale() == []
    assert [info.name for info in await newer.schedules.alist()] == ["called"]
    await newer.aclose()
    await times.app.aclose()


async def test_a_schedule_is_not_stale_yet_while_workers_are_replaced(times: Times) -> None:
    noting(times.app, every="10m")
    await drain(times.app)
    newer = times.another()
    async with working(newer) as worker:
        await aeventually(lambda: worker.consumers, what="it works")
        times.move(STALE_MS - MINUTE)
        assert not await is_stale(newer)
        times.move(2 * MINUTE)
        await aeventually(lambda: is_stale(newer), what="stale")
        async with working(times.app):  # an older version is started once more
            await aeventually(lambda: not_stale(newer), what="named again")
    await newer.aclose()


async def not_stale(app: Relevo) -> bool:
    return not await is_stale(app)


# Queues


def steps_of(app: Relevo, plan: Generator[Call[Any], Any, Any]) -> Generator[None, None, None]:
    """A plan, call by call."""
    answer = None
    while True:
        try:
            call = plan.send(answer)
        except StopIteration:
            return
        answer = app.engine.run(call)
        yield


@pytest.mark.parametrize("crossing", ["moved both ways", "registered and removed", "registered twice", "moved once"])
@pytest.mark.parametrize("seed", range(25))
def test_however_two_plans_cross_a_schedule_fires_in_one_place_or_nowhere(
    app: Relevo, crossing: str, seed: int
) -> None:
    """As in a deploy in steps that moves it to another queue, or is removed while a worker starts."""
    chance = random.Random(seed)

    @app.task(name="note")
    def note() -> None: ...

    old, new = (
        described(app.engine, "note", note, {"every": "10m", "queue": queue}, "code") for queue in ("old", "new")
    )
    for queue in ("old", "new"):
        app.engine.run(app.engine.list_queue(queue))
    app.engine.run(registering(app.engine, old))
    removal = app.schedules.get("note")._remove()
    plans: dict[str, tuple[Any, Any]] = {
        "moved both ways": (registering(app.engine, old), registering(app.engine, new)),
        "registered and removed": (registering(app.engine, old), removal),
        "registered twice": (registering(app.engine, old), registering(app.engine, old)),
        "moved once": (registering(app.engine, new), registering(app.engine, new)),
    }
    running = [steps_of(app, plan) for plan in plans[crossing]]
    while running:
        one = chance.choice(running)
        if next(one, running) is running:
            running.remove(one)
    kept = [
        one
        for one in ("old", "new")
        if app.engine.run(Call[int]([b"EXISTS", app.engine.keys_of(one).key("schedules")]))
    ]
    assert kept == [info.queue for info in app.schedules.list()], "what fires is what is listed"
    assert len(kept) <= 1
    if crossing in ("registered twice", "moved once"):
        assert len(kept) == 1
    app.engine.run(registering(app.engine, new))
    assert [info.queue for info in app.schedules.list()] == ["new"]
    assert app.schedules.get("note").remove()


async def test_a_worker_of_any_queue_registers_a_schedule_and_one_of_its_queue_fires_it(times: Times) -> None:
    app = times.app
    ticks = noting(app, every="10m", queue="reports")
    await drain(app, queues=["mails"])
    assert [info.queue for info in await app.schedules.alist()] == ["reports"]
    assert "reports" in await app.aqueues()
    tick = times.move_past(10 * MINUTE)
    await drain(app, queues=["mails"])
    assert (await app.schedules.get("note").ainfo()).fired == 0
    await drain(app, queues=["reports"])
    assert ticks == [tick]


# Settings


async def test_schedules_come_from_settings(times: Times) -> None:
    app = times.another(
        schedules={
            "weekly": {"task": "report", "args": [7], "kwargs": {"kind": "long"}, "every": "10m", "priority": 3},
            "plain": {"task": "report", "cron": "@daily", "tz": "Europe/Madrid", "queue": "reports"},
        }
    )
    ran: list[tuple[int, str]] = []

    @app.task(name="report")
    async def report(days: int = 1, *, kind: str = "short") -> None:
        ran.append((days, kind))

    await drain(app)
    plain, weekly = await app.schedules.alist()
    assert (plain.name, plain.origin, plain.queue, plain.tz) == ("plain", "settings", "reports", "Europe/Madrid")
    assert (weekly.name, weekly.origin, weekly.priority) == ("weekly", "settings", 3)
    times.move_past(10 * MINUTE)
    await drain(app)
    assert ran == [(7, "long")]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"task": "reprot"}, "did you mean 'report'?"),
        ({"task": "report", "args": ["seven"]}, "days"),
        ({"task": "report", "args": [7], "prority": 3}, "did you mean 'priority'?"),
        ({"task": "report"}, "days"),
    ],
)
async def test_a_wrong_schedule_of_the_settings_is_logged_and_the_others_run(
    times: Times, caplog: pytest.LogCaptureFixture, table: dict[str, Any], said: str
) -> None:
    good = {"task": "note", "every": "10m"}
    app = times.another(schedules={"a": good, "bad": {**table, "every": "10m"}, "c": good})
    noting(app)

    @app.task(name="report")
    def report(days: int) -> None: ...

    with caplog.at_level(logging.ERROR, "relevo"):
        await drain(app)
    assert "schedule 'bad' of the settings" in caplog.text
    assert said in caplog.text
    assert [info.name for info in await app.schedules.alist()] == ["a", "c"]
    await app.aclose()


def test_a_schedule_that_can_never_be_is_refused_with_the_settings(app_factory: AppFactory) -> None:
    with pytest.raises(SettingsError, match=r"schedules\.x: cron: '0 0 30 2 \*' never comes"):
        app_factory(schedules={"x": {"task": "report", "cron": "0 0 30 2 *"}})


# Under test


# The guide


def test_the_guide_is_right_about_days_on_which_clocks_change() -> None:
    zone = ZoneInfo("Europe/Madrid")
    guide = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text("utf-8")
    head, *rows = re.findall(
        r"^\| `(.+?)`(.*?) \| (.*) \| (.*) \|$", guide.partition("## When clocks change")[2], re.MULTILINE
    )
    assert head[:2] == ("cron", " in Europe/Madrid") and len(rows) == 6
    for expression, _, *cells in rows:
        for day, cell in zip(head[2:], cells, strict=True):
            start = datetime.fromisoformat(day.partition(",")[0]).replace(tzinfo=zone)
            end = start + timedelta(days=1)
            after_ms, until_ms = (int(at.timestamp() * 1000) - 1 for at in (start, end))
            ticks = ticks_between(Cron(expression, zone.key), after_ms, until_ms, 100).times
            said = re.match(r"(\d+) ticks?(?:: (.*))?", cell)
            assert said is not None and int(said[1]) == len(ticks), (expression, day)
            if said[2]:
                at = (datetime.fromtimestamp(tick / 1000, zone) for tick in ticks)
                assert said[2] == ", ".join(f"{one:%H:%M%z}" for one in at), (expression, day)
