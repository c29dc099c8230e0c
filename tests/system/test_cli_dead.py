"""`relevo dead`: groups, filters, restore, edit, export and import, tracked runs, and what the audit trail says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.cli.main import main
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.shell import Told
from tests.system.test_cli import NO_SUCH_ID, add_task, bury
from tests.working import working


class Shell:
    """The command for one app, in this process: a new one takes longer to start than all that is asked of it here."""

    def __init__(self, app: Relevo, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.app = app

    def __call__(self, *words: str, code: int = 0) -> Told:
        self._capsys.readouterr()
        try:
            said = main(["dead", *words, "--name", self.app.name])
        except SystemExit as ended:  # a wrong command line
            assert isinstance(ended.code, int)
            said = ended.code
        told = Told(int(said), *self._capsys.readouterr())
        assert told.code == code, told
        return told

    def deeds(self) -> list[tuple[str, int, dict[str, Any]]]:
        """What was done to this app, the first first."""
        found = [deed for deed in self.app.audit.list(limit=1000) if deed.app == self.app.name]
        return [(deed.what, deed.count, deed.about) for deed in reversed(found)]


@pytest.fixture
def dead(
    server: Server, app: Relevo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    for name in [name for name in os.environ if name.startswith(("RELEVO_", "REDIS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RELEVO_URL", server.url)
    monkeypatch.setenv("RELEVO_ENV", "test")
    monkeypatch.chdir(tmp_path)
    return Shell(app, capsys)


def test_groups_are_shown_the_largest_first(dead: Shell) -> None:
    bury(dead.app, "no stock for 1", "no stock for 2", "TimeoutError")
    found = dead("groups", "--json").json
    assert [group["count"] for group in found] == [2, 1]
    assert found[0]["tasks"] == ["shop.charge"]
    lines = dead("groups").out.splitlines()
    assert lines[0].split() == ["GROUP", "COUNT", "LAST", "HOUR", "TREND", "FIRST", "LAST", "TASKS", "TENANTS", "ERROR"]
    assert lines[1].split()[:4] == [found[0]["fingerprint"], "2", "2", "new"]
    assert lines[-1] == "3 dead letters of 2 kinds"
    assert dead("groups", "--queue", "mials", code=2).err
    assert [row["reason"] for row in dead("list", "--group", found[1]["fingerprint"], "--json").json] == [
        "TimeoutError"
    ]


def test_a_group_is_retried_and_noted(dead: Shell) -> None:
    ids = bury(dead.app, "no stock for 1", "no stock for 2", "TimeoutError")
    group = dead("groups", "--json").json[0]["fingerprint"]
    assert dead("retry", "--all", "--group", group, "--yes").out == "retried 2 dead letters\n"
    assert [row.id for row in dead.app.dead.list()] == [ids[2]]
    assert dead.deeds() == [("dead.retry", 2, {"group": group})]


def test_lists_are_filtered_and_go_on(dead: Shell) -> None:
    first, second, third = bury(dead.app, "permanent", "retries_exhausted", "poison")

    def listed(*words: str) -> list[str]:
        return [row["id"] for row in dead("list", "--json", *words).json]

    assert listed("--permanent") == [first]
    assert listed("--transient") == [third, second]
    assert listed("--reason", "poison") == [third]
    assert listed("--since", "1h", "--task", "shop.charge") == [third, second, first]
    assert listed("--until", "1h") == []
    assert listed("--since", "2020-01-01", "--from", "running") == [third, second, first]
    assert listed("--tenant", "acme") == []
    told = dead("list", "--limit", "2", "--json")
    after = told.err.split()[-1]
    assert "there may be more: --after" in told.err
    assert listed("--after", after) == [first]
    for words, says in (
        (["--since", "yester-day"], "a time such as"),
        (["--since", "24"], "how long ago"),
        (["--group", "x"], "fingerprint"),
        (["--after", "x"], "after"),
        (["--permanent", "--transient"], "not allowed with"),
    ):
        assert says in dead("list", *words, code=2).err


def test_what_was_discarded_is_restored(dead: Shell) -> None:
    first, second, third = bury(dead.app, "a", "b", "c")
    assert "for ten minutes" in dead("discard", first, second).err
    assert dead("discard", third, "--no-undo").err == ""
    assert dead("restore", first, NO_SUCH_ID, "--json", code=1).json == {"restored": 1, "left": [NO_SUCH_ID]}
    assert dead("restore", "--all").out == "restored 1 dead letter\n"
    assert dead("restore", "--all", code=1).out == "restored 0 dead letters\n"
    assert "which letters" in dead("restore", code=2).err
    assert {row.id for row in dead.app.dead.list()} == {first, second}
    assert [(what, count) for what, count, _ in dead.deeds()] == [
        ("dead.discard", 2), ("dead.discard", 1), ("dead.restore", 1), ("dead.restore", 1),
    ]  # fmt: skip


def test_a_letter_is_run_with_other_arguments(dead: Shell) -> None:
    (id,) = bury(dead.app, "no stock")
    told = dead("edit", id, "--args", "[8]", "--kwargs", '{"cents": 5}', "--json").json
    job = dead.app.job(told["job"])
    assert (told["origin"], told["queue"]) == (id, "default")
    assert (job.info().args, job.info().kwargs, job.info().origin) == ([8], {"cents": 5}, id)
    shown = dead("show", id).out
    assert f"replaced by      {job.id}" in shown
    assert "written by       relevo" in shown
    assert "somebody retried or edited it" in dead("edit", id, "--args", "[9]", code=1).err
    assert "no JSON" in dead("edit", id, "--args", "[9", code=2).err
    assert "--args" in dead("edit", id, code=2).err
    assert dead.deeds() == [("dead.edit", 1, {"queue": "default", "letter": id, "job": job.id})]


def test_letters_are_written_to_a_file_and_read_from_it(
    dead: Shell, app_factory: AppFactory, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bury(dead.app, "a", "b")
    bury(dead.app, "c", queue="mails")
    assert dead("export", "-o", "l.jsonl").out == "exported 3 dead letters to l.jsonl\n"
    assert [path.name for path in tmp_path.iterdir()] == ["l.jsonl"]
    assert (tmp_path / "l.jsonl").stat().st_mode & 0o077 == 0, "nobody else may read it"
    assert len(dead("export", "--queue", "mails").out.splitlines()) == 1
    there = Shell(app_factory(), capsys)
    assert there("import", "l.jsonl").out == "imported 3 dead letters, 0 were there already\n"
    with (tmp_path / "l.jsonl").open("a") as file:
        file.write("nonsense\n")
    told = there("import", "l.jsonl", "--json", code=1).json
    assert (told["new"], told["known"], told["refused"][0]["line"]) == (0, 3, 4)
    assert "refused: line 4: " in there("import", "l.jsonl", code=1).out
    assert [row.id for row in there.app.dead.list()] == [row.id for row in dead.app.dead.list()]
    assert "cannot be read" in there("import", "none.jsonl", code=2).err
    assert "cannot be written" in dead("export", "-o", "no/such/folder", code=2).err
    assert "leave out --json" in dead("export", "--json", code=2).err
    assert there.deeds() == [("dead.import", 3, {})]
    assert [what for what, _, _ in dead.deeds()] == ["dead.export", "dead.export"]


def test_a_tracked_run_is_told_shown_and_resumed(dead: Shell) -> None:
    bury(dead.app, *"abcd")
    with working(dead.app):
        told = dead("retry", "--all", "--yes", "--canary", "--rate", "100/s")
    assert told.out == "retried 4 dead letters\n"
    (run,) = dead("runs", "--json").json
    assert f"`relevo dead resume {run['id']}` goes on" in told.err
    assert (run["state"], run["retried"], run["rate"], run["canary"]) == ("done", 4, "100/s", True)
    assert dead("runs", run["id"], "--json").json == [run]
    lines = dead("runs").out.splitlines()
    assert lines[0].split()[:3] == ["RUN", "STATE", "BEGAN"] and lines[1].split()[:2] == [run["id"], "done"]
    assert json.loads(dead("resume", run["id"], "--json").out)["state"] == "done"
    assert dead("stop", run["id"], code=1).out == "nothing to stop: no process leads it\n"
    assert "no replay" in dead("resume", NO_SUCH_ID, code=1).err
    assert [what for what, _, _ in dead.deeds()] == ["dead.replay", "dead.resume", "dead.stop"]


def test_a_run_that_a_canary_stopped_says_so_and_exits_with_1(dead: Shell) -> None:
    bury(dead.app, *"abc")

    def fail(invoice: int) -> str:
        raise ValueError("still broken")

    dead.app.task(name="shop.charge2", retries=0)(fail)
    dead.app.tasks["shop.charge"] = dead.app.tasks.pop("shop.charge2")
    with working(dead.app):
        told = dead("retry", "--all", "--yes", "--canary", code=1)
    assert "stopped: canary" in told.out and "is dead again" in told.out
    assert "1 run again, 1 of 3 looked at" in told.out
    assert len(dead.app.dead.list()) == 3


def test_no_runs_are_no_runs(dead: Shell) -> None:
    add_task(dead.app)
    assert dead("runs").out == "no tracked runs of late\n"
    for words, says in (
        (["retry", NO_SUCH_ID, "--canary"], "go with --all"),
        (["retry", "--all", "--yes", "--rate", "1/s", "--limit", "3"], "without --limit"),
    ):
        assert says in dead(*words, code=2).err
    assert dead("retry", "--all", "--yes", "--canary").out == "retried 0 dead letters\n"
