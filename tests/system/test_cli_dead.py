"""`relevo dead`: groups, filters, restore, edit, export and import, tracked runs, and what the audit trail says."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo, State
from relevo.cli.main import main
from tests.conftest import AppFactory
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system.shell import Output, Terminal, on_terminal, plain, relevo
from tests.system.test_cli import NO_SUCH_ID, add_task, bury
from tests.working import drained, working


class Shell:
    """The command for one app, in this process: a new one takes longer to start than all that is asked of it here."""

    def __init__(self, app: Relevo, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.app = app

    def __call__(self, *words: str, code: int = 0) -> Output:
        self._capsys.readouterr()
        try:
            exit_code = main(["dead", *words, "--name", self.app.name])
        except SystemExit as ended:  # a wrong command line
            assert isinstance(ended.code, int)
            exit_code = ended.code
        seen = Output(int(exit_code), *self._capsys.readouterr())
        assert seen.code == code, seen
        return seen

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
    monkeypatch.setenv("RELEVO_CALL_TIMEOUT", "30s")
    monkeypatch.chdir(tmp_path)
    return Shell(app, capsys)


def test_groups_are_shown_the_largest_first_and_retried(dead: Shell) -> None:
    bury(dead.app, "no stock for 1", "no stock for 2", "TimeoutError")
    found = dead("error-groups", "--json").json["items"]
    assert [group["count"] for group in found] == [2, 1]
    assert found[0]["tasks"] == ["shop.charge"]
    lines = dead("error-groups").out.splitlines()
    head = "GROUP COUNT LAST HOUR TREND PERMANENT FIRST LAST TASKS TENANTS ERROR"
    assert " ".join(lines[0].split()) == head
    assert lines[1].split()[:4] == [found[0]["fingerprint"], "2", "2", "new"]
    assert lines[-1] == "3 dead letters of 2 kinds"
    assert dead("error-groups", "--queue", "mials", code=2).err
    (row,) = dead("list", "--error-group", found[1]["fingerprint"], "--json").json["items"]
    assert row["reason"] == "TimeoutError"
    group = found[0]["fingerprint"]
    assert dead("retry", "--all", "--error-group", group, "--yes").out == "retried 2 dead letters\n"
    assert dead.deeds() == [("dead.retry", 2, {"all": True, "error_group": group})]


def test_dropped_letters_stand_below_the_groups_and_in_the_status(
    dead: Shell, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is there is taken for everything."""
    small = Relevo(dead.app.name, url=server.url, env="test", dead_max=2)
    bury(small, *["no stock"] * 5)
    small.close()
    monkeypatch.setenv("RELEVO_DEAD_MAX", "2")
    text = "default: 3 older ones dropped, because it had more than 2 (dead_max)"
    assert dead("error-groups").out.splitlines()[-2:] == ["2 dead letters of 1 kind", text]
    seen = relevo("status", "--name", dead.app.name, url=server.url, RELEVO_DEAD_MAX="2").out
    head, row = next((a.split(), b.split()) for a, b in pairwise(seen.splitlines()) if a.startswith("QUEUE"))
    assert row[head.index("DROPPED")] == "3"
    health = relevo("health", "--name", dead.app.name, url=server.url, RELEVO_DEAD_MAX="2")
    assert "▶ default: 3 dead letters dropped beyond dead_max (2)" in health.out and health.code == 1


def test_permanent_and_transient_letters_are_marked(dead: Shell) -> None:
    first, second = bury(dead.app, "bad_arguments", "retries_exhausted")
    head, *rows = dead("list").out.splitlines()
    assert "  PERMANENT  " in head
    assert [" yes " in row for row in rows] == [False, True]
    for words, id, permanent in (("--transient", second, ""), ("--permanent", first, "yes")):
        (group,) = dead("error-groups", words, "--json").json["items"]
        assert dead("list", "--error-group", group["fingerprint"], "--json").json["items"][0]["id"] == id
        assert group["permanent"] is bool(permanent)
        fifth = dead("error-groups", words).out.splitlines()[1].split()[4]
        assert fifth == "yes" if permanent else re.fullmatch(r"\d+s", fifth)


def test_ids_are_whole_on_eighty_columns(dead: Shell, server: Server) -> None:
    """Else they cannot be copied."""
    (id,) = bury(dead.app, "a reason that is rather long, as reasons of banks are, so that it does not fit into a line")
    group = dead.app.dead.error_groups()[0].fingerprint
    for words, whole in (("list", id), ("error-groups", group)):
        lines = plain(on_terminal("dead", words, "--name", dead.app.name, url=server.url).out)
        assert max(map(len, lines)) <= 80
        assert lines[1].split()[0] == whole
        assert "permanent" not in lines[0], "an empty column is left out on a narrow terminal"


def test_first_skipped_letters_are_listed_and_json_has_all(dead: Shell) -> None:
    ids = bury(dead.app, *["no stock"] * 130)
    assert dead("retry", *ids).out == "retried 130 dead letters\n"
    lines = dead("retry", *ids, code=1).out.splitlines()
    assert lines[0] == "retried 0 dead letters"
    assert lines[1:21] == [f"left: {id} is not a dead letter" for id in ids[:20]]
    assert lines[21:] == ["left: 110 more; --json names all of them"]
    assert dead("discard", *ids, "--json", code=1).json == {"discarded": 0, "left": ids}
    assert [what for what, *_ in dead.deeds()] == ["dead.retry"], "what was done to none is no deed"


def test_letter_that_cannot_come_back_is_skipped_with_the_reason(dead: Shell) -> None:
    (job,) = bury(dead.app, "no stock")
    vms = dead.app.pool("vms")
    letters = []
    for name in ("vm-1", "vm-2"):
        vms.add(name, "ready")
        letters.append(vms.fail(name, "unreachable") or "")
    vms.add("vm-1")
    seen = dead("retry", "--all", "--yes", code=1)
    first, second = seen.out.splitlines()
    assert first == "retried 2 dead letters"
    assert second.startswith(f"left: dead letter {letters[0]} cannot come back: pool vms has an entity 'vm-1' already")
    assert vms.counts() == {"pending": 1, "ready": 1}
    assert dead("retry", letters[0], "--json", code=1).json == {"retried": 0, "left": [letters[0]]}
    seen = dead("retry", job, code=1)
    assert seen.out.splitlines()[1] == f"left: {job} is not a dead letter"
    seen = dead("retry", "--all", "--queue", vms.queue, "--yes", "--rate", "100/s", code=1)
    assert "left: 1 dead letter: dead letter" in seen.out and "'vm-1' already" in seen.out
    assert vms.queue in dead("list", "--queue", "vms", code=2).err
    vms.remove("vm-1")
    assert dead("retry", letters[0], "no-id", code=2).out == "", "nothing is done if one of them is none"
    assert dead("retry", letters[0]).out == "retried 1 dead letter\n"
    assert [(what, count) for what, count, _ in dead.deeds()] == [
        ("dead.retry", 2), ("dead.replay", 0), ("dead.retry", 1),
    ]  # fmt: skip
    assert dead.deeds()[-1][2] == {"ids": [letters[0]]}
    for name in ("vm-1", "vm-2"):
        vms.remove(name)


def test_interrupted_run_is_audited_with_its_count(dead: Shell, server: Server) -> None:
    bury(dead.app, *"ab")
    words = ["retry", "--all", "--yes", "--rate", "1/h", "--text", "shop.charge", "--name", dead.app.name]
    with Terminal("dead", *words, url=server.url) as terminal:
        terminal.shows("if this ends")
        assert terminal.ends(signal.SIGINT) == 130
        assert "Traceback" not in terminal.seen
    (run,) = dead("runs", "--json").json["items"]
    assert (run["state"], run["retried"]) == ("stopped", 1)
    about = {"id": run["id"], "rate": "1/h", "text": "***", "all": True, "broken_off": True}
    assert dead.deeds() == [("dead.replay", 1, about)]


def test_lists_are_filtered_and_go_on(dead: Shell) -> None:
    first, second, third = bury(dead.app, "permanent", "retries_exhausted", "poison")

    def listed(*words: str) -> list[str]:
        return [row["id"] for row in dead("list", "--json", *words).json["items"]]

    assert listed("--permanent") == [first]
    assert listed("--transient") == [third, second]
    assert listed("--reason", "poison") == [third]
    assert listed("--since", "1h", "--task", "shop.charge") == [third, second, first]
    assert listed("--until", "1h") == []
    assert listed("--since", "2020-01-01", "--came-from", "running") == [third, second, first]
    after = dead("list", "--limit", "2", "--json").json["next"]
    assert dead("list", "--limit", "2").err == f"there may be more: --after {after}\n"
    assert listed("--after", after) == [first]
    assert dead("list", "--limit", "3", "--after", after, "--json").json["next"] is None
    for words, says in (
        ("--since yester-day", "a time such as"),
        ("--since 24", "how long ago"),
        ("--error-group x", "fing"),
    ):
        assert says in dead("list", *words.split(), code=2).err


def test_a_letter_is_run_with_a_signature_for_one_who_knows_its_maker(
    dead: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead.app.task(name="plain")(lambda: None)
    job = dead.app.tasks["plain"].enqueue()
    assert "no signing_keys" in dead("retry", job.id, "--sign", code=2).err
    monkeypatch.setenv("RELEVO_SIGNING_KEYS", "k1:0123456789abcdef")
    with dead.app.engine.rebound(signing_keys=("k1:0123456789abcdef",)):
        drained(dead.app)
        assert "--sign" in dead("show", job.id).out
        assert "--rate" in dead("retry", "--all", "--rate", "9/s", "--sign", code=2).err
        assert dead("retry", job.id, "--sign").out == "retried 1 dead letter\n"
        drained(dead.app)
        assert job.state() is State.DONE
    assert dead.deeds() == [("dead.retry", 1, {"ids": [job.id], "sign": True})]


def test_discarded_letters_are_restored(dead: Shell) -> None:
    first, second, third = bury(dead.app, "a", "b", "c")
    assert "for ten minutes" in dead("discard", first, second).err
    assert dead("discard", third, "--no-undo").err == ""
    assert dead("restore", first, NO_SUCH_ID, "--json", code=1).json == {"restored": 1, "left": [NO_SUCH_ID]}
    assert dead("restore", "--all").out == "restored 1 dead letter\n"
    assert dead("restore", "--all", code=1).out == "restored 0 dead letters\n"
    assert "which dead letters" in dead("restore", code=2).err
    assert {row.id for row in dead.app.dead.list()} == {first, second}
    assert [(what, count) for what, count, _ in dead.deeds()] == [
        ("dead.discard", 2), ("dead.discard", 1), ("dead.restore", 1), ("dead.restore", 1),
    ]  # fmt: skip


def test_discarded_letters_are_restored_by_the_filters_of_the_other_commands(dead: Shell) -> None:
    first, second, third = bury(dead.app, "permanent", "retries_exhausted", "poison")
    (mail,) = bury(dead.app, "poison", queue="mails")
    groups = {row.id: row.fingerprint for row in dead.app.dead.list()}

    def restored(*words: str) -> set[str]:
        """Those that come back."""
        assert dead("discard", "--all", "--yes").code == 0
        dead("restore", *words)
        back = {row.id for row in dead.app.dead.list()}
        dead.app.dead.restore(all=True)
        return back

    assert restored("--permanent") == {first}
    assert restored("--reason", "poison") == {third, mail}
    assert restored("--reason", "poison", "--queue", "mails") == {mail}
    assert restored("--queue", "mails", "--all") == {mail}
    assert restored("--task", "shop.charge", "--since", "1h") == {first, second, third, mail}
    assert restored("--error-group", groups[second]) == {one for one in groups if groups[one] == groups[second]}
    assert restored("--came-from", "running", "--limit", "2") == {first, second}
    assert dead("restore", "--until", "1h", code=1).out == "restored 0 dead letters\n"
    assert "--queue NAME --all" in dead("restore", "--queue", "mails", code=2).err
    assert dead.deeds()[-1] == ("dead.restore", 2, {"came_from": "running", "limit": 2})


def test_lists_are_shown_in_pages(dead: Shell) -> None:
    bury(dead.app, "a", "b", "c")
    for number in range(3):
        dead.app.audit.note("queue.pause", number=number)
    for words in ("dead list", "dead error-groups", "job list", "audit"):
        named = ("--of-app" if words == "audit" else "--name", dead.app.name)

        def page(*more: str, words: str = words, named: tuple[str, ...] = named) -> Output:
            return relevo(*words.split(), *named, *more, url=dead.app.settings.url)

        whole = page("--json").json
        assert whole["items"] and whole["next"] is None, words
        items, after = [], ""
        while after is not None:
            one = page("--json", "--limit", "1", *(("--after", after) if after else ())).json
            items += one["items"]
            after = one["next"]
        assert items == whole["items"], words
        assert page("--limit", "1").err == f"there may be more: --after {page('--limit', '1', '--json').json['next']}\n"
    assert "is no place in this list" in dead("error-groups", "--after", "x", code=2).err


def test_names_that_do_not_exist_are_no_empty_list(dead: Shell) -> None:
    """That there are none would look like good news."""
    (id,) = bury(dead.app, "permanent")
    for words in ("list", "retry --yes", "retry --yes --canary", "discard --yes", "restore", "export"):
        seen = dead(*words.split(), "--task", "charge", code=2)
        assert "no task 'charge' is known in app" in seen.err and "did you mean 'shop.charge'?" in seen.err, words
        assert "no tenant 'acme' is known" in dead(*words.split(), "--tenant", "acme", code=2).err, words
        assert "no queue 'defualt' in use" in dead(*words.split(), "--queue", "defualt", "--task", "x", code=2).err
    assert "is known in queue 'default'" in dead("list", "--queue", "default", "--task", "charge", code=2).err
    assert [row.id for row in dead.app.dead.list()] == [id]
    dead.app.task(name="shop.refund")(lambda: None).enqueue()
    assert dead("list", "--task", "shop.refund").out == "no dead letters\n", "it has none"


def test_filters_choose_letters_without_all(dead: Shell) -> None:
    _, second = bury(dead.app, "permanent", "poison")
    assert dead("discard", "--reason", "poison", "--yes").out == "discarded 1 dead letter\n"
    assert dead("retry", "--permanent", "--yes").out == "retried 1 dead letter\n"
    assert dead.app.dead.list() == []
    assert dead.app.queue().clear() == 1
    assert dead("restore", "--reason", "poison").out == "restored 1 dead letter\n"
    assert [row.id for row in dead.app.dead.list()] == [second]


def test_letters_without_room_are_not_restored_and_the_reason_is_printed(
    dead: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = bury(dead.app, "a", "b")
    dead("discard", *old)
    bury(dead.app, "c", "d")
    monkeypatch.setenv("RELEVO_DEAD_MAX", "2")
    seen = dead("restore", *old, code=1)
    assert [line.partition(":")[0] for line in seen.out.splitlines()] == ["restored 0 dead letters", "left", "left"]
    assert "no room for 1 of them" in seen.out
    monkeypatch.delenv("RELEVO_DEAD_MAX")
    assert dead("restore", "--all").out == "restored 2 dead letters\n"


def test_a_letter_is_run_with_other_arguments(dead: Shell) -> None:
    (id,) = bury(dead.app, "no stock")
    seen = dead("edit", id, "--args", "[8]", "--kwargs", '{"cents": 5}', "--json").json
    job = dead.app.job(seen["job"])
    assert (seen["origin"], seen["queue"]) == (id, "default")
    assert (job.info().args, job.info().kwargs, job.info().origin) == ([8], {"cents": 5}, id)
    shown = dead("show", id).out
    assert f"replaced by  {job.id}" in shown
    assert "written by   relevo" in shown
    assert "it was retried or edited" in dead("edit", id, "--args", "[9]", code=1).err
    assert "no JSON" in dead("edit", id, "--args", "[9", code=2).err
    assert "--args" in dead("edit", id, code=2).err
    about = {"id": id, "queue": "default", "job": job.id, "changed": ["args", "kwargs"]}
    assert dead.deeds() == [("dead.edit", 1, about)]

    dead.app.queue().take(1)[0].bury("no stock")
    new = dead("edit", job.id, "--args", json.dumps(["x" * 3000]), "--kwargs", "{}", "--json").json["job"]
    dead.app.queue().take(1)[0].bury("no stock")
    shown = dead("show", new).out
    assert "(3,002 characters; --json tells all)" in shown and max(map(len, shown.splitlines())) < 2100
    assert dead("show", new, "--json").json["args"] == ["x" * 3000]


def test_letters_are_written_to_a_file_and_read_from_it(
    dead: Shell, app_factory: AppFactory, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(dead.app, "a", "b")
    bury(dead.app, "c", queue="mails")
    assert dead("export", "-o", "l.jsonl").out == "exported 3 dead letters to l.jsonl\n"
    assert [path.name for path in tmp_path.iterdir()] == ["l.jsonl"]
    assert (tmp_path / "l.jsonl").stat().st_mode & 0o077 == 0, "only the owner may read it"
    assert len(dead("export", "--queue", "mails").out.splitlines()) == 1
    there = Shell(app_factory(), capsys)
    assert there("import", "l.jsonl").out == "imported 3 dead letters, 0 were there already\n"
    with (tmp_path / "l.jsonl").open("a") as file:
        file.write("nonsense\n")
    seen = there("import", "l.jsonl", "--json", code=1).json
    assert (seen["new"], seen["known"], seen["refused"][0]["line"]) == (0, 3, 4)
    assert "refused: line 4: " in there("import", "l.jsonl", code=1).out
    assert [row.id for row in there.app.dead.list()] == [row.id for row in dead.app.dead.list()]
    assert "cannot be read" in there("import", "none.jsonl", code=2).err
    assert "cannot be written" in dead("export", "-o", "no/such/folder", code=2).err
    assert "leave out --json" in dead("export", "--json", code=2).err
    assert there.deeds() == [("dead.import", 3, {})]
    monkeypatch.setenv("RELEVO_DEAD_MAX", "1")
    there.app.dead.discard(all=True, undo=False)
    (tmp_path / "l.jsonl").write_text("".join((tmp_path / "l.jsonl").read_text().splitlines(keepends=True)[:3]))
    seen = there("import", "l.jsonl", code=1)
    assert seen.out == "imported 3 dead letters, 0 were there already\ndropped: the oldest 1: a queue keeps 1\n"
    assert len(there.app.dead.list()) == 2
    assert [what for what, _, _ in dead.deeds()] == ["dead.export", "dead.export"]


def test_letters_go_through_pipes_and_links_and_leave_them_as_they_are(dead: Shell, tmp_path: Path) -> None:
    bury(dead.app, "a", "b")
    pipe, target, link, dangling = (tmp_path / name for name in ("pipe", "target", "link", "dangling"))
    os.mkfifo(pipe)
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    dead("export", "-o", "pipe")
    assert pipe.is_fifo()
    reader.join(PATIENCE)
    assert [len(one.splitlines()) for one in read] == [2]
    target.write_text("old")
    link.symlink_to("target")
    dangling.symlink_to("new")
    dead("export", "-o", "link")
    dead("export", "-o", "dangling")
    assert link.is_symlink() and dangling.is_symlink()
    assert target.read_bytes() == (tmp_path / "new").read_bytes() == read[0]
    assert "cannot be written: Is a directory" in dead("export", "-o", ".", code=2).err
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "target", "link", "dangling", "new"}


def test_tracked_run_is_announced_shown_and_resumed(dead: Shell) -> None:
    add_task(dead.app).enqueue(7)
    dead.app.queue().clear()
    assert dead("runs").out == "no recent tracked runs\n"
    assert dead("list").out == "no dead letters\n"
    assert "go with filters or --all" in dead("retry", NO_SUCH_ID, "--canary", code=2).err
    assert "without --limit" in dead("retry", "--all", "--yes", "--rate", "1/s", "--limit", "3", code=2).err
    bury(dead.app, *"abcd")
    with working(dead.app):
        seen = dead("retry", "--all", "--yes", "--canary", "--rate", "100/s")
    assert seen.out == "retried 4 dead letters\n"
    (run,) = dead("runs", "--json").json["items"]
    assert f"`relevo dead resume {run['id']}` goes on" in seen.err
    assert (run["state"], run["retried"], run["rate"], run["canary"]) == ("done", 4, "100/s", True)
    assert dead("runs", run["id"], "--json").json["items"] == [run]
    lines = dead("runs").out.splitlines()
    assert lines[0].split()[:3] == ["RUN", "STATE", "BEGAN"] and lines[1].split()[:2] == [run["id"], "done"]
    assert (
        dead("resume", run["id"], code=1).out
        == "nothing to resume: the run has ended, and had retried 4 dead letters\n"
    )
    assert json.loads(dead("resume", run["id"], "--json", code=1).out)["state"] == "done"
    assert dead("stop", run["id"], code=1).out == "nothing to stop: no process leads it\n"
    assert "no replay" in dead("resume", NO_SUCH_ID, code=1).err
    assert [what for what, _, _ in dead.deeds()] == ["dead.replay"], "the others changed nothing"


def test_run_stopped_by_its_canary_exits_with_1(dead: Shell) -> None:
    bury(dead.app, *"abc")

    def fail(invoice: int) -> str:
        raise ValueError("still broken")

    dead.app.task(name="shop.charge2", retries=0)(fail)
    dead.app.tasks["shop.charge"] = dead.app.tasks.pop("shop.charge2")
    with working(dead.app):
        seen = dead("retry", "--all", "--yes", "--canary", code=1)
    assert "stopped: canary" in seen.out and "is dead again" in seen.out
    assert "1 run again, 1 of 3 looked at" in seen.out
    assert len(dead.app.dead.list()) == 3
