"""The public names: the list of them is kept, sorted and documented."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import relevo
from relevo import errors
from tests.eventually import PATIENCE
from tests.system.shell import environment

#: What a user imports: adding a name here is a promise.
PROMISED = [
    "Backoff", "Breaker", "Cancel", "Depends", "Entity", "Failure", "Fault", "Job", "JobContext", "JobEvent", "JobInfo",
    "Lease", "Message", "Pool", "Priority", "Progress", "Queue", "Relevo", "Reply", "Retry", "Schedule", "ScheduleInfo",
    "Service", "Snooze", "SoftTimeout", "State", "Task", "UpkeepReport", "Workflow", "WorkflowInfo", "WorkflowProgress",
    "as_completed", "chain", "current_job", "group",
]  # fmt: skip
#: What an app offers, besides the async twins.
OFFERED = [
    "audit", "close", "codec", "conversations", "dead", "dependency_overrides", "engine", "enqueue", "events",
    "function", "health", "job", "lifespan", "middleware", "name", "pause", "pauses", "pool", "pools", "purge", "queue",
    "queues", "resume", "schedule", "schedules", "service", "settings", "sweep", "task", "tasks", "workflow",
]  # fmt: skip
WITH_METHODS = [
    "Relevo", "Task", "Job", "Queue", "Pool", "UpkeepReport", "Lease", "JobContext", "Backoff", "Workflow",
    "Schedule", "Service",
]  # fmt: skip
#: Methods that wait for the server: each has an async twin, named with an `a` in front.
IN_PAIRS: dict[str, list[str]] = {
    "Relevo": [
        "enqueue", "queues", "job", "close", "workflow", "schedule", "sweep", "health",
        "pools", "purge", "pause", "resume", "pauses",
    ],
    "Pool": ["add", "move", "fail", "remove", "update", "get", "items", "counts", "dead", "retry"],
    "Service": ["send", "request", "publish", "report", "catch_up"],
    "Task": ["enqueue", "enqueue_many"],
    "Job": ["result", "state", "info", "logs", "progress", "cancel", "retry"],
    "Queue": ["stats", "pause", "resume", "pauses", "limit", "unlimit", "limits", "clear", "jobs", "take"],
    "Lease": ["done", "retry", "bury", "give_back", "renew"],
    "Workflow": ["result", "state", "progress", "info", "cancel", "retry", "add"],
    "Schedule": ["info", "pause", "resume", "run_now", "edit", "remove", "history"],
}  # fmt: skip


def test_the_list_of_public_names_is_kept() -> None:
    assert sorted(relevo.__all__) == PROMISED
    assert relevo.__all__ == sorted(relevo.__all__)


def test_everything_importable_is_listed() -> None:
    ours = {name: value for name, value in vars(relevo).items() if not name.startswith("_")}
    found = {name for name, value in ours.items() if not is_module(value)} - {"TYPE_CHECKING"}
    assert found <= set(relevo.__all__) == set(relevo._FROM)
    assert {name for name in relevo.__all__ if is_module(getattr(relevo, name))} == set()


def test_the_list_of_what_an_app_offers_is_kept() -> None:
    app = relevo.Relevo("shop")
    names = {name for name in dir(app) if not name.startswith("_")}
    twins = {f"a{name}" for name in IN_PAIRS["Relevo"]}
    assert twins <= names
    assert sorted(names - twins) == OFFERED


PUBLIC = [
    *(getattr(relevo, name) for name in PROMISED if isinstance(getattr(relevo, name), type)),
    *(type(getattr(relevo.Relevo("shop"), name)) for name in ("audit", "conversations", "dead", "schedules")),
]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_no_public_method_returns_a_plan(kind: type) -> None:
    for name in dir(kind):
        value = inspect.getattr_static(kind, name)
        method = value.fget if isinstance(value, property) else value
        if not name.startswith("_") and inspect.isfunction(method):
            returns = str(method.__annotations__.get("return"))
            assert not returns.startswith(("Generator", "Steps", "Plan", "Call[")), name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'relevo' has no attribute 'Relewo'"):
        getattr(relevo, "Relewo")


def test_submodules_and_names_are_loaded_on_first_use() -> None:
    text = "import relevo; print(relevo.errors.RelevoError.__name__, relevo.Relevo.__name__, 'Task' in dir(relevo))"
    done = subprocess.run([sys.executable, "-c", text], env=environment(None), capture_output=True, text=True)
    assert done.stdout == "RelevoError Relevo True\n", done.stderr


def is_module(value: object) -> bool:
    return isinstance(value, ModuleType)


def test_every_public_name_is_documented() -> None:
    for name in PROMISED:
        check_docstring(getattr(relevo, name), name)


def check_docstring(value: Any, name: str) -> None:
    text = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__  # its own, not an ancestor's
    assert text, f"{name} has no docstring"
    assert text.strip()[0].isupper() or text.strip()[0] in "`'", f"{name}: {text!r}"
    assert len(text.split()) >= 2, f"{name}: {text!r}"


@pytest.mark.parametrize("name", WITH_METHODS)
def test_every_public_method_is_documented(name: str) -> None:
    kind = getattr(relevo, name)
    for method, value in vars(kind).items():
        if method.startswith("_") or not (callable(value) or isinstance(value, property | classmethod)):
            continue
        check_docstring(value.fget if isinstance(value, property) else inspect.unwrap(getattr(kind, method)), method)


@pytest.mark.parametrize(("name", "methods"), IN_PAIRS.items(), ids=list(IN_PAIRS))
def test_blocking_and_async_methods_have_the_same_parameters(name: str, methods: list[str]) -> None:
    kind = getattr(relevo, name)
    for method in methods:
        check_pair(kind, method)


def check_pair(kind: type, method: str) -> None:
    blocking, asynchronous = getattr(kind, method), getattr(kind, f"a{method}")
    assert not inspect.iscoroutinefunction(blocking), method
    assert inspect.iscoroutinefunction(asynchronous), method
    parameters = [list(inspect.signature(one).parameters.values()) for one in (blocking, asynchronous)]
    assert parameters[0] == parameters[1], method


def test_methods_of_dead_letters_have_async_twins() -> None:
    kind = type(relevo.Relevo("shop").dead)
    for method in "list page show error_groups retry discard restore edit replay resume runs load".split():  # noqa: SIM905
        check_pair(kind, method)


def test_methods_of_conversations_have_async_twins() -> None:
    for method in ("list", "trace", "clean", "counts"):
        check_pair(type(relevo.Relevo("shop").conversations), method)


def all_errors() -> list[type[Exception]]:
    return [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


def test_every_error_belongs_to_one_family_and_is_documented() -> None:
    families = (errors.ConfigurationError, errors.StoreError, errors.JobError, errors.BusError)
    for error in all_errors():
        if issubclass(error, Warning):
            continue
        assert issubclass(error, errors.RelevoError), error
        check_docstring(error, error.__name__)
        assert error is errors.RelevoError or issubclass(error, families), error
        assert error.__name__ in (errors.__doc__ or ""), error


def test_the_version_is_that_of_the_package() -> None:
    assert relevo.__version__.count(".") == 2


def test_types_are_shipped() -> None:
    assert (Path(relevo.__file__).parent / "py.typed").exists()


def test_importing_relevo_loads_no_heavy_module_starts_no_thread_and_writes_nothing(tmp_path: Path) -> None:
    text = (
        "import sys, threading; import relevo; "
        "heavy = {'rich', 'uvloop', 'pytest', 'redis', 'starlette', 'relevo.worker', 'relevo.cli'} & set(sys.modules); "
        "print(sorted(heavy), threading.active_count())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        env=environment(None),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("[] 1\n", "")
    assert list(tmp_path.iterdir()) == []
