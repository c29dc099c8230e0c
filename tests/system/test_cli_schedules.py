"""`relevo schedules`: what it says in text and JSON, on terminals wide and narrow, and its exit codes."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from typing import Any

import pytest

from relevo import Relevo
from relevo.model.ids import looks_like_id
from relevo.schedules import STALE_MS
from relevo.store import workers
from relevo.store.plan import Call
from relevo.store.workers import WorkerInfo
from tests.servers import Server
from tests.system.shell import Output, command, environment, relevo
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
        app.run(Call([b"HSET", app.keys_of("default").key("ticks"), f"seen:{name}", now_ms - ago_ms]))
        app.run(workers.present(app.keys, WorkerInfo("w-1", "box", 4711, ("default",), 10, now_ms)))
        app.run(workers.listed(app.keys, "w-1"))


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
    told = shop.ask("list")
    assert (told.code, told.err) == (0, "")
    assert [line.split()[0] for line in told.out.splitlines()] == ["NAME", "never", "nightly", "often"]
    never, nightly, often = told.out.splitlines()[1:]
    assert re.fullmatch(rf"nightly  at 02:30 every day +{AT_HALF_PAST_TWO} +- +shop\.report  reports", nightly), nightly
    assert re.fullmatch(r"never    at 00:00 on January 1 +- +- +paused  shop\.report  default", never), never
    assert re.search(r"often    every 14 days +(\S+|\w{3} 00:00 UTC|00:00 UTC) +in \d+[dhms]", often), often


def test_the_last_run_is_listed_with_its_state(shop: Shop) -> None:
    for name, days in (("well", 7), ("badly", 31)):
        shop.app.schedule(name, shop.report.s(days), every="1d", run_now=True)
    assert re.search("well .* ready 0?[0-9]+s ago", shop.ask("list").out)


async def test_the_state_of_a_last_run_outlives_its_record(shop: Shop) -> None:
    for name, days in (("well", 7), ("badly", 31), ("gone", 1)):
        await shop.app.aschedule(name, shop.report.s(days), every="1d", run_now=True)
    await drain(shop.app)
    job = (await shop.app.schedules.get("gone").ainfo()).last_job
    await shop.app.arun(Call([b"DEL", shop.app.keys_of("default").key("ended") + b":" + job.encode()]))
    told = shop.ask("list").out
    assert re.search(r"well .* done \d+s ago ", told)
    assert re.search(r"badly .* dead \d+s ago ", told)
    assert re.search(r"gone .* ended \d+s ago ", told)
    listed = {row["name"]: row["last"]["state"] for row in shop.ask("list", "--json").json}
    assert listed == {"well": "done", "badly": "dead", "gone": "unknown"}
    await shop.app.aclose()


def test_a_list_of_none_says_so(shop: Shop) -> None:
    shop.report.enqueue(7, kind="long")
    shop.app.queue().clear()
    told = shop.ask("list")
    assert (told.code, told.out) == (0, "no schedules\n")
    assert shop.ask("list", "--json").json == []


def test_the_list_as_json_has_every_field(shop: Shop) -> None:
    shop.app.schedule("weekly", shop.report.s(7, kind="long"), cron="@weekly", tz="Asia/Kolkata", priority=3)
    (row,) = shop.ask("list", "--json").json
    info = shop.app.schedules.get("weekly").info()
    assert row == {
        "name": "weekly",
        "task": "shop.report",
        "queue": "default",
        "when": "@weekly",
        "tz": "Asia/Kolkata",
        "words": "at 00:00 on Sunday, Asia/Kolkata time",
        "args": [7],
        "kwargs": {"kind": "long"},
        "priority": 3,
        "overlap": "skip",
        "missed": "once",
        "missed_limit": 100,
        "jitter": 0.0,
        "origin": "call",
        "stale": False,
        "paused_ms": None,
        "until_ms": None,
        "next_ms": info.next_ms,
        "last_job": "",
        "fired": 0,
        "skipped": 0,
        "dropped": 0,
        "late": False,
        "last": None,
    }


def test_what_is_stale_or_late_is_marked(shop: Shop) -> None:
    shop.app.timetable.clear()
    shop.app.schedule("late", shop.report, every="1h")
    shop.app.schedule("both", shop.report, every="1h")
    keys = shop.app.keys_of("default")
    long_ago = time.time_ns() // 1_000_000 - 20 * 60_000
    shop.app.run(Call([b"HSET", keys.key("ticks"), "due:late", long_ago, "due:both", long_ago]))
    shop.app.schedules.get("both").pause()
    told = shop.ask("list").out
    assert re.search(r"late +every hour +\S+( \S+)? UTC +20m ago +- +late +shop", told), told
    assert re.search(r"both +every hour +- +- +paused +shop", told), told
    assert "late: the tick of 20m ago waits, for no worker serves 'default'" in shop.ask("show", "late").out


def seen_on_a_terminal(server: Server, columns: int, *words: str) -> list[str]:
    """Lines as a terminal of that width shows them, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**environment(server.url), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
    env.pop("COLUMNS", None)
    with subprocess.Popen(command("schedules", *words), env=env, stdin=theirs, stdout=theirs, stderr=theirs) as started:
        os.close(theirs)
        out = b""
        try:
            while part := os.read(ours, 65_536):
                out += part
        except OSError:  # it has ended
            pass
        os.close(ours)
    assert started.returncode == 0, out
    return re.sub(r"\x1b\[[0-9;]*m", "", out.decode()).replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_whole_lines(shop: Shop, server: Server, columns: int) -> None:
    pytest.importorskip("rich")
    for name, cron in (("shop.reports.nightly", "30 2 * * *"), ("working-days", "0 9 * * MON-FRI")):
        shop.app.schedule(name, shop.report, cron=cron, tz="America/Argentina/Buenos_Aires")
    lines = seen_on_a_terminal(server, columns, "list", "--name", shop.app.name)
    assert max(map(len, lines)) <= columns
    assert len(lines) <= 7, "none takes more than three"
    assert ("shop.report" in " ".join(lines[1:]).replace("shop.reports", "")) == (columns == 120)
    shown = seen_on_a_terminal(server, columns, "show", "working-days", "--name", shop.app.name)
    assert max(map(len, shown)) <= 80
    assert shown[1] == "fires     at 09:00 on Monday through Friday, America/Argentina/Buenos_Aires time"


# show


async def test_one_schedule_is_explained_with_its_ticks_and_its_runs(shop: Shop) -> None:
    handle = await shop.app.aschedule(
        "nightly",
        shop.report.s(7, kind="long"),
        cron="30 2 * * *",
        tz="Europe/Madrid",
        overlap="queue",
        missed="all",
        missed_limit=1000,
        jitter="10m",
        retries=5,
        timeout="30s",
        group="acme",
        tags=["a"],
        expires="1h",
    )
    well = await handle.arun_now()
    await drain(shop.app)
    waits = await handle.arun_now()
    told = shop.ask("show", "nightly")
    assert (told.code, told.err) == (0, "")
    about, ahead, runs = told.out.split("\n\n")
    assert about.splitlines() == [
        "schedule nightly",
        "fires      at 02:30 every day, Europe/Madrid time",
        "cron       30 2 * * * in Europe/Madrid",
        "task       shop.report",
        'arguments  7, kind="long"',
        "queue      default",
        "priority   100",
        'options    group "acme", expires 3600.0, tags ["a"], retries 5, timeout 30.0',
        "made by    app.schedule(…) at run time",
        "overlap    queue: a tick waits until the run before has ended, however it ends",
        "missed     all: ticks that no worker fired in time are made up for, 1,000 at most",
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


def test_show_tells_a_distance_a_pause_and_that_nothing_ran(shop: Shop) -> None:
    shop.app.schedule("often", shop.report, every="90m").pause()
    told = shop.ask("show", "often").out
    assert re.match(
        r"schedule often\npaused \ds ago: no tick fires until it is resumed\nfires     every 90 minutes\n", told
    )
    assert "\nevery     1h30m, counted from 1970-01-01 00:00 UTC\n" in told
    assert "\noverlap   skip: a tick passes while the run before has not ended\n" in told
    assert "\nmissed    once: one run makes up for all ticks that no worker fired in time\n" in told
    assert "\n\nnext ticks, were it not paused\n  " in told
    assert told.endswith("\n\nno runs yet\n")


def test_show_tells_what_was_skipped_and_dropped(shop: Shop) -> None:
    shop.app.schedule("often", shop.report, every="1h")
    runs = shop.app.keys_of("default").key("runs") + b":often"
    job = shop.report.enqueue()
    for row in (f'[3600000,3600005,"{job.id}","fired"]', f'[7200000,7200005,"{job.id}","skipped"]'):
        shop.app.run(Call([b"LPUSH", runs, row]))
    shop.app.run(Call([b"LPUSH", runs, '[10800000,90000000,"","dropped 7"]']))
    shop.app.run(Call([b"PEXPIRE", runs, 60_000]))
    rows = shop.ask("show", "often").out.split("last runs\n")[1].splitlines()[1:]
    assert [re.split("  +", row)[:2] for row in rows] == [
        ["1970-01-01 03:00:00 UTC", "dropped 7"],
        ["1970-01-01 02:00:00 UTC", "skipped"],
        ["1970-01-01 01:00:00 UTC", "fired"],
    ]
    assert [row.split()[-1] for row in rows] == ["-", "ready", "ready"]
    assert len(shop.ask("show", "often", "--limit", "1").out.split("last runs\n")[1].splitlines()) == 2
    told = shop.ask("show", "often", "--json").json
    assert [row["state"] for row in told["history"]] == [None, "ready", "ready"]
    assert told["history"][1] == {
        "tick_ms": 7_200_000,
        "at_ms": 7_200_005,
        "job": job.id,
        "what": "skipped",
        "state": "ready",
    }


def test_show_as_json_has_more_than_the_list(shop: Shop) -> None:
    shop.app.schedule("often", shop.report, every="1h", retries=3, on_failure="tell")
    (row,) = shop.ask("list", "--json").json
    told = shop.ask("show", "often", "--json").json
    del row["last"]
    assert told == {
        **row,
        "seen_ms": None,
        "options": {"retries": 3, "on_failure": "tell"},
        "ahead_ms": [row["next_ms"] + n * 3_600_000 for n in range(5)],
        "history": [],
    }


# pause, resume, run


def test_schedules_are_paused_and_resumed_by_name(shop: Shop) -> None:
    for name in ("a", "b"):
        shop.app.schedule(name, shop.report, every="1h")
    told = shop.ask("pause", "a", "b", "a")
    assert (told.code, told.out, told.err) == (0, "paused a\npaused b\n", "")
    assert all(info.paused_ms for info in shop.app.schedules.list())
    told = shop.ask("pause", "a")
    assert (told.code, told.out) == (0, "a was paused already\n")
    assert shop.ask("resume", "a", "b", "--json").json == {"resumed": ["a", "b"], "left": []}
    assert not any(info.paused_ms for info in shop.app.schedules.list())
    assert shop.ask("resume", "a").out == "a was not paused\n"


def test_one_that_does_not_exist_is_told_and_the_others_are_done(shop: Shop) -> None:
    shop.app.schedule("nightly", shop.report, every="1h")
    told = shop.ask("pause", "nightli", "nightly")
    assert (told.code, told.out) == (1, "paused nightly\n")
    assert told.err == "relevo: no schedule 'nightli', did you mean 'nightly'?\n"
    told = shop.ask("resume", "nightli", "nightly", "--json")
    assert (told.code, told.json) == (1, {"resumed": ["nightly"], "left": ["nightli"]})


@pytest.mark.parametrize("action", ["show", "run"])
def test_an_unknown_schedule_is_exit_code_1(shop: Shop, action: str) -> None:
    told = shop.ask(action, "nightly")
    assert (told.code, told.out, told.err) == (1, "", "relevo: no schedule 'nightly'\n")
    told = shop.ask(action, "nightly", "--json")
    assert (told.code, told.json) == (1, {"error": "UnknownSchedule", "message": "no schedule 'nightly'"})


def test_run_prints_the_id_of_the_job_and_nothing_else(shop: Shop) -> None:
    shop.app.schedule("weekly", shop.report.s(7), every="7d", queue="reports")
    told = shop.ask("run", "weekly")
    assert (told.code, told.err) == (0, "")
    id = told.out.removesuffix("\n")
    assert looks_like_id(id)
    assert shop.app.job(id).info().args == [7]
    job = shop.ask("run", "weekly", "--json").json
    assert job == {"job": shop.app.schedules.get("weekly").info().last_job, "queue": "reports"}


# remove


async def test_schedules_are_removed_by_name(shop: Shop) -> None:
    for name in ("a", "b"):
        await shop.app.aschedule(name, shop.report, every="1h")
    told = shop.ask("remove", "a", "c", "b")
    assert (told.code, told.out, told.err) == (1, "removed a\nremoved b\n", "relevo: no schedule 'c'\n")
    assert await shop.app.schedules.alist() == []
    assert shop.ask("remove", "a", "--json").json == {"removed": [], "left": ["a"]}
    await shop.app.aclose()


async def test_removing_what_code_still_names_warns_that_it_comes_back(shop: Shop) -> None:
    app = shop.app
    app.task(name="nightly", every="1h")(lambda: None)
    await drain(app)
    told = shop.ask("remove", "nightly")
    assert (told.code, told.out) == (0, "removed nightly\n")
    assert told.err == (
        "relevo: warning: nightly comes back with the next worker as long as a decorator names it; "
        "to keep it from running, pause it\n"
    )
    await drain(app)
    assert shop.ask("remove", "nightly", "--json").json == {"removed": ["nightly"], "left": []}


async def test_stale_schedules_are_removed_together_and_named(shop: Shop) -> None:
    app = shop.app
    for name in ("a", "b", "c"):
        app.task(name=name, every="1h")(lambda: None)
    await app.aschedule("called", shop.report, every="1h")
    await drain(app)
    assert shop.ask("remove", "--stale").out == "no stale schedules\n"
    for name in ("a", "b"):
        shop.forget(name, ago_ms=STALE_MS + 60_000)
    told = shop.ask("list").out
    assert [name for name in ("a", "b", "c", "called") if "stale" in table(told)[name]] == ["a", "b"]
    assert "stale: no code names it any more; `relevo schedules remove a` removes it" in shop.ask("show", "a").out
    told_removing = shop.ask("remove", "--stale")
    assert (told_removing.code, told_removing.out, told_removing.err) == (0, "removed a\nremoved b\n", "")
    assert shop.ask("remove", "--stale", "--json").json == {"removed": [], "left": []}
    assert [row["name"] for row in shop.ask("list", "--json").json] == ["c", "called"]


# The command line


@pytest.mark.parametrize("action", ["list", "show", "pause", "resume", "run", "remove"])
def test_every_action_explains_itself_with_an_example(action: str) -> None:
    told = relevo("schedules", action, "--help")
    assert told.code == 0
    assert f"examples:\n  relevo schedules {action}" in told.out
    assert "--json" in told.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "ACTION"),
        (["lits"], "invalid choice"),
        (["show"], "NAME"),
        (["run"], "NAME"),
        (["pause"], "NAME"),
        (["remove"], "Give their names, or --stale; not both"),
        (["remove", "a", "--stale"], "Give their names, or --stale; not both"),
        (["remove", "--stal"], "--stal"),
        (["show", "a", "--limit", "0"], "from 1 to 1000"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_reason(server: Server, words: list[str], said: str) -> None:
    named: list[Any] = ["--name", "x"] if words else []
    told = relevo("schedules", *words, *named, url=server.url)
    assert (told.code, told.out) == (2, "")
    assert said in told.err
    assert "Traceback" not in told.err
