"""The command line: what it says, in text and JSON, and the exit codes that monitors read."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.store import embedded, workers
from relevo.store.workers import WorkerInfo
from tests.conftest import AppFactory
from tests.eventually import eventually
from tests.servers import Server, free_port
from tests.system.shell import Told, command, environment, relevo

NO_SUCH_ID = "01k9q4w2zhq3mf7d0a2f"


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
    """A worker that has just said it lives."""
    now_ms = time.time_ns() // 1_000_000
    info = WorkerInfo("w-1", "box", 4711, queues, 10, now_ms - 60_000, running=2, done=1234, version="0.1.0")
    app.run(workers.present(app.keys, info))
    app.run(workers.listed(app.keys, info.id))


def as_words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


# The command itself


def test_help_names_every_command_and_ends_well() -> None:
    told = relevo("--help")
    assert told.code == 0
    for name in ("worker", "status", "job", "dead", "doctor", "server", "demo"):
        assert f"\n    {name} " in told.out


@pytest.mark.parametrize("words", [["status"], ["job"], ["dead"], ["dead", "retry"], ["doctor"], ["server", "start"]])
def test_every_command_explains_itself_with_an_example(words: list[str]) -> None:
    told = relevo(*words, "--help")
    assert told.code == 0
    assert "examples:\n  relevo " + " ".join(words) in told.out
    assert "--json" in told.out or len(words) == 1


def test_version_is_told() -> None:
    told = relevo("--version")
    assert (told.code, told.out) == (0, "relevo 0.1.0\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "COMMAND"),
        (["statsu"], "did you mean 'status'?"),
        (["status", "--nonsense"], "--nonsense"),
        (["status", "--name", "x", "--next", "0"], "from 1 to 1000"),
        (["status", "--name", "x", "--next", "9" * 5000], "from 1 to 1000"),
        (["status", "--name", "x", "--watch", "nan"], "seconds"),
        (["status", "--name", "x", "--watch"], "--watch refreshes a terminal"),
        (["status"], "which app? give -A module:app"),
        (["status", "--name", "x", "-A", "y:z"], "brings its own settings"),
        (["status", "--name", "a" * 300], "200"),
        (["job", "--name", "x"], "ID"),
        (["job", NO_SUCH_ID, "--name", "x", "--cancel", "--retry"], "not allowed with"),
        (["dead", "--name", "x"], "ACTION"),
        (["dead", "retry", "--name", "x"], "Give their ids, or --all"),
        (["dead", "retry", "--al", "--name", "x"], "--al"),
        (["dead", "discard", NO_SUCH_ID, "--all", "--name", "x"], "not both"),
        (["dead", "discard", NO_SUCH_ID, "--error", "E", "--name", "x"], "go with --all"),
        (["server", "start", "--idle", "-1"], "seconds are needed"),
    ],
)
def test_a_wrong_command_line_is_refused_with_a_reason(server: Server, words: list[str], said: str) -> None:
    """Exit code 2."""
    told = relevo(*words, url=server.url)
    assert (told.code, told.out) == (2, "")
    assert said in told.err
    assert "Traceback" not in told.err


def test_an_unknown_setting_is_refused_in_one_line(server: Server) -> None:
    told = relevo("status", "--name", "x", url=server.url, RELEVO_LEESE="3s")
    assert told.code == 2
    assert told.err == "relevo: unknown environment variable 'RELEVO_LEESE', did you mean 'RELEVO_LEASE'?\n"


def test_output_that_nobody_reads_ends_the_command_quietly(server: Server, app: Relevo) -> None:
    started = subprocess.Popen(
        command("status", "--name", app.name),
        env=environment(server.url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert started.stdout and started.stderr
    started.stdout.close()
    with started.stderr:
        assert started.stderr.read() == b""
    assert started.wait(60) == 141


def redirected(how: str, *arguments: str, url: str, **variables: str) -> Told:
    """The command with its streams as a shell sets them."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {how}', "sh", *command(*arguments)],
        env=environment(url, **variables),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    return Told(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("unbuffered", ["", "1"])  # met at the end, or by the first line
def test_output_that_cannot_be_written_is_one_line_and_an_exit_code(
    server: Server, app: Relevo, unbuffered: str
) -> None:
    ids = bury(app, "a", "b")
    for words in (
        ["status"],
        ["status", "--json"],
        ["top", "--once", "--every", "0.1"],
        ["dead", "export"],
        ["dead", "retry", ids[0]],
    ):
        told = redirected("> /dev/full", *words, "--name", app.name, url=server.url, PYTHONUNBUFFERED=unbuffered)
        assert told.code == 2, (words, told)
        assert told.err == "relevo: output cannot be written: No space left on device\n", words
    assert [letter.id for letter in app.dead.list()] == ids[1:], "what was done before that is done"
    assert app.queue().clear() == 1
    told = redirected("> /dev/full 2>&1", "status", "--name", app.name, url=server.url, PYTHONUNBUFFERED=unbuffered)
    assert told.code == 2, "there is nowhere to say it"
    told = redirected("2> /dev/full", "status", "--name", "nope", url=server.url, PYTHONUNBUFFERED=unbuffered)
    assert told.code == 1 and "nothing is known" in told.out


def test_help_that_cannot_be_written_leaves_no_traceback(server: Server) -> None:
    told = redirected("> /dev/full", "--help", url=server.url, PYTHONUNBUFFERED="")
    assert (told.code, told.err) == (2, "relevo: output cannot be written: No space left on device\n")


def test_a_stream_that_was_closed_is_like_dev_null(server: Server, app: Relevo) -> None:
    (id,) = bury(app, "a")
    for how in (">&-", "<&- >&-"):
        assert redirected(how, "status", "--name", app.name, url=server.url) == Told(0, "", ""), how
    assert redirected(">&- 2>&-", "dead", "retry", id, "--name", app.name, url=server.url) == Told(0, "", "")
    assert app.dead.list() == [] and app.queue().clear() == 1
    told = redirected("2>&-", "dead", "show", id, "--name", app.name, url=server.url)
    assert (told.code, told.out) == (1, ""), "errors do not go where answers go"


# Which app


SHOP = """
from relevo import Relevo
app = Relevo({name!r})
number = 7
"""


def test_the_app_is_imported_from_the_working_directory(server: Server, app: Relevo, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(name=app.name))
    add_task(app).enqueue(1)
    for told in (
        relevo("status", "-A", "shop:app", "--json", url=server.url, cwd=tmp_path),
        relevo("status", "--json", url=server.url, cwd=tmp_path, RELEVO_APP="shop:app"),
    ):
        assert (told.json["app"], told.json["env"]) == (app.name, "test")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("shpo:app", "no module 'shpo'"),
        ("shop:ap", "did you mean 'app'?"),
        ("shop:number", "int"),
        ("shop.py:app", "a module is needed: shop:app?"),
        ("broken:app", "NameError: name 'y' is not defined"),
        ("unfinished:app", "SyntaxError: invalid syntax"),
        ("needy:app", "'no_such_thing'"),
    ],
)
def test_an_app_that_cannot_be_found_is_explained(server: Server, tmp_path: Path, spec: str, said: str) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(name="shop"))
    (tmp_path / "broken.py").write_text("x = y\n")
    (tmp_path / "unfinished.py").write_text("x = \n")
    (tmp_path / "needy.py").write_text("import no_such_thing\n")
    told = relevo("status", "-A", spec, url=server.url, cwd=tmp_path)
    assert (told.code, told.out) == (2, "")
    assert said in told.err
    assert told.err.count("\n") == 1


def test_an_app_may_be_named_without_importing_it(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(1)
    told = relevo("status", "--name", app.name, "--env", "test", "--url", server.url, "--json")
    assert told.json["queues"][0]["ready"] == 1


def test_a_password_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path) -> None:
    """No password on a command line or in output."""
    told = relevo("status", "--name", "x", "--url", "redis://:s3cret@127.0.0.1:1/0")
    assert told.code == 2
    assert "RELEVO_URL" in told.err
    assert "s3cret" not in told.out + told.err


def test_no_password_reaches_the_output(tmp_path: Path) -> None:
    with Server(directory=tmp_path, config={"requirepass": "s3cret"}) as server:
        for words in (["status", "--name", "x"], ["doctor"], ["dead", "list", "--name", "x"]):
            for form in ([], ["--json"]):
                told = relevo(*words, *form, url=server.url)
                assert told.code in (0, 1)
                assert "s3cret" not in told.out + told.err
        url = server.url.replace("s3cret", "wr0ng")
        told = relevo("status", "--name", "x", url=url)
        assert told.code == 2
        assert "password" in told.err
        assert "wr0ng" not in told.err


def test_looking_creates_no_data_directory(tmp_path: Path) -> None:
    told = relevo("status", "--name", "x", cwd=tmp_path)
    assert told.code == 2
    assert ".relevo does not exist" in told.err
    assert list(tmp_path.iterdir()) == []


# status


def test_status_shows_queues_and_workers(server: Server, app: Relevo) -> None:
    charge = add_task(app)
    charge.enqueue_many([((n,), {}) for n in range(3)])
    charge.using(delay="1h").enqueue(9)
    app.queue().take(1)
    live_worker(app, "default")
    told = relevo("status", "--name", app.name, url=server.url)
    assert (told.code, told.err) == (0, "")
    words = as_words(told.out)
    assert next(line for line in words if line[:1] == ["default"])[:7] == ["default", "2", "1", "0", "1", "0", "0"]
    assert next(line for line in words if line[:1] == ["w-1"])[:7] == [
        "w-1",
        "box",
        "4711",
        "default",
        "2",
        "1,234",
        "0",
    ]
    assert f"127.0.0.1:{server.port}" in told.out
    assert f"app {app.name} in test" in told.out


def test_status_as_json_has_the_documented_fields(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(1)
    live_worker(app, "default")
    told = relevo("status", "--name", app.name, "--json", "--next", "3", url=server.url)
    report = told.json
    assert told.code == 0
    assert set(report) == {
        "app", "env", "level", "warnings", "server", "queues", "workers", "silent_workers", "pauses", "next",
    }  # fmt: skip
    assert set(report["server"]) == {
        "address", "engine", "version", "used_memory", "maxmemory", "clients", "uptime_s",
    }  # fmt: skip
    assert (report["level"], report["warnings"]) == ("ok", [])
    (queue,) = report["queues"]
    assert {name: queue[name] for name in ("name", "ready", "scheduled", "running", "done", "dead", "paused")} == {
        "name": "default", "ready": 1, "scheduled": 0, "running": 0, "done": 0, "dead": 0, "paused": False,
    }  # fmt: skip
    assert {"idle_workers", "next_due_ms", "totals"} < set(queue)
    assert [worker["id"] for worker in report["workers"]] == ["w-1"]
    assert [(job["task"], job["queue"]) for job in report["next"]] == [("shop.charge", "default")]


def test_jobs_without_a_worker_are_a_warning(server: Server, app: Relevo) -> None:
    """No worker."""
    add_task(app).enqueue(1)
    live_worker(app, "mails")  # lives, but serves another queue
    told = relevo("status", "--name", app.name, "--json", url=server.url)
    assert (told.code, told.json["level"]) == (1, "warning")
    assert told.json["warnings"] == ["queue 'default': 1 job ready and no worker serves it"]
    assert "warning: queue 'default'" in relevo("status", "--name", app.name, url=server.url).out


def test_jobs_of_a_silent_worker_that_nobody_takes_back_are_a_warning(server: Server, app: Relevo) -> None:
    """Stuck worker."""
    add_task(app).enqueue(1)
    app.queue().take(1, lease=0.001)
    told = relevo("status", "--name", app.name, "--json", url=server.url)
    assert told.code == 1
    assert "fell silent" in told.json["warnings"][0]


def test_a_job_somebody_holds_without_a_worker_is_fine(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(1)
    app.queue().take(1, lease="1m")
    assert relevo("status", "--name", app.name, url=server.url).code == 0


def test_a_paused_queue_is_a_warning(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(1)
    live_worker(app, "default")
    app.queue().pause()
    told = relevo("status", "--name", app.name, "--json", url=server.url)
    assert (told.code, told.json["queues"][0]["paused"]) == (1, True)
    assert "paused" in told.json["warnings"][0]
    app.queue().resume()


def test_dead_letters_are_shown_and_alarm_nobody(server: Server, app: Relevo) -> None:
    bury(app, "no stock")
    told = relevo("status", "--name", app.name, "--json", url=server.url)
    assert (told.code, told.json["queues"][0]["dead"]) == (0, 1)


def test_a_misspelt_app_is_not_good_news(server: Server, app: Relevo) -> None:
    """Never 0 where nothing was found out."""
    told = relevo("status", "--name", app.name + "x", url=server.url)
    assert told.code == 1
    assert "nothing is known of app" in told.out


@pytest.mark.parametrize(
    "words", [("dead", "list"), ("dead", "groups"), ("dead", "runs"), ("limits",), ("schedules", "list"), ("workflow",)]
)
def test_an_empty_list_of_a_misspelt_app_is_not_good_news(server: Server, app: Relevo, words: tuple[str, ...]) -> None:
    add_task(app).enqueue(7)
    for name, code in ((app.name + "x", 1), (app.name, 0)):
        told = relevo(*words, "--name", name, "--json", url=server.url)
        assert (told.code, told.json) == (code, []), name
        assert ("nothing is known of app" in told.err) == (code == 1), name
    app.queue().clear()


def test_a_server_that_is_down_is_critical(tmp_path: Path) -> None:
    """Server down, in text and JSON."""
    url = f"redis://127.0.0.1:{free_port()}/0"
    for words in (
        ["status", "--name", "x"],
        ["job", NO_SUCH_ID, "--name", "x"],
        ["dead", "list", "--name", "x"],
        ["doctor"],
    ):
        told = relevo(*words, "--json", url=url, RELEVO_CALL_TIMEOUT="200ms")
        assert told.code == 2
        assert told.json["error"] == "ServerUnavailable"
        assert told.err.startswith("relevo: cannot connect to 127.0.0.1:")
        assert told.err.count("\n") == 1


def test_next_shows_only_what_is_due_in_the_order_it_will_start(server: Server, app: Relevo) -> None:
    """ "next" only for due tasks."""
    charge = add_task(app)
    charge.using(delay="1h", priority=0).enqueue(1)
    charge.using(name="later").enqueue(2)
    charge.using(name="first", priority=0).enqueue(3)
    charge.using(name="overdue", delay=0.001, priority=50).enqueue(4)
    told = relevo("status", "--name", app.name, "--next", "5", "--json", url=server.url)
    assert [(job["name"], job["priority"]) for job in told.json["next"]] == [
        ("first", 0),
        ("overdue", 50),
        ("later", 100),
    ]
    told = relevo("status", "--name", app.name, "--next", "1", url=server.url)
    assert "first" in told.out
    assert "later" not in told.out


def test_watching_refreshes_a_terminal_until_interrupted(server: Server, app: Relevo) -> None:
    live_worker(app, "default")
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        command("status", "--name", app.name, "--watch", "0.1"),
        env=environment(server.url, COLUMNS="200", TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""

    def refreshed() -> bool:
        nonlocal seen
        seen += os.read(ours, 65536)
        return seen.count(b"\x1b[H\x1b[2J") >= 3

    try:
        eventually(refreshed, timeout=30)
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
        assert b"w-1" in seen
        assert b"Traceback" not in seen
    finally:
        started.kill()
        started.wait()
        os.close(ours)


# job


def test_a_job_is_shown_with_its_story(server: Server, app: Relevo) -> None:
    charge = add_task(app)
    job = charge.using(name="charge-7").enqueue(7, cents=990)
    (lease,) = app.queue().take(1, worker="w1")
    lease.retry(reason="card refused")
    (lease,) = eventually(lambda: app.queue().take(1, worker="w2"))
    lease.bury("no stock")
    told = relevo("job", job.id, "--name", app.name, url=server.url)
    assert (told.code, told.err) == (0, "")
    assert f"job {job.id} is dead: no stock\n" in told.out
    for line in (["task", "shop.charge"], ["arguments", "7,", "cents=990"], ["name", "charge-7"], ["worker", "w2"]):
        assert line in as_words(told.out)
    assert "attempt 1: retried by w1" in told.out
    assert "  card refused" in told.out
    assert "attempt 2: failed by w2" in told.out


WORKING_SHOP = """
from relevo import Relevo
app = Relevo({name!r})

@app.task(retries=0)
def charge(cents: int) -> None:
    print(f"charging {{cents}} cents")
    raise ValueError("no such card")
"""


def test_what_a_real_worker_left_of_a_failed_job_is_shown(server: Server, app: Relevo, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(WORKING_SHOP.format(name=app.name))
    job = add_task(app).enqueue(990)
    assert relevo("worker", "shop:app", "--burst", url=server.url, cwd=tmp_path).code == 0
    told = relevo("job", job.id, "-A", "shop:app", "--logs", url=server.url, cwd=tmp_path)
    assert told.code == 0
    story, logs = told.out.split("\nlogs\n")
    assert "attempt 1: failed" in story
    assert '    raise ValueError("no such card")\n  ValueError: no such card\n' in story
    assert logs.startswith("charging 990 cents\n")


def test_a_job_as_json_has_every_field_of_its_info(server: Server, app: Relevo) -> None:
    job = add_task(app).enqueue(7, cents=990)
    told = relevo("job", job.id, "--name", app.name, "--json", "--logs", url=server.url)
    assert told.code == 0
    assert (told.json["state"], told.json["args"], told.json["kwargs"]) == ("ready", [7], {"cents": 990})
    assert told.json["logs"] == ""
    assert {"id", "task", "queue", "priority", "enqueued_ms", "attempts", "reason", "result"} < set(told.json)


@pytest.mark.parametrize("id", [NO_SUCH_ID, "nonsense", "*", "", "🦊"])
def test_a_job_that_does_not_exist_is_not_found(server: Server, app: Relevo, id: str) -> None:
    told = relevo("job", id, "--name", app.name, "--json", url=server.url)
    assert (told.code, told.json["error"]) == (1, "UnknownJob")
    assert told.err.count("\n") == 1


def test_a_job_is_cancelled_once(server: Server, app: Relevo) -> None:
    job = add_task(app).enqueue(7)
    told = relevo("job", job.id, "--name", app.name, "--cancel", url=server.url)
    assert told.code == 0
    assert told.out.startswith("cancelled\n")
    told = relevo("job", job.id, "--name", app.name, "--cancel", "--json", url=server.url)
    assert (told.code, told.json["cancelled"], told.json["state"]) == (1, False, "cancelled")


def test_a_running_job_is_asked_to_stop(server: Server, app: Relevo) -> None:
    job = add_task(app).enqueue(7)
    app.queue().take(1, lease="1m")
    told = relevo("job", job.id, "--name", app.name, "--cancel", url=server.url)
    assert told.code == 0
    assert told.out.startswith("its worker was asked to stop it\n")


def test_a_dead_job_is_run_again_and_a_waiting_one_is_not(server: Server, app: Relevo) -> None:
    (id,) = bury(app, "no stock")
    told = relevo("job", id, "--name", app.name, "--retry", "--json", url=server.url)
    assert (told.code, told.json["retried"], told.json["state"]) == (0, True, "ready")
    told = relevo("job", id, "--name", app.name, "--retry", url=server.url)
    assert told.code == 1
    assert told.out.startswith("not run again")


def test_what_a_job_says_cannot_steer_a_terminal(server: Server, app: Relevo) -> None:
    evil = "\x1b[2J\x1b]0;owned\x07 [bold red]x[/] \u202e"
    (id,) = bury(app, evil)
    for words in (["job", id], ["dead", "list"], ["dead", "show", id]):
        told = relevo(*words, "--name", app.name, url=server.url)
        assert told.code == 0
        assert "\\x1b[2J\\x1b]0;owned\\x07 [bold red]x[/] \\u202e" in told.out
        assert not {"\x1b", "\x07", "\u202e"} & set(told.out)


# dead


def test_dead_letters_are_listed_newest_first_and_filtered(server: Server, app: Relevo) -> None:
    first, second = bury(app, "no stock", "TimeoutError")
    (mail,) = bury(app, "no stock", queue="mails")

    def listed(*words: str) -> list[str]:
        told = relevo("dead", "list", "--name", app.name, "--json", *words, url=server.url)
        assert told.code == 0
        return [row["id"] for row in told.json]

    assert listed() == [mail, second, first]
    assert listed("--queue", "mails") == [mail]
    assert listed("--error", "timeout") == [second]
    assert listed("--limit", "1") == [mail]
    told = relevo("dead", "list", "--name", app.name, url=server.url)
    assert told.out.splitlines()[0].split() == ["ID", "QUEUE", "TASK", "ENDED", "REASON", "PERMANENT", "ERROR"]
    assert [line.split()[0] for line in told.out.splitlines()[1:]] == [mail, second, first]


def test_a_misspelt_queue_has_no_dead_letters_and_that_is_said(server: Server, app: Relevo) -> None:
    bury(app, "no stock", queue="mails")
    for words in (["list"], ["discard", "--all", "--yes"]):
        told = relevo("dead", *words, "--queue", "mials", "--name", app.name, url=server.url)
        assert (told.code, told.out) == (2, "")
        assert "did you mean 'mails'?" in told.err


def test_an_empty_list_of_dead_letters_is_fine(server: Server, app: Relevo) -> None:
    add_task(app).enqueue(7)
    app.queue().clear()
    told = relevo("dead", "list", "--name", app.name, url=server.url)
    assert (told.code, told.out) == (0, "no dead letters\n")


def test_one_dead_letter_is_shown_and_nothing_else_is(server: Server, app: Relevo) -> None:
    (id,) = bury(app, "no stock")
    waiting = add_task(app).enqueue(8).id
    told = relevo("dead", "show", id, "--name", app.name, url=server.url)
    assert told.code == 0
    assert "is dead: no stock" in told.out
    told = relevo("dead", "show", waiting, "--name", app.name, url=server.url)
    assert (told.code, told.out) == (1, "")
    assert "is ready, not a dead letter" in told.err


def test_dead_letters_are_retried_by_id_and_what_is_none_is_named(server: Server, app: Relevo) -> None:
    first, second = bury(app, "a", "b")
    told = relevo("dead", "retry", first, first, NO_SUCH_ID, "--name", app.name, "--json", url=server.url)
    assert (told.code, told.json) == (1, {"retried": 1, "left": [NO_SUCH_ID]})
    assert [row.id for row in app.dead.list()] == [second]
    told = relevo("dead", "retry", second, "--name", app.name, url=server.url)
    assert (told.code, told.out) == (0, "retried 1 dead letter\n")
    assert app.queue().stats().ready == 2


def test_all_dead_letters_need_a_yes(server: Server, app: Relevo) -> None:
    bury(app, "a", "b")
    for action in ("retry", "discard"):
        told = relevo("dead", action, "--all", "--name", app.name, url=server.url)
        assert (told.code, told.out) == (2, "")
        assert f"this would {action} 2 dead letters" in told.err
        assert "--yes" in told.err
    assert len(app.dead.list()) == 2


def test_all_dead_letters_that_match_are_discarded_and_counted(server: Server, app: Relevo) -> None:
    kept, _, newest = bury(app, "no stock", "TimeoutError", "TimeoutError")
    words = ["dead", "discard", "--all", "--yes", "--error", "timeout", "--name", app.name]
    told = relevo(*words, "--limit", "1", url=server.url)
    assert (told.code, told.out) == (0, "discarded 1 dead letter\n")
    assert [row.id for row in app.dead.list()] == [newest, kept], "the oldest first"
    assert relevo(*words, "--json", url=server.url).json == {"discarded": 1, "left": []}
    assert [row.id for row in app.dead.list()] == [kept]


@pytest.mark.parametrize(("answer", "left", "code"), [("y\n", 0, 0), ("\n", 1, 1), ("no\n", 1, 1)])
def test_on_a_terminal_the_operator_is_asked(server: Server, app: Relevo, answer: str, left: int, code: int) -> None:
    bury(app, "no stock")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        done = subprocess.run(
            command("dead", "discard", "--all", "--name", app.name),
            env=environment(server.url),
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code
        assert "discard 1 dead letter of 1 queue? [y/N]" in done.stderr
        assert len(app.dead.list()) == left
    finally:
        os.close(ours)
        os.close(theirs)


# Pipes and terminals


def output_on_a_terminal(words: list[str], env: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    started = subprocess.Popen(command(*words), env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # how Linux says that the other side was closed
        pass
    finally:
        os.close(ours)
        started.wait(60)
    return seen


def test_colours_are_for_terminals_only(server: Server, app: Relevo) -> None:
    words = ["doctor"]
    env = environment(server.url, TERM="xterm-256color", COLUMNS="200")
    env.pop("NO_COLOR", None)
    assert b"\x1b[32m" in output_on_a_terminal(words, env)
    assert b"\x1b[32m" not in output_on_a_terminal(words, {**env, "NO_COLOR": "1"})
    forced = relevo(*words, url=server.url, TERM="xterm-256color", FORCE_COLOR="1")
    assert "\x1b" not in forced.out


def test_a_terminal_without_rich_gets_plain_text(server: Server, app: Relevo, tmp_path: Path) -> None:
    (tmp_path / "rich.py").write_text("raise ImportError('not installed')\n")
    env = environment(server.url, TERM="xterm-256color")
    env["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"
    seen = output_on_a_terminal(["doctor"], env)
    assert b"version" in seen
    assert b"\x1b" not in seen


def test_a_terminal_without_utf8_does_not_end_a_command(server: Server, app_factory: AppFactory) -> None:
    app = app_factory()
    add_task(app).using(name="smörgås-🦊").enqueue(1)
    told = relevo("status", "--name", app.name, "--next", "1", url=server.url, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert told.code == 1
    assert "sm\\xf6rg\\xe5s-\\U0001f98a" in told.out


# server


def test_the_embedded_server_is_started_described_and_stopped(tmp_path: Path) -> None:
    try:
        told = relevo("server", "status", cwd=tmp_path)
        assert told.code == 1
        assert told.out.startswith("not running\n")
        assert list(tmp_path.iterdir()) == []

        told = relevo("server", "start", "--idle", "60", "--json", cwd=tmp_path)
        assert (told.code, told.json["started"], told.json["running"]) == (0, True, True)
        again = relevo("server", "start", cwd=tmp_path)
        assert again.code == 0
        assert again.out.startswith("it was running already\n")

        status = relevo("server", "status", "--json", cwd=tmp_path).json
        assert (status["pid"], status["aof"], status["data_dir"]) == (told.json["pid"], True, str(tmp_path / ".relevo"))
        assert relevo("doctor", cwd=tmp_path).code == 0

        told = relevo("server", "stop", cwd=tmp_path)
        assert told.code == 0
        assert told.out.startswith("stopped")
        told = relevo("server", "stop", "--json", cwd=tmp_path)
        assert (told.code, told.json["stopped"]) == (0, False)
    finally:
        embedded.stop(tmp_path / ".relevo")


def test_an_embedded_server_that_no_app_will_use_is_pointed_out(tmp_path: Path) -> None:
    """The other server's password is not in the output."""
    data = tmp_path / "data"
    try:
        told = relevo(
            "server", "start", "--idle", "60", "--data-dir", str(data), url="redis://:s3cret@db:6379/0", cwd=tmp_path
        )
        assert told.code == 0
        assert "redis://:***@db:6379/0" in told.out
        assert "s3cret" not in told.out
    finally:
        embedded.stop(data)
