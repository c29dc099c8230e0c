"""The audit trail: author, operation, time and count."""

from __future__ import annotations

import json
import logging
import os
import pwd
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo, group
from relevo.audit.store import MOST_REFUSED, REFUSED
from relevo.audit.trail import whoami
from relevo.cli.main import main
from relevo.errors import OptionError, StoreError
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.system.shell import Output, environment, relevo
from tests.system.timed import HOUR
from tests.system.web import Here, served

TIME = "2031-05-01T08:00+02:00"


def of_commands(server: Server, app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of commands that run in this process."""
    settings = {"URL": server.url, "PREFIX": app.settings.prefix, "ENV": app.settings.env, "CALL_TIMEOUT": "30s"}
    for name, value in settings.items():
        monkeypatch.setenv(f"RELEVO_{name}", value)


async def test_entries_are_listed_newest_first_with_author_and_count_and_expire(bus: Relevo) -> None:
    trail = bus.engine.bus_keys.key("audit")
    bus.audit.note("queue.pause", who="ana@desk", via="http", queue="mails", reason=None)
    await bus.engine.arun(Call([b"XADD", trail, b"*", b"s", b"no JSON"]))
    await bus.audit.anote("dead.retry", count=7)
    retried, paused = bus.audit.list()
    assert [retried] == await bus.audit.alist(limit=1)
    assert (retried.what, retried.count, retried.who) == ("dead.retry", 7, whoami())
    assert (retried.via, retried.app) == ("python", bus.name)
    assert (paused.what, paused.who, paused.via) == ("queue.pause", "ana@desk", "http")
    assert paused.about == {"queue": "mails"}
    assert retried.at_ms >= paused.at_ms > 1_700_000_000_000
    assert 0 < await bus.engine.arun(Call([b"PTTL", trail])) <= 90 * 86_400_000


def test_command_shows_the_trail(server: Server, bus: Relevo) -> None:
    bus.audit.note("dead.retry", who="ana@desk", via="cli", count=7, queue="mails")
    seen = relevo("audit", url=server.url, RELEVO_PREFIX=bus.settings.prefix)
    assert seen.code == 0, seen
    assert "ana@desk  cli" in seen.out and "dead.retry" in seen.out and "queue=mails" in seen.out
    (deed,) = relevo("audit", "--json", "--limit", "1", url=server.url, RELEVO_PREFIX=bus.settings.prefix).json["items"]
    assert (deed["what"], deed["count"], deed["about"]) == ("dead.retry", 7, {"queue": "mails"})


def test_command_is_in_the_trail_only_if_it_changed_something(
    server: Server, bus: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_commands(server, bus, monkeypatch)

    @bus.task
    def charge(invoice: int) -> None: ...

    def trail(*words: str) -> list[tuple[str, int]]:
        """The entries after a command that changes something, and after the same once more."""
        found = []
        for _ in range(2):
            main([*words, "--name", bus.name])
            found = [(deed.what, deed.count) for deed in bus.audit.list() if deed.via == "cli"]
        return found

    job = charge.enqueue(1)
    assert trail("job", "cancel", job.id) == [("job.cancel", 1)]
    assert trail("job", "retry", job.id)[0] == ("job.retry", 1)
    flow = group(charge.s(n) for n in range(3)).enqueue()
    assert trail("workflow", "cancel", flow.id)[0] == ("workflow.cancel", 3)
    assert trail("workflow", "retry", flow.id)[0] == ("workflow.retry", 3)
    bus.schedule("nightly", charge.s(1), cron="0 2 * * *")
    for action in ("pause", "resume", "remove"):
        assert trail("schedules", action, "nightly")[0] == (f"schedule.{action}", 1)
    bus.service("front").send("back.do", {}, conversation="task_7")
    bus.queue("back:actions").take(1)[0].done()
    assert trail("cleanup", "task_7")[0] == ("conversation.cleanup", 1)
    assert len(bus.audit.list()) == 8
    flow.cancel()
    job.cancel()


BY_BOTH_ROADS: list[tuple[list[str], str, dict[str, Any]]] = [
    (["pause", "mail", "--reason", "why", "--until", "2h"], "/queues/mail/pause", {"reason": "why", "until": "2h"}),
    (["pause", "mail", "--task", "charge"], "/queues/mail/pause", {"task": "charge"}),
    (["pause", "mail", "--tenant", "acme"], "/queues/mail/pause", {"tenant": "acme"}),
    (["pause", "--task", "charge", "--until", TIME], "/pause", {"task": "charge", "until": TIME}),
    (["pause", "--tenant", "acme", "--reason", "why"], "/pause", {"tenant": "acme", "reason": "why"}),
    (["pause", "--schedule", "nightly", "--until", TIME], "/schedules/nightly/pause", {"until": TIME}),
    (["resume", "mail"], "/queues/mail/resume", {}),
    (["resume", "mail", "--task", "charge"], "/queues/mail/resume", {"task": "charge"}),
    (["resume", "mail", "--tenant", "acme"], "/queues/mail/resume", {"tenant": "acme"}),
    (["resume", "--task", "charge"], "/resume", {"task": "charge"}),
    (["resume", "--tenant", "acme"], "/resume", {"tenant": "acme"}),
    (["resume", "--schedule", "nightly"], "/schedules/nightly/resume", {}),
    (["limit", "mail", "--concurrency", "3"], "/queues/mail/limits", {"concurrency": 3}),
    (["limit", "mail", "--task", "charge", "--rate", "9/s"], "/queues/mail/limits", {"task": "charge", "rate": "9/s"}),
    (["limit", "mail", "--tenant", "acme", "--rate", "9/s"], "/queues/mail/limits", {"tenant": "acme", "rate": "9/s"}),
    (["limit", "mail", "--remove"], "/queues/mail/limits/remove", {}),
    (["limit", "mail", "--task", "charge", "--remove"], "/queues/mail/limits/remove", {"task": "charge"}),
    (["limit", "mail", "--tenant", "acme", "--remove"], "/queues/mail/limits/remove", {"tenant": "acme"}),
]


def test_entries_of_command_and_http_are_equal(server: Server, bus: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    of_commands(server, bus, monkeypatch)

    @bus.task(name="charge", queue="mail")
    def charge(invoice: int) -> None: ...

    job = charge.using(tenant="acme").enqueue(1)
    bus.schedule("nightly", charge.s(1), cron="0 2 * * *")
    with served(bus) as url, Here(url) as here:
        for words, path, body in BY_BOTH_ROADS:
            assert main([*words, "--name", bus.name]) == 0
            (before,) = bus.audit.list(limit=1)
            here.do(path, body=body or None)
            (after,) = bus.audit.list(limit=1)
            assert (before.via, after.via) == ("cli", "http")
            assert (before.what, before.about) == (after.what, after.about), words
            kind = next((word[2:] for word in words if word in ("--task", "--tenant", "--schedule")), "queue")
            assert after.what.partition(".")[0] == kind
    assert (bus.pauses(), bus.queue("mail").limits()) == ([], [])
    bus.schedules.get("nightly").remove()
    job.cancel()


def test_entries_about_dead_letters_are_equal_for_command_and_http(
    server: Server, bus: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_commands(server, bus, monkeypatch)

    @bus.task(name="charge")
    def charge(invoice: int) -> None: ...

    one, other, *_ = [charge.enqueue(n).id for n in range(9)]
    for lease in bus.queue().take(9):
        lease.bury("no bank")
    first: dict[str, Any] = {"all": True, "limit": 1}
    roads: list[tuple[str, str, dict[str, Any]]] = [
        ("discard --all --transient --limit 1 --yes", "/discard?dry_run=false", {**first, "permanent": False}),
        ("restore --all", "/restore", {"all": True}),
        (f"discard {one} --queue default", "/discard?dry_run=false", {"ids": [other], "queue": "default"}),
        (f"restore {one}", "/restore", {"ids": [other]}),
        (f"edit {one} --args [8]", f"/{other}/edit", {"args": [8]}),
        ("retry --all --text BANK --limit 1 --yes", "/retry", {**first, "text": "bank"}),
        ("export --task charge -o /dev/null", "/export", {"task": "charge"}),
        ("discard --all --no-undo --limit 1 --yes", "/discard?dry_run=false&undo=false", first),
        ("retry --all --task charge --rate 999/s --yes", "/replays", {"all": True, "task": "charge", "rate": "999/s"}),
    ]

    def newest(via: str) -> tuple[str, dict[str, Any]]:
        (deed,) = eventually(lambda: [deed for deed in bus.audit.list(limit=1) if deed.via == via], what=via)
        return deed.what, {name: "" if name in ("id", "ids", "job") else value for name, value in deed.about.items()}

    with served(bus) as url, Here(url) as here:
        for words, path, body in roads:
            entries = []
            bus.dead.restore(all=True)
            for via in ("cli", "http"):
                if words.startswith("restore"):
                    bus.dead.discard([one, other])
                if via == "cli":
                    assert main(["dead", *words.split(), "--name", bus.name]) == 0, words
                else:
                    assert here.post(f"/api/v1/dead{path}", json=body).status_code == 200, words
                entries.append(newest(via))
            assert entries[0] == entries[1], words
    bus.queue().clear()


def test_old_entries_are_found_by_time(server: Server, bus: Relevo) -> None:
    """Ten thousand are kept, and a list has a thousand at the most."""
    now_ms = bus.engine.run(bus.engine.now_ms())
    for ago in (50, 26, 25, 3):  # as they were written then
        deed = b'{"app":"shop","who":"ana","via":"cli","what":"queue.pause","about":{"hours":%d}}' % ago
        bus.engine.run(Call([b"XADD", bus.engine.bus_keys.key("audit"), b"%d-0" % (now_ms - ago * HOUR), b"d", deed]))
    bus.engine.run(Call([b"EXPIRE", bus.engine.bus_keys.key("audit"), 600]))

    def hours(deeds: Any) -> list[int]:
        return [deed["about"]["hours"] for deed in deeds]

    def asked(**which: Any) -> list[int]:
        return [deed.about["hours"] for deed in bus.audit.list(**which)]

    assert asked() == [3, 25, 26, 50]
    assert asked(until="24h") == [25, 26, 50] and asked(until="24h", limit=1) == [25]
    assert asked(since="30h", until="24h") == [25, 26]
    then = datetime.fromtimestamp((now_ms - 26 * HOUR) / 1000, UTC)
    assert asked(since=then, until=then) == [26], "a border belongs to it"
    assert asked(since="100w") == [3, 25, 26, 50]
    refused: list[tuple[dict[str, Any], str]] = [
        ({"since": "1h", "until": "2h"}, "since is later than until"),
        ({"since": datetime(2030, 1, 1)}, "time zone"),
        *(({"limit": limit}, "limit") for limit in (0, 1001, True, "7")),
    ]
    for which, why in refused:
        with pytest.raises(OptionError, match=why):
            bus.audit.list(**which)

    def command(*words: str) -> Output:
        return relevo("audit", *words, url=server.url, RELEVO_PREFIX=bus.settings.prefix)

    assert hours(command("--since", "30h", "--until", then.isoformat(), "--json").json["items"]) == [26]
    assert "did anything then" in command("--since", "1h").out
    with served(bus) as url, Here(url) as here:
        assert hours(here.ask("/audit", since="30h", until="24h")["items"]) == [25, 26]
        assert here.ask("/audit", 422, since="2030-01-01T00:00")["error"] == "OptionError"


def test_entries_are_found_by_author_kind_and_app(server: Server, bus: Relevo, bus_factory: AppFactory) -> None:
    other = bus_factory("other")
    for app, who, what in (
        (bus, "ana@desk", "dead.retry"),
        (other, "ana@lap", "dead.discard"),
        (other, "ana", "queue.pause"),
        (bus, "anastasia@desk", "deadline.move"),
    ):
        app.audit.note(what, who=who)
    for _ in range(7):
        bus.audit.note("job.cancel", who="bob@desk")
    asked: list[tuple[dict[str, Any], list[str]]] = [
        ({"who": "ana"}, ["queue.pause", "dead.discard", "dead.retry"]),
        ({"who": "ana@desk"}, ["dead.retry"]),
        ({"what": "dead"}, ["dead.discard", "dead.retry"]),
        ({"what": "dead.retry", "app": bus.name}, ["dead.retry"]),
        ({"app": "other", "limit": 1}, ["queue.pause"]),
        ({"who": "eve"}, []),
    ]
    with served(bus) as url, Here(url) as here:
        for which, found in asked:
            assert [deed.what for deed in bus.audit.list(**which)] == found, which
            assert [deed["what"] for deed in here.ask("/audit", **which)["items"]] == found, which
            words = [f"--{name.replace('app', 'of-app')}={value}" for name, value in which.items()]
            printed = relevo("audit", "--json", *words, url=server.url, RELEVO_PREFIX=bus.settings.prefix)
            assert [deed["what"] for deed in printed.json["items"]] == found, which
    wrong: list[dict[str, Any]] = [{"who": ""}, {"what": 7}, {"name": "shop"}]
    for which in wrong:
        with pytest.raises(OptionError):
            bus.audit.list(**which)


# Who it is, and the copy in the log


def test_the_author_is_the_user_of_the_process_whatever_its_environment_says(server: Server, bus: Relevo) -> None:
    bus.queue().pause()
    names = dict.fromkeys(("LOGNAME", "USER", "LNAME", "USERNAME"), "ceo")
    env = environment(server.url, RELEVO_PREFIX=bus.settings.prefix, **names)
    command = [sys.executable, "-m", "relevo.cli.main", "resume", "default", "--name", bus.name]
    subprocess.run(command, env=env, check=True, capture_output=True, timeout=PATIENCE)
    (deed,) = bus.audit.list()
    assert deed.who == f"{pwd.getpwuid(os.getuid()).pw_name}@{socket.gethostname()}"


def test_the_author_is_a_number_where_the_user_has_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 54_321_987)
    assert whoami() == f"54321987@{socket.gethostname()}"


def test_each_deed_is_a_line_in_the_log_whichever_way_it_came(
    server: Server, bus: Relevo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a program logs warnings only."""
    assert logging.getLogger().getEffectiveLevel() == logging.WARNING
    of_commands(server, bus, monkeypatch)
    bus.queue("mail").pause()
    assert main(["resume", "mail", "--name", bus.name]) == 0
    caplog.clear()
    assert main(["pause", "mail", "--reason", "see https://ana:pw@wiki/x", "--name", bus.name]) == 0
    with served(bus) as url, Here(url) as here:
        here.do("/queues/mail/resume")
    bus.audit.note("billing.close", count=3, note="\x1b[31m\x9b\u202e")
    with bus.audit.doing("dead.retry", queue="mail") as doing:
        doing.tell(2)
    lines = [json.loads(text) for name, _, text in caplog.record_tuples if name == "relevo.audit"]
    assert [(line["via"], line["what"], line["count"]) for line in lines] == [
        ("cli", "queue.pause", 1),
        ("http", "queue.resume", 1),
        ("python", "billing.close", 3),
        ("python", "dead.retry", 2),
    ]
    for line, deed in zip(lines, reversed(bus.audit.list(limit=4)), strict=True):
        assert line.pop("stored") is True
        assert (line.pop("app"), line.pop("env")) == (bus.name, "test")
        assert all(line[name] == getattr(deed, name) for name in line), "the same as on the server"
    assert lines[0]["about"]["reason"] == "see https://ana:***@wiki/x"
    assert all(record.getMessage().isascii() and record.getMessage().isprintable() for record in caplog.records)


def test_a_deed_that_cannot_be_stored_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = Relevo("shop", url="redis://127.0.0.1:1/0", call_timeout="10ms", connect_timeout="10ms")
    with pytest.raises(StoreError):
        app.audit.note("billing.close", who="ana")
    with app.audit.doing("dead.retry", who="ana") as doing:
        doing.tell(2)  # it is done, so this is no error
    lines = [json.loads(record.getMessage()) for record in caplog.records if record.name == "relevo.audit"]
    assert [(line["what"], line["stored"]) for line in lines] == [("billing.close", False), ("dead.retry", False)]
    assert all("127.0.0.1" in line["why"] for line in lines)
    assert {record.levelname for record in caplog.records if record.name == "relevo.audit"} == {"ERROR"}


def test_commands_copy_their_deeds_to_the_log_of_the_machine(
    server: Server, bus: Relevo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    of_commands(server, bus, monkeypatch)
    monkeypatch.setattr("relevo.audit.system_log.ADDRESS", str(tmp_path / "log"))
    bus.queue("mail").pause()
    assert main(["resume", "mail", "--name", bus.name]) == 0, "without such a log, too"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.bind(str(tmp_path / "log"))
        journal.settimeout(PATIENCE)
        assert main(["pause", "mail", "--name", bus.name]) == 0
        head, _, line = journal.recv(65_536).decode().partition(": ")
    assert head == f"<86>relevo[{os.getpid()}]"
    assert json.loads(line)["what"] == "queue.pause"
    bus.queue("mail").resume()


async def test_no_number_of_refused_requests_displaces_a_deed(bus: Relevo) -> None:
    await bus.audit.anote("queue.clear", who="ana")
    for _ in range(MOST_REFUSED * 12 // 10):
        await bus.audit.anote(REFUSED, who="10.0.0.7", via="http", status=401)
    newest = await bus.audit.alist(limit=1000)
    assert {deed.what for deed in newest} == {REFUSED} and len(newest) == 1000
    (deed,) = await bus.audit.alist(what="queue")
    assert deed.who == "ana"
    kept: int = await bus.engine.arun(Call([b"XLEN", bus.engine.bus_keys.own("audit", "refused")]))
    assert MOST_REFUSED <= kept < MOST_REFUSED * 12 // 10
    assert 0 < await bus.engine.arun(Call([b"PTTL", bus.engine.bus_keys.own("audit", "refused")])) <= 90 * 86_400_000
