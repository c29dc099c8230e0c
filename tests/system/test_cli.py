"""The command line: its output in text and JSON, and the exit codes that monitors read."""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.cli.main import build_parser
from relevo.engine import workers
from relevo.engine.workers import WorkerInfo
from relevo.store.embedded import server as embedded
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.system.shell import Output, Terminal, command, environment, on_terminal, relevo
from tests.working import drained

NO_SUCH_ID = "01k9q4w2zhq3mf7d0a2f"
#: Commands whose rows in the table below leave out the app.
NEED_AN_APP = ("workflow", "schedules")
#: A port on which no server of a test ever listens.
NO_SERVER = "redis://127.0.0.1:1/0"


def add_task(app: Relevo) -> Any:
    @app.task(name="shop.charge")
    def charge(invoice: int, *, cents: int = 0) -> str:
        return f"charged {invoice}"

    return charge


def bury(app: Relevo, *reasons: str, queue: str = "default") -> list[str]:
    """Dead letters, one for each reason."""
    task = add_task(app)
    ids = []
    for number, reason in enumerate(reasons):
        ids.append(task.using(queue=queue).enqueue(number).id)
        (lease,) = app.queue(queue).take(1, worker="w1")
        assert lease.bury(reason)
    return ids


def live_worker(app: Relevo, *queues: str) -> None:
    """A worker with a fresh heartbeat."""
    now_ms = time.time_ns() // 1_000_000
    info = WorkerInfo(
        id="w-1",
        host="box",
        pid=4711,
        queues=queues,
        concurrency=10,
        started_ms=now_ms - 60_000,
        running=2,
        done=1234,
        version="0.1.0",
    )
    app.engine.run(workers.present(app.engine.keys, info))
    app.engine.run(workers.listed(app.engine.keys, info.id))


def as_words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# The command itself


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    """Every command that does something, with its action."""
    choices = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not choices:
        yield words
    for word, one in choices[0].items() if choices else ():
        yield from commands(one, *words, word)


def test_every_command_explains_itself_with_two_examples() -> None:
    build_parser(parser := argparse.ArgumentParser())
    assert relevo("--version") == Output(0, "relevo 0.1.0\n", "")
    overview = relevo("--help")
    assert overview.code == 0
    for words in commands(parser):
        assert re.search(rf"\n    {words[0]}\s", overview.out)
        seen = relevo(*words, "--help")
        assert seen.code == 0
        _, _, examples = seen.out.partition("\nexamples:\n")
        assert len(re.findall(rf"^  (?:.* \| )?relevo {' '.join(words)}\b", examples, re.MULTILINE)) >= 2, words
        assert "None" not in seen.out
        assert "--json" in seen.out or words[0] in ("worker", "web", "completion"), words


def test_installed_command_is_a_process_with_an_exit_code(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(1)
    installed = str(Path(sys.executable).with_name("relevo"))
    words = [installed, "status", "--name", app.name]
    done = subprocess.run(words, env=environment(server.url), capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (1, "")
    assert "no worker serves it" in done.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "COMMAND"),
        (["statsu"], "did you mean 'status'?"),
        (["status", "--name", "x", "--next", "0"], "from 1 to 1000"),
        (["status", "--name", "x", "--watch", "nan"], "seconds"),
        (["status", "--name", "x", "--watch"], "--watch refreshes a terminal"),
        (["status"], "which app? give -A module:app"),
        (["status", "--name", "x", "-A", "y:z"], "brings its own settings"),
        (["status", "--name", "a" * 300], "200"),
        (["status", "x:app", "--name", "x"], "the app is given twice: by 'x:app' and by --name"),
        (["status", "x:app", "y:app"], "unrecognized arguments: y:app"),
        (["job", "show", "--name", "x"], "ID"),
        (["job", "lst", "--name", "x"], "invalid choice: 'lst'"),
        (["queue", "puase", "mail", "--name", "x"], "invalid choice: 'puase'"),
        (["dead", "groups", "--name", "x"], "error-groups"),
        (["job", "--name", "x", NO_SUCH_ID], f"`relevo job show {NO_SUCH_ID}` shows one"),
        (["job", "cancel", NO_SUCH_ID, "--yes", "--name", "x"], "unrecognized arguments: --yes"),
        (["job", "list", "--state", "lost", "--name", "x"], "invalid choice: 'lost'"),
        (["job", "list", "--after", "here", "--name", "x"], "the `after` of a page is needed"),
        (["dead", "retry", "--name", "x"], "Give their ids, filters such as --task"),
        (["dead", "retry", "--queue", "mails", "--name", "x"], "--queue NAME --all"),
        (["dead", "discard", NO_SUCH_ID, "--all", "--name", "x"], "ids name the dead letters already"),
        (["dead", "discard", NO_SUCH_ID, "--error", "E", "--name", "x"], "ids name the dead letters already"),
        (["dead", "restore", NO_SUCH_ID, "--error", "E", "--name", "x"], "ids name the dead letters already"),
        (["server", "start", "--idle", "-1"], "seconds are needed"),
        (["workflow", "--watch"], "unrecognized arguments: --watch"),
        (["workflow", "cancel"], "ID"),
        (["workflow", NO_SUCH_ID, "--limit", "3"], "unrecognized arguments: --limit"),
        (["workflow", NO_SUCH_ID, "--watch", "--json"], "when output is JSON"),
        (["schedules", "show"], "NAME"),
        (["schedules", "remove"], "Give their names, or --stale; not both"),
        (["schedules", "remove", "a", "--stale"], "Give their names, or --stale; not both"),
        (["services", "--watch"], "--watch refreshes a terminal"),
        (["services", "-o", "x.json"], "-o names the file of --asyncapi"),
        (["cleanup"], "Give the id of a conversation, or --orphans"),
        (["cleanup", "task_7", "--orphans"], "not both"),
        (["cleanup", "task_7", "--yes"], "--yes is for --orphans"),
        (["cleanup", "--orphans", "--dead"], "--dead is for dead letters of a conversation"),
        (["cleanup", "--orphans", "--yes", "--dry-run"], "leave one of them out"),
        (["cleanup", "x" * 300], "at most 200 characters"),
        (["trace", "a\nb"], "the id of an operation"),
        (["health", "--name", "x", "--watch", "--json"], "--watch refreshes a terminal"),
        (["purge", "--name", "x", "--yes", "--dry-run"], "leave one of them out"),
        (["queue", "mail", "--name", "x", "--timeout", "5m"], "unrecognized arguments: --timeout"),
        (["queue", "drain", "mail", "--name", "x", "--timeout", "5"], "has no unit"),
    ],
)
def test_wrong_command_line_is_refused_with_a_reason(server: Server, words: list[str], reason: str) -> None:
    named = ["--name", "x"] if words and words[0] in NEED_AN_APP else []
    result = relevo(*words, *named, url=server.url)
    assert result.code == 2
    assert result.out == "" or result.json["error"] in ("ConfigurationError", "OptionError")
    assert reason in result.err
    assert "Traceback" not in result.err


def test_closed_pipe_ends_the_command_without_an_error(server: Server, app: Relevo) -> None:
    words, pipe = command("status", "--name", app.name), subprocess.PIPE
    started = subprocess.Popen(words, env=environment(server.url), stdout=pipe, stderr=pipe)
    assert started.stdout and started.stderr
    started.stdout.close()
    with started.stderr:
        assert started.stderr.read() == b""
    assert started.wait(PATIENCE) == 141


def redirected(how: str, *arguments: str, url: str, **variables: str) -> Output:
    """The command with its streams as a shell sets them."""
    words = ["sh", "-c", f'exec "$@" {how}', "sh", *command(*arguments)]
    env, nothing = environment(url, **variables), subprocess.DEVNULL
    done = subprocess.run(words, env=env, capture_output=True, text=True, stdin=nothing, timeout=PATIENCE)
    return Output(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("words", "unbuffered"),  # the error is met at the end, or by the first line
    [("status", ""), ("top --once --every 0.1", ""), ("dead export", "1"), ("dead retry ID", ""), ("--help", "")],
)
def test_output_that_cannot_be_written_is_one_line_and_an_exit_code(
    server: Server, app: Relevo, words: str, unbuffered: str
) -> None:
    ids = bury(app, "a", "b")
    named = [] if words == "--help" else ["--name", app.name]
    given = words.replace("ID", ids[0]).split()
    result = redirected("> /dev/full", *given, *named, url=server.url, PYTHONUNBUFFERED=unbuffered)
    assert (result.code, result.err) == (2, "relevo: output cannot be written: No space left on device\n")
    assert len(app.dead.list()) == (1 if "retry" in words else 2), "the letter was retried before"
    app.queue().clear()


def test_streams_that_are_full_or_closed_leave_no_traceback(server: Server, app: Relevo) -> None:
    (id,) = bury(app, "a")
    result = redirected("> /dev/full 2>&1", "status", "--name", app.name, url=server.url)
    assert result.code == 2, "even the error cannot be written"
    result = redirected("2> /dev/full", "status", "--name", "nope", url=server.url)
    assert result.code == 1 and "nothing is known" in result.out
    assert redirected("<&- >&-", "status", "--name", app.name, url=server.url) == Output(0, "", "")
    assert redirected(">&- 2>&-", "dead", "retry", id, "--name", app.name, url=server.url) == Output(0, "", "")
    assert app.dead.list() == [] and app.queue().clear() == 1
    result = redirected("2>&-", "dead", "show", id, "--name", app.name, url=server.url)
    assert (result.code, result.out) == (1, ""), "errors do not go to standard output"


# Which app


SHOP = """
from relevo import Relevo
app = Relevo({name!r})
number = 7
"""


def test_app_is_imported_from_the_working_directory_or_named(server: Server, app: Relevo, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(name=app.name))
    add_task(app).enqueue(1)
    for result in (
        relevo("status", "-A", "shop:app", "--json", url=server.url, cwd=tmp_path),
        relevo("status", "--json", url=server.url, cwd=tmp_path, RELEVO_APP="shop:app"),
        relevo("status", "--name", app.name, "--env", "test", "--url", server.url, "--json"),
    ):
        assert (result.json["app"], result.json["env"]) == (app.name, "test")
        assert result.json["queues"][0]["ready"] == 1


def test_app_that_cannot_be_imported_is_explained(server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(name="shop"))
    (tmp_path / "broken.py").write_text("x = y\n")
    for spec, reason in (
        ("shpo:app", "no module 'shpo'"),
        ("shop:ap", "did you mean 'app'?"),
        ("shop:number", "int"),
        ("shop.py:app", "a module is needed: shop:app?"),
        ("broken:app", "NameError: name 'y' is not defined"),
    ):
        result = relevo("status", "-A", spec, url=server.url, cwd=tmp_path)
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1), spec
        assert reason in result.err


def test_password_on_the_command_line_is_refused_and_not_printed(tmp_path: Path) -> None:
    result = relevo("status", "--name", "x", "--url", "redis://:s3cret@127.0.0.1:1/0")
    assert result.code == 2
    assert "RELEVO_URL" in result.err
    assert "s3cret" not in result.out + result.err


def test_password_of_the_url_is_not_printed(tmp_path: Path) -> None:
    with Server(directory=tmp_path, config={"requirepass": "s3cret"}) as server:
        for words in (["status", "--name", "x"], ["doctor"], ["dead", "list", "--name", "x"]):
            for form in ([], ["--json"]):
                result = relevo(*words, *form, url=server.url)
                assert result.code in (0, 1)
                assert "s3cret" not in result.out + result.err
        url = server.url.replace("s3cret", "wr0ng")
        result = relevo("status", "--name", "x", url=url)
        assert result.code == 2
        assert "password" in result.err
        assert "wr0ng" not in result.err


def test_read_only_command_creates_no_data_directory(tmp_path: Path) -> None:
    result = relevo("status", "--name", "x", cwd=tmp_path)
    assert result.code == 2
    assert ".relevo does not exist" in result.err
    assert list(tmp_path.iterdir()) == []


# status


def test_status_shows_queues_and_workers(server: Server, app: Relevo) -> None:
    charge = add_task(app)
    charge.enqueue_many([((n,), {}) for n in range(3)])
    charge.using(delay="1h").enqueue(9)
    app.queue().take(1)
    live_worker(app, "default")
    result = relevo("status", "--name", app.name, url=server.url)
    assert (result.code, result.err) == (0, "")
    words = as_words(result.out)
    assert next(line for line in words if line[:1] == ["default"])[:7] == ["default", "2", "1", "0", "1", "0", "0"]
    assert " ".join(next(line for line in words if line[:1] == ["w-1"])).startswith("w-1 box 4711 default 2 1,234 0 ")
    assert f"127.0.0.1:{server.port}" in result.out
    assert f"app {app.name} in test" in result.out


def test_status_as_json_has_the_documented_fields(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(1)
    live_worker(app, "default")
    result = relevo("status", "--name", app.name, "--json", "--next", "3", url=server.url)
    report = result.json
    assert result.code == 0
    assert set(report) == {
        "app", "env", "level", "warnings", "server", "queues", "workers", "silent_workers", "pauses", "next",
    }  # fmt: skip
    assert set(report["server"]) == {
        "address", "engine", "version", "used_memory", "maxmemory", "clients", "uptime_s",
    }  # fmt: skip
    assert (report["level"], report["warnings"]) == ("ok", [])
    (queue,) = report["queues"]
    states = {name: queue[name] for name in ("ready", "scheduled", "running", "done", "dead")}
    assert states == {"ready": 1, "scheduled": 0, "running": 0, "done": 0, "dead": 0}
    assert (queue["name"], queue["paused"]) == ("default", False)
    assert {"idle_workers", "next_due_ms", "totals"} < set(queue)
    assert [worker["id"] for worker in report["workers"]] == ["w-1"]
    assert [(job["task"], job["queue"]) for job in report["next"]] == [("shop.charge", "default")]


def test_status_warns_of_what_needs_attention(server: Server, app: Relevo) -> None:
    def status(warning: str) -> None:
        result = relevo("status", "--name", app.name, "--json", url=server.url)
        assert (result.code, result.json["level"]) == ((1, "warning") if warning else (0, "ok")), warning
        assert warning in " ".join(result.json["warnings"]) and bool(result.json["warnings"]) == bool(warning)

    bury(app, "no stock")
    status("")
    add_task(app).enqueue(1)
    live_worker(app, "mails")  # lives, but serves another queue
    status("queue 'default': 1 job ready and no worker serves it")
    assert "warning: queue 'default'" in relevo("status", "--name", app.name, url=server.url).out
    (lease,) = app.queue().take(1, lease="1m")
    status("")
    lease.give_back()
    app.queue().pause()
    status("paused")
    app.queue().resume()
    app.queue().take(1, lease=0.001)
    status("of lost workers")


def test_empty_list_of_a_misspelt_app_is_a_warning(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(7)
    result = relevo("status", "--name", app.name + "x", url=server.url)
    assert result.code == 1 and "nothing is known of app" in result.out
    for words in ("dead", "dead error-groups", "dead runs", "limits", "schedules", "workflow"):
        for name, code in ((app.name + "x", 1), (app.name, 0)):
            result = relevo(*words.split(), "--name", name, "--json", url=server.url)
            assert (result.code, result.json) == (code, {"items": [], "next": None}), (words, name)
            assert ("nothing is known of app" in result.err) == (code == 1), (words, name)
    app.queue().clear()


DOWN = [
    ["status", "--name", "x"], ["job", NO_SUCH_ID, "--name", "x"], ["dead", "list", "--name", "x"], ["doctor"],
    ["services"], ["trace", "task_7"], ["cleanup", "--orphans"], ["workflow", "--name", "x"], ["health", "--name", "x"],
    ["purge", "--name", "x"], ["queue", "mail", "--name", "x"],
]  # fmt: skip


@pytest.mark.parametrize("words", DOWN, ids=" ".join)
def test_server_that_is_down_is_critical(words: list[str]) -> None:
    result = relevo(*words, "--json", url=NO_SERVER, RELEVO_CALL_TIMEOUT="100ms")
    assert (result.code, result.json["error"]) == (2, "ServerUnavailable")
    assert result.err.startswith("relevo: cannot connect to 127.0.0.1:1") and result.err.count("\n") == 1


def test_next_shows_due_jobs_in_the_order_they_will_start(server: Server, app: Relevo) -> None:
    charge = add_task(app)
    charge.using(delay="1h", priority=0).enqueue(1)
    charge.using(name="later").enqueue(2)
    charge.using(name="first", priority=0).enqueue(3)
    charge.using(name="overdue", delay=0.001, priority=50).enqueue(4)
    result = relevo("status", "--name", app.name, "--next", "5", "--json", url=server.url)
    names = [(job["name"], job["priority"]) for job in result.json["next"]]
    assert names == [("first", 0), ("overdue", 50), ("later", 100)]
    shown = relevo("status", "--name", app.name, "--next", "1", url=server.url).out
    assert "first" in shown and "later" not in shown


def test_watching_refreshes_a_terminal_until_interrupted(server: Server, app: Relevo) -> None:
    live_worker(app, "default")
    with Terminal("status", "--name", app.name, "--watch", "0.1", url=server.url, columns=200) as terminal:
        terminal.shows("\x1b[H\x1b[2J", times=3)
        assert terminal.ends(signal.SIGINT) == 130
        assert "w-1" in terminal.seen
        assert "Traceback" not in terminal.seen


# job


def test_job_is_shown_with_its_attempts(server: Server, app: Relevo) -> None:
    charge = add_task(app)
    job = charge.using(name="charge-7").enqueue(7, cents=990)
    (lease,) = app.queue().take(1, worker="w1")
    lease.retry(reason="card refused")
    (lease,) = eventually(lambda: app.queue().take(1, worker="w2"))
    lease.bury("no stock")
    result = relevo("job", job.id, "--name", app.name, url=server.url)
    assert (result.code, result.err) == (0, "")
    assert f"job {job.id} is dead: no stock\n" in result.out
    for line in (["task", "shop.charge"], ["arguments", "7,", "cents=990"], ["name", "charge-7"], ["worker", "w2"]):
        assert line in as_words(result.out)
    assert "attempt 1: retried by w1" in result.out
    assert "  card refused" in result.out
    assert "attempt 2: failed by w2" in result.out
    info = relevo("job", job.id, "--name", app.name, "--json", "--logs", url=server.url).json
    assert (info["state"], info["args"], info["kwargs"], info["logs"]) == ("dead", [7], {"cents": 990}, "")
    assert {"id", "task", "queue", "priority", "enqueued_ms", "attempts", "reason", "result"} < set(info)


def test_traceback_and_logs_of_a_failed_job_are_shown(server: Server, app: Relevo) -> None:
    @app.task(name="shop.refuse", retries=0)
    def refuse(cents: int) -> None:
        print(f"charging {cents} cents")
        raise ValueError("no such card")

    job = refuse.enqueue(990)
    drained(app)
    result = relevo("job", job.id, "--name", app.name, "--logs", url=server.url)
    assert result.code == 0
    attempts, logs = result.out.split("\nlogs\n")
    assert "attempt 1: failed" in attempts
    assert '    raise ValueError("no such card")\n  ValueError: no such card\n' in attempts
    assert logs.startswith("charging 990 cents\n")


@pytest.mark.parametrize("id", [NO_SUCH_ID, "*", "🦊"])
def test_a_job_that_does_not_exist_is_not_found(server: Server, app: Relevo, id: str) -> None:
    result = relevo("job", id, "--name", app.name, "--json", url=server.url)
    assert (result.code, result.json["error"]) == (1, "UnknownJob")
    assert result.err.count("\n") == 1


def test_a_job_is_cancelled_once(server: Server, app: Relevo) -> None:
    job = add_task(app).enqueue(7)
    result = relevo("job", "cancel", job.id, "--name", app.name, url=server.url)
    assert result.code == 0 and result.out.startswith("cancelled\n")
    result = relevo("job", "cancel", job.id, "--name", app.name, "--json", url=server.url)
    assert (result.code, result.json["cancelled"], result.json["state"]) == (1, False, "cancelled")
    running = add_task(app).enqueue(8)
    app.queue().take(1, lease="1m")
    result = relevo("job", "cancel", running.id, "--name", app.name, url=server.url)
    assert result.code == 0 and result.out.startswith("its worker was asked to stop it\n")


def test_a_dead_job_is_run_again_and_a_waiting_one_is_not(server: Server, app: Relevo) -> None:
    (id,) = bury(app, "no stock")
    result = relevo("job", "retry", id, "--name", app.name, "--json", url=server.url)
    assert (result.code, result.json["retried"], result.json["state"]) == (0, True, "ready")
    result = relevo("job", "retry", id, "--name", app.name, url=server.url)
    assert result.code == 1 and result.out.startswith("not run again")


def test_control_characters_of_a_job_are_escaped(server: Server, app: Relevo) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 [bold red]x[/] \u202e"
    (id,) = bury(app, evil)
    for words in (["job", id], ["dead", "list"], ["dead", "show", id]):
        result = relevo(*words, "--name", app.name, url=server.url)
        assert result.code == 0
        assert "\\x1b[2J\\x1b]0;owned\\x07 [bold red]x[/] \\u202e" in result.out
        assert not {"\x1b", "\x07", "\u202e"} & set(result.out)


# dead


def test_dead_letters_are_listed_newest_first_filtered_and_shown(server: Server, app: Relevo) -> None:
    first, second = bury(app, "no stock", "TimeoutError")
    (mail,) = bury(app, "no stock", queue="mails")

    def listed(*words: str) -> list[str]:
        result = relevo("dead", "list", "--name", app.name, "--json", *words, url=server.url)
        assert result.code == 0
        return [row["id"] for row in result.json["items"]]

    assert listed() == [mail, second, first]
    assert listed("--queue", "mails") == [mail]
    assert listed("--error", "timeout") == [second]
    assert listed("--limit", "1") == [mail]
    for words in (["list"], ["discard", "--all", "--yes"]):
        result = relevo("dead", *words, "--queue", "mials", "--name", app.name, url=server.url)
        assert (result.code, result.out) == (2, "") and "did you mean 'mails'?" in result.err
    waiting = add_task(app).enqueue(8).id
    assert "is dead: no stock" in relevo("dead", "show", first, "--name", app.name, url=server.url).out
    result = relevo("dead", "show", waiting, "--name", app.name, url=server.url)
    assert (result.code, result.out) == (1, "") and "is ready, not a dead letter" in result.err
    result = relevo("dead", "list", "--name", app.name, url=server.url)
    assert result.out.splitlines()[0].split() == ["ID", "QUEUE", "TASK", "ENDED", "REASON", "PERMANENT", "ERROR"]
    assert [line.split()[0] for line in result.out.splitlines()[1:]] == [mail, second, first]


def test_changing_all_dead_letters_needs_yes(server: Server, app: Relevo) -> None:
    bury(app, "a", "b")
    for action in ("retry", "discard"):
        result = relevo("dead", action, "--all", "--name", app.name, url=server.url)
        assert (result.code, result.out) == (2, "")
        assert f"this would {action} 2 dead letters" in result.err
        assert "--yes" in result.err
    assert len(app.dead.list()) == 2


def test_all_dead_letters_that_match_are_discarded_and_counted(server: Server, app: Relevo) -> None:
    kept, _, newest = bury(app, "no stock", "TimeoutError", "TimeoutError")
    words = ["dead", "discard", "--all", "--yes", "--error", "timeout", "--name", app.name]
    result = relevo(*words, "--limit", "1", url=server.url)
    assert (result.code, result.out) == (0, "discarded 1 dead letter\n")
    assert [row.id for row in app.dead.list()] == [newest, kept], "the oldest first"
    assert relevo(*words, "--json", url=server.url).json == {"discarded": 1, "left": []}
    assert [row.id for row in app.dead.list()] == [kept]


@pytest.mark.parametrize(("answer", "left", "code"), [("y\n", 0, 0), ("\n", 1, 1)])
def test_on_a_terminal_the_operator_is_asked(server: Server, app: Relevo, answer: str, left: int, code: int) -> None:
    bury(app, "no stock")
    result = on_terminal("dead", "discard", "--all", "--name", app.name, url=server.url, typed=answer)
    assert result.code == code
    assert "discard 1 dead letter of 1 queue? [y/N]" in result.out
    assert len(app.dead.list()) == left


# Pipes and terminals


def test_colours_are_for_terminals_only(server: Server) -> None:
    assert "\x1b[32m" in on_terminal("doctor", url=server.url, columns=200).out
    assert "\x1b[32m" not in on_terminal("doctor", url=server.url, columns=200, NO_COLOR="1").out
    assert "\x1b" not in relevo("doctor", url=server.url, TERM="xterm-256color", FORCE_COLOR="1").out


def test_terminal_without_rich_gets_plain_text(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"rich", "rich.console", *(name for name in sys.modules if name.startswith("rich."))}:
        monkeypatch.setitem(sys.modules, name, None)
    seen = on_terminal("doctor", url=server.url).out
    assert "version" in seen and "\x1b" not in seen


def test_a_terminal_without_utf8_does_not_end_a_command(server: Server, app_factory: AppFactory) -> None:
    app = app_factory()
    add_task(app).using(name="smörgås-🦊").enqueue(1)
    words = ("status", "--name", app.name, "--next", "1")
    result = relevo(*words, url=server.url, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.code == 1
    assert "sm\\xf6rg\\xe5s-\\U0001f98a" in result.out


# server


def test_the_embedded_server_is_started_described_and_stopped(tmp_path: Path) -> None:
    try:
        result = relevo("server", "status", cwd=tmp_path)
        assert result.code == 1 and result.out.startswith("not running\n")
        assert list(tmp_path.iterdir()) == []

        result = relevo("server", "start", "--idle", "60", "--json", cwd=tmp_path)
        assert (result.code, result.json["started"], result.json["running"]) == (0, True, True)
        again = relevo("server", "start", cwd=tmp_path)
        assert again.code == 0 and again.out.startswith("it was running already\n")

        status = relevo("server", "status", "--json", cwd=tmp_path).json
        assert (status["pid"], status["aof"]) == (result.json["pid"], True)
        assert status["data_dir"] == str(tmp_path / ".relevo")
        assert relevo("doctor", cwd=tmp_path).code == 0

        result = relevo("server", "stop", cwd=tmp_path)
        assert result.code == 0 and result.out.startswith("stopped")
        result = relevo("server", "stop", "--json", cwd=tmp_path)
        assert (result.code, result.json["stopped"]) == (0, False)
    finally:
        embedded.stop(tmp_path / ".relevo")


def test_embedded_server_beside_a_configured_url_prints_a_note(tmp_path: Path) -> None:
    """The other server's password is not in the output."""
    data = tmp_path / "data"
    try:
        words = ("server", "start", "--idle", "60", "--data-dir", str(data))
        result = relevo(*words, url="redis://:s3cret@db:6379/0", cwd=tmp_path)
        assert result.code == 0
        assert "redis://:***@db:6379/0" in result.out
        assert "s3cret" not in result.out
    finally:
        embedded.stop(data)
