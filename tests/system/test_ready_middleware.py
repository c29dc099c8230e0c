"""The middleware that comes with relevo, with the libraries it is for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
import structlog

from relevo import Relevo, State, Task
from relevo.errors import ConfigurationError, JobFailed, OptionError, PayloadError
from relevo.middleware import Call, ContextVars, Middleware, Sentry, Structlog
from relevo.testing import job_context
from tests.eventually import PATIENCE, eventually
from tests.system import ready_tasks as tasks
from tests.working import working

EVERYWHERE: list[Task[[str], dict[str, Any]]] = [tasks.on_loop, tasks.in_thread, tasks.in_process]


@pytest.fixture
def ready(app: Relevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relevo]:
    """The app of the tasks, on the test's server; Sentry is off afterwards."""
    monkeypatch.setenv("SENTRY_FILE", str(tmp_path / "sent"))
    with tasks.app.engine.rebound(url=app.settings.url, env="test"):
        yield tasks.app
        for queue in tasks.app.queues():
            tasks.app.queue(queue).clear()
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.mark.parametrize(
    ("kind", "module", "program"), [(Structlog, "structlog", "structlog"), (Sentry, "sentry_sdk", "sentry-sdk")]
)
def test_a_library_that_is_not_installed_is_named(
    kind: Callable[[], Middleware], module: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=f"pip install {program}"):
        kind()


# context variables


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_context_variables_arrive_where_the_job_runs(ready: Relevo, task: Task[[str], dict[str, Any]]) -> None:
    token = tasks.locale.set("es")
    job = task.enqueue("tell")
    tasks.locale.reset(token)
    plain = task.enqueue("tell")
    with working(ready):
        found = job.result(timeout=PATIENCE)
        assert (found["locale"], found["user"]) == ("es", "none")
        assert plain.result(timeout=PATIENCE)["locale"] == "en", "one job leaves nothing to the next"


def test_a_context_variable_that_is_no_text_is_refused(ready: Relevo) -> None:
    token = tasks.user.set(7)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="on_loop: header 'user' must be text, found 7"):
        tasks.on_loop.enqueue("tell")
    tasks.user.reset(token)
    with pytest.raises(OptionError, match="needs the variables"):
        ContextVars()
    with pytest.raises(OptionError, match="needs context variables, found 'locale'"):
        ContextVars("locale")  # type: ignore[arg-type]


# structlog


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_what_is_bound_in_structlog_arrives_with_the_job_itself(
    ready: Relevo, task: Task[[str], dict[str, Any]]
) -> None:
    with structlog.contextvars.bound_contextvars(request_id="r7", tries=2, at=Path("/x")):
        job = task.enqueue("log")
    with working(ready):
        assert job.result(timeout=PATIENCE) == {
            "request_id": "r7", "tries": 2, "at": "/x", "job": job.id, "task": task.target, "attempt": 1,
        }  # fmt: skip
    assert structlog.contextvars.get_contextvars() == {}


def test_names_choose_what_travels() -> None:
    middleware, call = Structlog("user"), Call(target="t", queue="q", args=(), kwargs={}, headers={})
    with structlog.contextvars.bound_contextvars(user="ana", token="secret"):
        next(iter(middleware.enqueue(call)))
    assert call.headers == {"structlog": '{"user": "ana"}'}


@pytest.mark.parametrize("text", ["", "{", "[1]", "7", '{"job": "another"}'])
def test_a_header_that_others_wrote_does_no_harm(text: str) -> None:
    with job_context(id="j1", headers={"structlog": text}) as job:
        call = Call(target="t", queue="q", args=(), kwargs={}, headers=job.headers, job=job)
        steps = iter(Structlog().attempt(call))
        next(steps)
        assert structlog.contextvars.get_contextvars() == {"job": "j1", "task": "t", "attempt": 1}
        next(steps, None)


# Sentry


def sent(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def errors(path: Path) -> list[dict[str, Any]]:
    return [one for one in sent(path) if one.get("type") != "transaction"]


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_sentry_gets_the_error_by_which_a_job_dies_once_with_its_job(
    ready: Relevo, task: Task[[str], dict[str, Any]], tmp_path: Path
) -> None:
    with working(ready):
        job = task.enqueue("fail")
        with pytest.raises(JobFailed):
            job.result(timeout=PATIENCE)
        (event,) = errors(tmp_path / "sent")
    assert event["exception"]["values"][0]["type"] == "ValueError"
    assert event["tags"] == {"relevo.task": task.target, "relevo.queue": "default", "kind": "fail"}
    assert event["contexts"]["relevo"] == {"job": job.id, "attempt": 2, "retries_left": 0}
    assert event["transaction"] == task.target


def test_sentry_gets_a_permanent_error_at_once_and_no_verdicts(ready: Relevo, tmp_path: Path) -> None:
    with working(ready):
        with pytest.raises(JobFailed):
            tasks.permanent.enqueue("fail").result(timeout=PATIENCE)
        retried = tasks.on_loop.enqueue("retry")
        eventually(lambda: retried.state() == State.DEAD)
    (event,) = errors(tmp_path / "sent")
    assert event["contexts"]["relevo"]["retries_left"] == 3


def test_sentry_continues_the_trace_in_which_a_job_was_enqueued(ready: Relevo, tmp_path: Path) -> None:
    tasks.start_sentry()
    with sentry_sdk.start_transaction(name="POST /orders", op="http.server") as transaction:
        job = tasks.in_process.enqueue("tell")
        trace = transaction.trace_id
    with working(ready):
        assert job.result(timeout=PATIENCE)["headers"]["sentry-trace"].startswith(trace)
        eventually(lambda: len(sent(tmp_path / "sent")) == 2)
    made, ran = sent(tmp_path / "sent")
    assert (made["transaction"], ran["transaction"]) == ("POST /orders", "in_process")
    assert ran["contexts"]["trace"]["trace_id"] == made["contexts"]["trace"]["trace_id"] == trace
    (publish,) = made["spans"]
    assert publish["op"] == "queue.publish"
    assert ran["contexts"]["trace"]["parent_span_id"] == publish["span_id"]
