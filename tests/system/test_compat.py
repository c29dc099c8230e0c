"""The task queue of IFDB on relevo: its calls run as they are written, and do what they promised."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import relevo
from relevo import Backoff, Relevo, compat
from relevo.compat import Enqueue, EnqueueOrGet, QueuedTask, current, failure_handlers
from relevo.engine.settle import Failure
from relevo.errors import ConfigurationError, OptionError, PayloadError, TargetError, UnknownJob
from relevo.testing import TestKit, bind
from tests.eventually import PATIENCE, eventually
from tests.servers import Server

SOURCES = Path(relevo.__file__).parents[1]

# The project, with core/taskqueue.py reduced to two lines.
PROJECT = {
    "core/taskqueue.py": """
from relevo.compat import Enqueue, EnqueueOrGet, Worker

__all__ = ["Enqueue", "EnqueueOrGet", "Worker"]
""",
    "games/__init__.py": "",
    "games/tasks/__init__.py": "",
    "games/tasks/uploads.py": """
from strange import Anything  # noqa: F401  # something a forged job would like to find here

calls = []
broken = []
moods = {"handler": "well"}


def CloneFile(id):
    calls.append(("CloneFile", id))
    print(f"downloading {id}")
    if id == 404:
        raise ConnectionError(f"no file {id}")


def MarkBroken(task, context):
    if moods["handler"] == "ill":
        moods["handler"] = "well"
        raise RuntimeError("the database is away")
    broken.append((task.status, task, context))


def MarkWithTask(task):
    broken.append(task.id)


def MarkWithout():
    broken.append("called")


async def MarkAsync(task, context):
    broken.append(context["argv"])


def RecodeGame(game_url_id):
    calls.append(("RecodeGame", game_url_id))


asked = []


def FailOnce(id):
    print(f"asked {id}")
    asked.append(id)
    if len(asked) == 1:
        raise ConnectionError("not yet")


def AskForItself():
    from core.taskqueue import EnqueueOrGet

    calls.append(EnqueueOrGet(AskForItself, name="itself").id)


def Rename(id, name, priority=1, *, func="f", cron=None):
    calls.append(("Rename", id, name, priority, func, cron))
""",
    "games/tasks/game_importer.py": """
from games.tasks.uploads import calls


def ImportGames(append_urls=False):
    calls.append(("ImportGames", append_urls))
""",
    "strange.py": """
called = []


def Anything(*argv):
    called.append(argv)
""",
    "worker.py": """
import logging, sys
from core.taskqueue import Worker

logging.basicConfig(level="INFO", stream=sys.stdout)
Worker()
print("stopped", flush=True)
""",
    "games/tasks/slow.py": """
import time
from pathlib import Path


def Slow(folder):
    Path(folder, "began").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    Path(folder, "ended").touch()


def Alone(file):
    with open(file, "a") as notes:
        print("in", file=notes, flush=True)
        time.sleep(0.01)
        print("out", file=notes, flush=True)
""",
}

USAGE = """
from core.taskqueue import Enqueue
from games.tasks.uploads import CloneFile, MarkBroken

# Simple task
Enqueue(CloneFile, url_id)

# With failure handler
Enqueue(CloneFile, url_id, 
        name=f"CloneUrl({url_id})", 
        onfail=MarkBroken)

# High priority with custom retries
Enqueue(ImportGames, 
        priority=50, 
        retries=5, 
        name="ImportGames")

# Only enqueue if not already pending
task = EnqueueOrGet(RecodeGame, game_url_id,
                   name=f"RecodeGame({game_url_id})")
"""  # noqa: W291  # verbatim


class Project(NamedTuple):
    """The modules of the project, with what they wrote down."""

    uploads: Any
    importer: Any
    strange: Any
    folder: Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ifdb")
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.syspath_prepend(folder)
    uploads, importer, strange = map(import_module, ("games.tasks.uploads", "games.tasks.game_importer", "strange"))
    yield Project(uploads, importer, strange, folder)
    for name in [name for name in sys.modules if name.split(".")[0] in ("games", "core", "strange")]:
        del sys.modules[name]


@pytest.fixture
def kit(project: Project, server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestKit]:
    """The functions of compat on an app of the test's own, whose worker may run the project's tasks."""
    monkeypatch.setattr(current, "_current", current._Current())
    app = compat.configure(Relevo("ifdb", url=server.url, allow=["games.tasks"]))
    with bind(app, url=server.url) as kit:
        yield kit


def drain_all(kit: TestKit, rounds: int = 8) -> None:
    """Run everything, retries included."""
    for _ in range(rounds):
        kit.drain()
        kit.clock.move("1h")


def test_the_usage_patterns_of_the_original_run_verbatim(project: Project, kit: TestKit) -> None:
    given: dict[str, Any] = {
        "url_id": 7,
        "game_url_id": 9,
        "ImportGames": project.importer.ImportGames,
        "EnqueueOrGet": EnqueueOrGet,
        "RecodeGame": project.uploads.RecodeGame,
    }
    exec(USAGE, given)
    task = given["task"]
    assert isinstance(task, QueuedTask)
    assert (task.name, task.status, len(task.id)) == ("RecodeGame(9)", "ready", 20)
    kit.assert_enqueued(project.importer.ImportGames, priority=50, name="ImportGames")
    assert kit.drain().done == 4
    calls = project.uploads.calls
    assert calls[0] == ("ImportGames", False), "the most urgent first"
    assert sorted(calls[1:]) == [("CloneFile", 7), ("CloneFile", 7), ("RecodeGame", 9)]
    assert task.success


def test_task_has_its_state_and_its_log(project: Project, kit: TestKit) -> None:
    task = Enqueue(project.uploads.CloneFile, 7)
    failing = Enqueue(project.uploads.CloneFile, 404, retries=0)
    assert task.pending
    assert not task.success
    assert task.name == "games.tasks.uploads.CloneFile"
    assert str(task) == task.id
    kit.drain()
    assert (task.pending, task.success, task.fail, task.status) == (False, True, False, "done")
    assert (failing.pending, failing.success, failing.fail, failing.status) == (False, False, True, "dead")
    assert task.log == "downloading 7\n"
    assert "downloading 404" in failing.log
    assert "ConnectionError: no file 404" in failing.log


def test_what_enqueue_returns_is_the_id_of_the_task(project: Project, kit: TestKit) -> None:
    task: QueuedTask = Enqueue(project.uploads.CloneFile, 7, name="CloneUrl(7)")
    assert issubclass(QueuedTask, str)
    assert task == task.id == str(task) == EnqueueOrGet(project.uploads.CloneFile, 7, name="CloneUrl(7)")
    assert (json.loads(json.dumps({"task": task})), f"{task}", {task.id: 1}[task]) == ({"task": task.id}, task.id, 1)
    for again in (pickle.loads(pickle.dumps(task)), copy.deepcopy(task)):
        assert (type(again), again, again.name, again.status) == (QueuedTask, task, "CloneUrl(7)", "ready")
    after = Enqueue(project.uploads.CloneFile, task, dependency=again)
    assert after.job.info().args == [task.id], "as an argument, too, it is its id"
    cron = Enqueue(project.uploads.CloneFile, 7, name="Clone", cron="@daily")
    assert (json.dumps(cron), pickle.loads(pickle.dumps(cron)).status, cron.schedule.name) == (
        '"Clone"', "scheduled", "Clone",
    )  # fmt: skip


def test_done_task_keeps_what_the_admin_shows(project: Project, kit: TestKit) -> None:
    """Its name, parameters, priority, history and log."""
    uploads = project.uploads
    task = Enqueue(uploads.FailOnce, 7, name="FailOnce(7)", priority=5)
    drain_all(kit)
    info = task.job.info()
    assert (info.state, info.name, info.args, info.priority) == ("done", "FailOnce(7)", [7], 5)
    assert [one.error for one in info.attempts] == ["ConnectionError"]
    assert "asked 7" in task.log


def test_task_may_run_for_hours(project: Project, kit: TestKit) -> None:
    task = Enqueue(project.uploads.CloneFile, 7)
    [lease] = kit.app.queue().take(1)
    week = 7 * 86_400
    assert (lease._envelope.timeout, lease._envelope.result_ttl) == (6 * 3600, week), "IFDB cleans up after seven days"
    compat.configure(kit.app, timeout=None, keep="1h")
    Enqueue(project.uploads.CloneFile, 8)
    [other] = kit.app.queue().take(1)
    assert (other._envelope.timeout, other._envelope.result_ttl) == (0, 3600)
    assert lease.done() and other.done()
    assert task.success


def test_loop_of_ones_own_takes_and_executes_tasks(project: Project, kit: TestKit) -> None:
    uploads = project.uploads
    later = Enqueue(uploads.CloneFile, 1, scheduled_time=datetime.now(UTC) + timedelta(hours=2))
    broken = Enqueue(uploads.CloneFile, 404, name="CloneUrl(404)", priority=7, retries=1, onfail=uploads.MarkBroken)
    good = Enqueue(uploads.CloneFile, 2)
    child = Enqueue(uploads.RecodeGame, 2, dependency=good)
    task = compat.get_next_task()
    assert task is not None
    assert {name: task[name] for name in ("id", "name", "module", "function", "args", "kwargs", "priority")} == {
        "id": broken, "name": "CloneUrl(404)", "module": "games.tasks.uploads", "function": "CloneFile",
        "args": [404], "kwargs": {}, "priority": 7,
    }  # fmt: skip
    assert (task["retries_left"], task["onfail_function"], task["scheduled_time"]) == (1, "MarkBroken", None)
    json.dumps(task)
    assert compat.execute_task(task) is False
    assert (broken.status, uploads.broken) == ("scheduled", []), "it is tried again"
    done: list[tuple[str, bool]] = []
    while (task := compat.get_next_task()) is not None:
        done.append((task["id"], compat.task_queue.execute_task(task)))
    assert done == [(good, True), (child, True)]
    assert (good.success, good.log) == (True, "downloading 2\n")
    kit.clock.move("1h")
    while (task := compat.task_queue.get_next_task()) is not None:
        done.append((task["name"], compat.execute_task(task)))
    assert done[2:] == [("CloneUrl(404)", False), ("relevo.compat.on_failure", True)]
    assert [(one[0], one[1]) for one in uploads.broken] == [("dead", broken)]
    assert "ConnectionError: no file 404" in broken.log
    assert later.pending


def test_loop_of_ones_own_queues_cron_tasks(project: Project, kit: TestKit) -> None:
    compat.task_queue.enqueue(project.uploads.CloneFile, 8, name="FetchFeeds", cron="*/30 * * * *", priority=75)
    assert compat.get_next_task() is None
    kit.clock.move("30m")
    task = compat.get_next_task()
    assert task is not None
    assert (task["priority"], compat.execute_task(task)) == (75, True)
    assert project.uploads.calls == [("CloneFile", 8)]


def test_task_that_lost_its_lease_does_not_count(project: Project, kit: TestKit) -> None:
    """And one that may not run here is given up."""
    task = Enqueue(project.uploads.CloneFile, 1)
    taken = compat.get_next_task()
    kit.clock.move("1h")
    kit.drain()
    assert taken is not None and task.success
    assert compat.execute_task(taken) is False
    monkey = kit.app.engine.function(project.strange.Anything, trusted=True).enqueue()
    taken = compat.get_next_task()
    assert taken is not None
    assert compat.execute_task(taken) is False
    assert (monkey.info().state, project.strange.called) == ("dead", [])


def test_onfail_gets_the_task_and_the_context_after_the_last_retry(project: Project, kit: TestKit) -> None:
    """Also if the handler fails at first."""
    project.uploads.moods["handler"] = "ill"
    task = Enqueue(project.uploads.CloneFile, 404, name="CloneUrl(404)", onfail=project.uploads.MarkBroken)
    kit.drain()
    assert project.uploads.moods["handler"] == "ill", "not called after the first failure"
    drain_all(kit)
    assert project.uploads.calls.count(("CloneFile", 404)) == 4, "once, and three retries"
    [(status, failed, context)] = project.uploads.broken
    assert status == "dead", "the end was durable before the handler ran"
    assert (failed.id, failed.name) == (task.id, "CloneUrl(404)")
    traceback = context.pop("traceback")
    assert traceback.startswith("Traceback") and traceback.rstrip().endswith("ConnectionError: no file 404")
    assert context == {
        "id": task.id, "name": "CloneUrl(404)", "module": "games.tasks.uploads", "function": "CloneFile",
        "argv": [404], "kwarg": {}, "args": [404], "kwargs": {}, "reason": "retries_exhausted",
        "error": "no file 404", "error_type": "ConnectionError", "message": "no file 404", "attempts": 4,
    }  # fmt: skip


def test_handlers_that_take_less_are_called_with_less(project: Project, kit: TestKit) -> None:
    uploads = project.uploads
    for handler in (uploads.MarkWithTask, uploads.MarkWithout, uploads.MarkAsync):
        task = Enqueue(uploads.CloneFile, 404, retries=0, onfail=handler)
        kit.drain()
        seen = {"MarkWithTask": task.id, "MarkWithout": "called", "MarkAsync": [404]}
        assert uploads.broken.pop() == seen[handler.__name__] and uploads.broken == []


def test_a_forged_handler_is_not_called(project: Project, kit: TestKit) -> None:
    """Neither from a module that is not allowed, nor what an allowed one imported from there."""
    for path in ("strange:Anything", "games.tasks.uploads:Anything", "os:system", ""):
        forged = Failure("0" * 20, "x", "default", "reason", tags=(f"onfail:{path}",))
        job = kit.app.tasks[failure_handlers.HANDLER].enqueue(forged)
        assert kit.drain().dead == (job.id,), path
        assert job.info().attempts[-1].error == "relevo.errors.TargetError"
    assert project.strange.called == []


def test_scheduled_time_is_waited_for(project: Project, kit: TestKit) -> None:
    task = Enqueue(project.uploads.RecodeGame, 1, scheduled_time=datetime.now(UTC) + timedelta(hours=2))
    assert kit.drain().done == 0
    assert task.status == "scheduled"
    kit.clock.move("2h")
    assert kit.drain().done == 1
    with pytest.raises(OptionError, match="no time zone"):
        Enqueue(project.uploads.RecodeGame, 1, scheduled_time=datetime(2030, 1, 1))
    not_given: dict[str, Any] = {"scheduled_time": None, "cron": None, "dependency": None}
    assert Enqueue(project.uploads.RecodeGame, 1, **not_given).status == "ready"


def test_retries_are_executions_after_the_first(project: Project, kit: TestKit) -> None:
    Enqueue(project.uploads.CloneFile, 404, retries=5)
    drain_all(kit)
    assert len(project.uploads.calls) == 6


def test_pauses_between_retries_double_and_can_be_chosen(project: Project, kit: TestKit) -> None:
    def pauses() -> Iterator[float]:
        task = Enqueue(project.uploads.CloneFile, 404)
        for _ in range(3):
            kit.drain()
            info = task.job.info()
            assert info.due_ms is not None
            yield (info.due_ms - info.attempts[-1].ended_ms) / 1000
            kit.clock.move("80d")

    assert [*pauses()] == pytest.approx([2, 4, 8], rel=0.12, abs=0.1)
    compat.configure(kit.app, backoff=Backoff.exponential("2000m", cap="60d", jitter=0))
    assert [*pauses()] == pytest.approx([120_000, 240_000, 480_000], rel=0.001)


def test_enqueue_or_get_gives_the_living_task_of_that_name(project: Project, kit: TestKit) -> None:
    """Waiting, running, delayed, retrying; a new one only after the end"""
    uploads = project.uploads
    running = EnqueueOrGet(uploads.AskForItself, name="itself")
    assert kit.drain().done == 1
    assert uploads.calls == [running.id]
    first = EnqueueOrGet(uploads.CloneFile, 404, name="one", retries=1)
    assert EnqueueOrGet(uploads.CloneFile, 404, name="one").id == first.id
    kit.drain()
    assert EnqueueOrGet(uploads.CloneFile, 404, name="one").id == first.id, "it waits for its retry"
    kit.clock.move("1h")
    kit.drain()
    again = EnqueueOrGet(uploads.CloneFile, 7, name="one", scheduled_time=datetime.now(UTC) + timedelta(days=1))
    assert again.id != first.id
    assert EnqueueOrGet(uploads.CloneFile, 7, name="one").id == again.id, "it is delayed"
    assert EnqueueOrGet(uploads.CloneFile, 7).id != EnqueueOrGet(uploads.CloneFile, 7).id, "without names there are two"
    with ThreadPoolExecutor(32) as pool:
        ids = set(pool.map(lambda _: EnqueueOrGet(uploads.RecodeGame, 9, name="RecodeGame(9)").id, range(64)))
    assert len(ids) == 1, "also of many calls at once"


def test_enqueue_adds_a_task_also_when_one_has_its_name(project: Project, kit: TestKit) -> None:
    """Only EnqueueOrGet looks whether the name is taken."""
    recode = project.uploads.RecodeGame
    first, second = (Enqueue(recode, 1, name="same") for _ in range(2))
    after = Enqueue(recode, 2, name="same", dependency=second)
    later = Enqueue(recode, 3, name="same", scheduled_time=datetime.now(UTC) + timedelta(hours=1))
    assert len({first, second, after, later}) == 4
    assert [row.name for row in kit.enqueued()] == ["same"] * 4
    assert EnqueueOrGet(recode, 1, name="same") == first
    assert kit.drain().done == 3
    assert later.pending
    assert EnqueueOrGet(recode, 1, name="same") not in (first, second, after, later), "the name was that of the first"


@pytest.mark.parametrize("enqueue", [Enqueue, EnqueueOrGet])
def test_options_and_a_tasks_own_keywords_of_the_same_name_are_kept_apart(
    project: Project, kit: TestKit, enqueue: Any
) -> None:
    Rename = project.uploads.Rename
    task = enqueue.using(name="job-name", priority=3)(Rename, 5, name="own", priority=77, func="x", cron="y")
    kit.assert_enqueued(Rename, id=5)
    [row] = kit.enqueued()
    assert (row.name, row.priority, task.name) == ("job-name", 3, "job-name")
    kit.drain()
    assert project.uploads.calls == [("Rename", 5, "own", 77, "x", "y")]
    with pytest.raises(ConfigurationError, match=r"name, priority: an option, and a parameter of Rename .*using\("):
        enqueue(Rename, 5, name="which?", priority=1)
    with pytest.raises(OptionError, match="unknown option 'nam', did you mean 'name'"):
        enqueue.using(nam="x")


def test_a_task_runs_after_the_one_it_depends_on_or_not_at_all(project: Project, kit: TestKit) -> None:
    clone = project.uploads.CloneFile
    first = Enqueue(clone, 1, priority=900)
    second = Enqueue(clone, 2, priority=1, dependency=first)
    third = EnqueueOrGet(clone, 3, name="third", priority=0, dependency=second.id)
    assert (second.status, third.status, third.pending) == ("waiting", "waiting", True)
    kit.drain()
    assert [id for _, id in project.uploads.calls] == [1, 2, 3]
    broken = Enqueue(clone, 404, retries=0)
    child = Enqueue(clone, 5, dependency=broken)
    kit.drain()
    assert (broken.status, child.status) == ("dead", "cancelled")
    kit.app.dead.discard([broken.id])
    for missing in (broken, "1" * 20, "ImportGames"):
        with pytest.raises(UnknownJob):
            Enqueue(clone, 7, dependency=missing)
    assert kit.enqueued() == [] and ("CloneFile", 5) not in project.uploads.calls


def test_a_cron_task_is_one_schedule_however_often_it_is_set_up(project: Project, kit: TestKit) -> None:
    """It keeps its priority, runs first at its next tick, and goes on after a failure."""
    for _ in range(100):
        feeds = Enqueue(project.uploads.CloneFile, 404, name="FetchFeeds", cron="*/30 * * * *", priority=75, retries=0)
    EnqueueOrGet(project.uploads.CloneFile, 8, name="Import games", cron="0 */6 * * *", priority=50)
    assert (feeds.id, feeds.status, feeds.pending, str(feeds)) == ("FetchFeeds", "scheduled", True, "FetchFeeds")
    assert [one.name for one in kit.app.schedules.list()] == ["FetchFeeds", "Import-games"]
    kit.drain()
    assert project.uploads.calls == []
    for n in (1, 2):
        kit.clock.move("30m")
        kit.drain()
        assert project.uploads.calls.count(("CloneFile", 404)) == n
    assert kit.app.schedules.get("FetchFeeds").info().priority == 75
    kit.clock.move("6h")
    kit.drain()
    assert project.uploads.calls.count(("CloneFile", 8)) in (1, 2), "the first hour may have had one, too"
    with pytest.raises(OptionError, match="minute"):
        Enqueue(project.uploads.CloneFile, 1, cron="61 * * * *")
    with pytest.raises(OptionError, match="never ends"):
        Enqueue(project.uploads.CloneFile, 1, dependency=feeds)
    with pytest.raises(OptionError, match="not of a schedule"):
        Enqueue(project.uploads.CloneFile, 1, cron="@daily", scheduled_time=datetime.now(UTC))


def test_function_that_no_worker_could_run_is_refused_when_enqueued(project: Project, kit: TestKit) -> None:
    uploads = project.uploads

    def inner() -> None: ...

    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (TargetError, lambda: Enqueue(lambda: None)),
        (TargetError, lambda: Enqueue(project.strange.Anything)),
        (TargetError, lambda: Enqueue(os.system, "ls")),
        (TargetError, lambda: Enqueue(uploads.CloneFile, 1, onfail=inner)),
        (TargetError, lambda: Enqueue(uploads.CloneFile, 1, onfail=project.strange.Anything)),
        (PayloadError, lambda: Enqueue(uploads.CloneFile, object())),
        (PayloadError, lambda: Enqueue(uploads.CloneFile)),
        (OptionError, lambda: Enqueue(uploads.CloneFile, 1, name="x" * 256)),
    ]
    for error, call in refused:
        with pytest.raises(error):
            call()
    assert kit.enqueued() == []
    assert Enqueue(uploads.CloneFile, 1, name="x" * 255).status == "ready"


def test_a_process_that_only_enqueues_needs_no_list_of_modules(
    project: Project, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's list decides what runs."""
    monkeypatch.setattr(current, "_current", current._Current())
    app = compat.configure(Relevo("ifdb", url=server.url))
    with pytest.raises(ConfigurationError, match="found also url"):
        compat.configure(app, url="redis://x")
    with bind(app, url=server.url) as kit:
        refused = Enqueue(project.uploads.RecodeGame, 1)
        kit.drain()
        assert refused.status == "dead"
        assert refused.job.info().reason == "forbidden_target"
        with pytest.raises(ConfigurationError, match=r'allow\("games.tasks"\)'):
            compat.Worker()
        compat.allow("games.tasks")
        Enqueue(project.uploads.RecodeGame, 2)
        kit.drain()
    assert project.uploads.calls == [("RecodeGame", 2)]


def test_tasks_of_an_app_can_be_enqueued_too(project: Project, kit: TestKit) -> None:
    @kit.app.task(name="greet", backoff="5s")
    def greet(who: str) -> None:
        project.uploads.calls.append(who)

    try:
        Enqueue(greet, "ana")
        Enqueue(greet.func, "bob", name="b")
        assert kit.drain().done == 2
        assert sorted(project.uploads.calls) == ["ana", "bob"]
    finally:
        del kit.app.tasks["greet"]


class Process(NamedTuple):
    """`Worker()` in a process of its own, and a way to enqueue there."""

    worker: subprocess.Popen[str]
    environ: dict[str, str]

    def enqueue(self, code: str, *argv: object) -> None:
        words = [sys.executable, "-c", f"import sys\nfrom core.taskqueue import Enqueue\n{code}", *map(str, argv)]
        subprocess.run(words, env=self.environ, check=True, timeout=PATIENCE)


@pytest.fixture
def process(project: Project, server: Server, tmp_path: Path) -> Iterator[Process]:
    """Settings come from the environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
    environ |= {
        "PYTHONPATH": os.pathsep.join([str(SOURCES), str(project.folder)]),
        "RELEVO_URL": server.url,
        "RELEVO_PREFIX": f"compat-{tmp_path.name}",
        "RELEVO_ALLOW": "games.tasks",
    }
    run = [sys.executable, "worker.py"]
    worker = subprocess.Popen(run, cwd=project.folder, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        yield Process(worker, environ)
    finally:
        worker.kill()
        worker.communicate()
        for key in server.command("KEYS", f"*compat-{tmp_path.name}*"):
            server.command("DEL", key)


def test_the_worker_runs_tasks_in_its_process_and_stops_gracefully(process: Process, tmp_path: Path) -> None:
    """SIGUSR1 is harmless, SIGTERM lets the task end."""
    process.enqueue("from games.tasks.slow import Slow; Enqueue(Slow, sys.argv[1])", tmp_path)
    worker = process.worker
    eventually((tmp_path / "began").exists)
    worker.send_signal(signal.SIGUSR1)
    worker.send_signal(signal.SIGTERM)
    assert worker.stdout
    stopping = next(line for line in worker.stdout if "stop" in line)
    assert "stopped" not in stopping
    (tmp_path / "go").touch()
    output, _ = worker.communicate(timeout=PATIENCE)
    assert worker.returncode == 0
    assert output.endswith("stopped\n")
    assert (tmp_path / "ended").exists()


def test_the_worker_runs_one_task_at_a_time_and_logs_each(process: Process, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    process.enqueue(
        "from games.tasks.slow import Alone\n"
        "for n in range(20): Enqueue(Alone, sys.argv[1], name=f'Alone({n})', priority=50)",
        file,
    )
    eventually(lambda: file.exists() and file.read_text().count("out") == 20)
    process.worker.send_signal(signal.SIGTERM)
    output, _ = process.worker.communicate(timeout=PATIENCE)
    assert file.read_text() == "in\nout\n" * 20
    lines = [line for line in output.splitlines() if " is done in " in line]
    assert len(lines) == 20
    assert "games.tasks.slow:Alone " in lines[0] and "(Alone(0)) is done in 0." in lines[0]
    assert "attempt 1, priority 50, made " in lines[0]
