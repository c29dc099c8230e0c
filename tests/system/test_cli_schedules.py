"""`relevo schedules`: what it says in text and JSON, on terminals wide and narrow, and its exit codes."""

from __future__ import annotations

import re
import time

import pytest

from relevo import Relevo
from relevo.engine import workers
from relevo.engine.ids import looks_like_id
from relevo.engine.workers import WorkerInfo
from relevo.schedules.firing import Timetable
from relevo.schedules.handle import STALE_MS
from relevo.store.plan import Call
from tests.servers import Server
from tests.system.shell import Output, on_terminal, plain, relevo
from tests.working import drain

#: In words, in the zone of the schedule, in winter and in summer.
AT_HALF_PAST_TWO = r"(\w{3} )?02:30 CES?T +in \w+"


class Shop:
    """An app with schedules, and the command that is asked about them."""

    def __init__(self, server: Server, app: Relevo) -> None:
        self._server = server
        self.app = app

        @app.task(name="shop.report", retries=0)
        async def report(days: int = 1, *, kind: str = "short") -> int:
            if days > 30:
                raise ValueError("too many")
            return days

        self.report = report

    def ask(self, action: str, *words: str) -> Output:
        return relevo("schedules", action, *words, "--name", self.app.name, url=self._server.url)

    def forget(self, name: str, *, ago_ms: int) -> None:
        """As if no worker had named a schedule for so long, although one lives."""
        app, now_ms = self.app, time.time_ns() // 1_000_000
        app.engine.run(Call([b"HSET", app.engine.keys_of("default").key("ticks"), f"seen:{name}", now_ms - ago_ms]))
        app.engine.run(
            workers.present(
                app.engine.keys,
                WorkerInfo(id="w-1", host="box", pid=4711, queues=("default",), concurrency=10, started_ms=now_ms),
            )
        )
        app.engine.run(workers.listed(app.engine.keys, "w-1"))


@pytest.fixture
def shop(server: Server, app: Relevo) -> Shop:
    return Shop(server, app)


def table(text: str) -> dict[str, list[str]]:
    """Cells by the first one of their row."""
    rows = [re.split(r"  +", line) for line in text.splitlines()]
    return {row[0]: row[1:] for row in rows}


# list


def test_all_schedules_are_listed_with_what_they_mean_and_when_they_fire(shop: Shop) -> None:
    shop.app.schedule("nightly", shop.report, cron="30 2 * * *", tz="Europe/Madrid", queue="reports")
    shop.app.schedule("often", shop.report.s(7), every="14d")
    shop.app.schedule("never", shop.report, cron="@yearly").pause()
    seen = shop.ask("list")
    assert (seen.code, seen.err) == (0, "")
    assert [line.split()[0] for line in seen.out.splitlines()] == ["NAME", "never", "nightly", "often"]
    never, nightly, often = seen.out.splitlines()[1:]
    assert re.fullmatch(rf"nightly  at 02:30 every day +{AT_HALF_PAST_TWO} +- +shop\.report  reports", nightly), nightly
    assert re.fullmatch(r"never    at 00:00 on January 1 +- +- +paused  shop\.report  default", never), never
    assert re.search(r"often    every 14 days +(\S+|\w{3} 00:00 UTC|00:00 UTC) +in \d+[dhms]", often), often


async def test_the_state_of_a_last_run_outlives_its_record(shop: Shop) -> None:
    for name, days in (("well", 7), ("badly", 31), ("gone", 1)):
        await shop.app.aschedule(name, shop.report.s(days), every="1d", run_now=True)
    await drain(shop.app)
    job = (await shop.app.schedules.get("gone").ainfo()).last_job
    await shop.app.engine.arun(Call([b"DEL", shop.app.engine.keys_of("default").key("ended") + b":" + job.encode()]))
    seen = shop.ask("list").out
    assert re.search(r"well .* done \w+ ago ", seen)
    assert re.search(r"badly .* dead \w+ ago ", seen)
    assert re.search(r"gone .* ended \w+ ago ", seen)
    listed = {row["name"]: row["last"]["state"] for row in shop.ask("list", "--json").json["items"]}
    assert listed == {"well": "done", "badly": "dead", "gone": "unknown"}
    await shop.app.aclose()


def test_schedules_as_json_have_every_field(shop: Shop) -> None:
    shop.app.schedule("weekly", shop.report.s(7, kind="long"), cron="@weekly", tz="Asia/Kolkata", priority=3, retries=4)
    (row,) = shop.ask("list", "--json").json["items"]
    info = shop.app.schedules.get("weekly").info()
    assert row == {
        "name": "weekly", "task": "shop.report", "queue": "default", "args": [7], "kwargs": {"kind": "long"},
        "when": "@weekly", "tz": "Asia/Kolkata", "words": "at 00:00 on Sunday, Asia/Kolkata time",
        "priority": 3, "overlap": "skip", "missed": "once", "missed_limit": 100, "jitter": 0.0,
        "origin": "call", "stale": False, "paused_ms": None, "until_ms": None, "next_ms": info.next_ms,
        "last_job": "", "fired": 0, "skipped": 0, "dropped": 0, "late": False, "last": None,
    }  # fmt: skip
    del row["last"]
    ahead_ms = [row["next_ms"] + n * 7 * 24 * 3_600_000 for n in range(5)]
    more = {"seen_ms": None, "options": {"retries": 4}, "ahead_ms": ahead_ms, "history": []}
    assert shop.ask("show", "weekly", "--json").json == {**row, **more}


def test_late_schedule_is_marked(shop: Shop) -> None:
    shop.app.engine.part(Timetable).named.clear()
    shop.app.schedule("late", shop.report, every="1h")
    shop.app.schedule("both", shop.report, every="1h")
    keys = shop.app.engine.keys_of("default")
    long_ago = time.time_ns() // 1_000_000 - 20 * 60_000
    shop.app.engine.run(Call([b"HSET", keys.key("ticks"), "due:late", long_ago, "due:both", long_ago]))
    shop.app.schedules.get("both").pause()
    seen = shop.ask("list").out
    assert re.search(r"late +every hour +\S+( \S+)? UTC +2\dm ago +- +late +shop", seen), seen
    assert re.search(r"both +every hour +- +- +paused +shop", seen), seen
    assert re.search(r"late: the tick of 2\dm ago waits, for no worker serves 'default'", shop.ask("show", "late").out)


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_whole_lines(shop: Shop, server: Server, columns: int) -> None:
    for name, cron in (("shop.reports.nightly", "30 2 * * *"), ("working-days", "0 9 * * MON-FRI")):
        shop.app.schedule(name, shop.report, cron=cron, tz="America/Argentina/Buenos_Aires")

    def screen(*words: str) -> list[str]:
        seen = on_terminal("schedules", *words, "--name", shop.app.name, url=server.url, columns=columns)
        assert seen.code == 0, seen
        return plain(seen.out)

    lines = screen("list")
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 7, "none takes more than three"
    assert ("shop.report" in " ".join(lines[1:]).replace("shop.reports", "")) == (columns == 120)
    shown = screen("show", "working-days")
    assert max(map(len, shown)) <= 80
    assert shown[1] == "fires     at 09:00 on Monday through Friday, America/Argentina/Buenos_Aires time"


# show


async def test_one_schedule_is_explained_with_its_ticks_and_its_runs(shop: Shop) -> None:
    handle = await shop.app.aschedule(
        "nightly", shop.report.s(7, kind="long"), cron="30 2 * * *", tz="Europe/Madrid", overlap="queue", missed="all",
        missed_limit=1000, jitter="10m", retries=5, timeout="30s", tenant="acme", tags=["a"], expires="1h",
    )  # fmt: skip
    well = await handle.arun_now()
    await drain(shop.app)
    waits = await handle.arun_now()
    seen = shop.ask("show", "nightly")
    assert (seen.code, seen.err) == (0, "")
    about, ahead, runs = seen.out.split("\n\n")
    assert about.splitlines() == [
        "schedule nightly",
        "fires      at 02:30 every day, Europe/Madrid time",
        "cron       30 2 * * * in Europe/Madrid",
        "task       shop.report",
        'arguments  7, kind="long"',
        "queue      default",
        "priority   100",
        'options    tenant "acme", expires 3600.0, tags ["a"], retries 5, timeout 30.0',
        "made by    app.schedule(…) at run time",
        "overlap    queue: a tick waits until the run before has ended, however it ends",
        "missed     all: ticks that no worker fired in time are caught up, 1,000 at most",
        "jitter     starts are spread over the 10m after a tick",
        "ticks      2 fired, 0 skipped, 0 dropped",
    ]
    assert ahead.startswith("next ticks\n")
    assert len(re.findall(r"^  \d{4}-\d\d-\d\d 02:30:00 CES?T  in \S+$", ahead, re.MULTILINE)) == 5
    title, head, *rows = runs.splitlines()
    assert (title, head.split()) == ("last runs", ["TICK", "WHAT", "WHEN", "JOB", "ITS", "STATE"])
    assert [re.split("  +", row)[::3] for row in rows] == [["asked for", waits.id], ["asked for", well.id]]
    assert [row.split()[-1] for row in rows] == ["ready", "done"]
    await shop.app.queue().aclear()
    await shop.app.aclose()


def test_show_explains_interval_pause_and_missing_runs(shop: Shop) -> None:
    shop.app.schedule("often", shop.report, every="90m").pause()
    seen = shop.ask("show", "often").out
    assert re.match(r"schedule often\npaused \w+ ago: no tick fires until it is resumed\nfires     every 90 min", seen)
    assert "\nevery     1h30m, counted from 1970-01-01 00:00 UTC\n" in seen
    assert "\noverlap   skip: a tick passes while the run before has not ended\n" in seen
    assert "\nmissed    once: one run replaces all ticks that no worker fired in time\n" in seen
    assert "\n\nnext ticks, were it not paused\n  " in seen
    assert seen.endswith("\n\nno runs yet\n")


def test_show_lists_skipped_and_dropped_ticks(shop: Shop) -> None:
    shop.app.schedule("often", shop.report, every="1h")
    runs = shop.app.engine.keys_of("default").key("runs") + b":often"
    job = shop.report.enqueue()
    for row in (f'[3600000,3600005,"{job.id}","fired"]', f'[7200000,7200005,"{job.id}","skipped"]'):
        shop.app.engine.run(Call([b"LPUSH", runs, row]))
    shop.app.engine.run(Call([b"LPUSH", runs, '[10800000,90000000,"","dropped 7"]']))
    shop.app.engine.run(Call([b"PEXPIRE", runs, 60_000]))
    rows = shop.ask("show", "often").out.split("last runs\n")[1].splitlines()[1:]
    assert [re.split("  +", row)[:2] for row in rows] == [
        ["1970-01-01 03:00:00 UTC", "dropped 7"],
        ["1970-01-01 02:00:00 UTC", "skipped"],
        ["1970-01-01 01:00:00 UTC", "fired"],
    ]
    assert [row.split()[-1] for row in rows] == ["-", "ready", "ready"]
    assert len(shop.ask("show", "often", "--limit", "1").out.split("last runs\n")[1].splitlines()) == 2
    seen = shop.ask("show", "often", "--json").json
    assert [row["state"] for row in seen["history"]] == [None, "ready", "ready"]
    of_job = {"job": job.id, "what": "skipped", "state": "ready"}
    assert seen["history"][1] == {"tick_ms": 7_200_000, "at_ms": 7_200_005, **of_job}


# pause, resume, run


def test_schedules_are_paused_and_resumed_by_name(shop: Shop) -> None:
    for name in ("a", "b"):
        shop.app.schedule(name, shop.report, every="1h")
    seen = shop.ask("pause", "a", "b", "a")
    assert (seen.code, seen.out, seen.err) == (0, "paused a\npaused b\n", "")
    assert all(info.paused_ms for info in shop.app.schedules.list())
    seen = shop.ask("pause", "a")
    assert (seen.code, seen.out) == (0, "a was paused already\n")
    assert shop.ask("resume", "a", "b", "--json").json == {"resumed": ["a", "b"], "left": []}
    assert not any(info.paused_ms for info in shop.app.schedules.list())
    assert shop.ask("resume", "a").out == "a was not paused\n"


def test_unknown_name_is_reported_and_the_others_are_paused(shop: Shop) -> None:
    shop.app.schedule("nightly", shop.report, every="1h")
    seen = shop.ask("pause", "nightli", "nightly")
    assert (seen.code, seen.out) == (1, "paused nightly\n")
    assert seen.err == "relevo: no schedule 'nightli', did you mean 'nightly'?\n"
    seen = shop.ask("resume", "nightli", "nightly", "--json")
    assert (seen.code, seen.json) == (1, {"resumed": ["nightly"], "left": ["nightli"]})
    for action in ("show", "run"):
        seen = shop.ask(action, "weekly", "--json")
        assert (seen.code, seen.json) == (1, {"error": "UnknownSchedule", "message": "no schedule 'weekly'"})
        assert seen.err == "relevo: no schedule 'weekly'\n"


def test_run_prints_the_id_of_the_job_and_nothing_else(shop: Shop) -> None:
    shop.app.schedule("weekly", shop.report.s(7), every="7d", queue="reports")
    seen = shop.ask("run", "weekly")
    assert (seen.code, seen.err) == (0, "")
    id = seen.out.removesuffix("\n")
    assert looks_like_id(id)
    assert shop.app.job(id).info().args == [7]
    job = shop.ask("run", "weekly", "--json").json
    assert job == {"job": shop.app.schedules.get("weekly").info().last_job, "queue": "reports"}


# remove


async def test_schedules_are_removed_by_name_with_a_warning_if_a_decorator_brings_them_back(shop: Shop) -> None:
    app = shop.app
    app.task(name="nightly", every="1h")(lambda: None)
    await app.aschedule("called", shop.report, every="1h")
    await drain(app)
    seen = shop.ask("remove", "nightly", "c", "called")
    assert (seen.code, seen.out) == (1, "removed nightly\nremoved called\n")
    assert "relevo: no schedule 'c'\n" in seen.err
    assert "warning: nightly comes back with the next worker as long as a decorator names it" in seen.err
    assert await app.schedules.alist() == []
    await drain(app)
    assert shop.ask("remove", "nightly", "--json").json == {"removed": ["nightly"], "left": []}
    assert shop.ask("list").out == "no schedules\n"
    assert shop.ask("remove", "nightly", "--json").json == {"removed": [], "left": ["nightly"]}


async def test_stale_schedules_are_removed_together_and_named(shop: Shop) -> None:
    app = shop.app
    for name in ("a", "b", "c"):
        app.task(name=name, every="1h")(lambda: None)
    await app.aschedule("called", shop.report, every="1h")
    await drain(app)
    assert shop.ask("remove", "--stale").out == "no stale schedules\n"
    for name in ("a", "b"):
        shop.forget(name, ago_ms=STALE_MS + 60_000)
    seen = shop.ask("list").out
    assert [name for name in ("a", "b", "c", "called") if "stale" in table(seen)[name]] == ["a", "b"]
    assert "stale: no code names it any more; `relevo schedules remove a` removes it" in shop.ask("show", "a").out
    removed = shop.ask("remove", "--stale")
    assert (removed.code, removed.out, removed.err) == (0, "removed a\nremoved b\n", "")
    assert shop.ask("remove", "--stale", "--json").json == {"removed": [], "left": []}
    assert [row["name"] for row in shop.ask("list", "--json").json["items"]] == ["c", "called"]
