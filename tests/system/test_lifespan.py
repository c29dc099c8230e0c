"""The lifespan of an app: entered once per worker process, reachable from tasks, left when the worker stops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo, Task, current_job
from relevo.errors import ConfigurationError, JobFailed, TargetError
from relevo.testing import bind, job_context
from relevo.worker import Worker
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system import lifespan_tasks as tasks
from tests.system.shell import environment, relevo
from tests.working import drain, drained, working


@pytest.fixture
def spanned(app: Relevo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relevo]:
    """The app of the tasks, on the test's server."""
    monkeypatch.setenv("LIFESPAN_FILE", str(tmp_path / "noted"))
    with tasks.app.engine.rebound(url=app.settings.url, env="test"):
        yield tasks.app
        for queue in tasks.app.queues():
            tasks.app.queue(queue).clear()


EVERYWHERE: list[Task[[], bool]] = [tasks.on_loop, tasks.in_thread, tasks.in_process, tasks.loop_in_process]


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_a_task_finds_the_value_of_the_lifespan_in_its_own_process(spanned: Relevo, task: Task[[], bool]) -> None:
    with working(spanned):
        assert task.enqueue().result(timeout=PATIENCE) is True


def test_each_process_enters_it_once_and_leaves_it_when_the_worker_stops(spanned: Relevo) -> None:
    with working(spanned):
        for task in (*EVERYWHERE, *EVERYWHERE):
            assert task.enqueue().result(timeout=PATIENCE) is True
        assert tasks.noted() == ["entered", "entered"], "the worker and one child"
    assert tasks.noted() == ["entered", "entered", "left", "left"]


def test_an_idle_worker_enters_and_leaves_it_too(spanned: Relevo) -> None:
    drained(spanned)
    assert tasks.noted() == ["entered", "left"]


def test_a_worker_whose_lifespan_fails_does_not_start(server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from relevo import Relevo\n"
        "app = Relevo('shop')\n"
        "@app.lifespan\n"
        "async def lifespan(app):\n"
        "    raise OSError('the database does not answer')\n"
        "    yield\n"
    )
    result = relevo("worker", "shop:app", url=server.url, cwd=tmp_path)
    assert result.code == 2
    said = "the worker cannot start: the lifespan of the app failed: OSError('the database does not answer')"
    assert result.err.count(said) == 1
    assert 'shop.py", line 5, in lifespan' in result.err


@pytest.mark.parametrize("named", ["shop.jobs:app", "shop.jobs"])
def test_a_worker_of_a_project_gives_it_to_child_processes_of_other_modules(
    server: Server, tmp_path: Path, named: str
) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(
        "from relevo import Relevo\n"
        f"app = Relevo('p{uuid4().hex}', imports=['shop.mails'])\n"
        "@app.lifespan\n"
        "def lifespan(app):\n"
        "    yield f'pool of {app.name[0]}'\n"
        "    print('closed')\n"
    )
    (tmp_path / "shop" / "mails.py").write_text(
        "from relevo import current_job\n"
        "from shop.jobs import app\n"
        "@app.task(executor='process')\n"
        "def remind():\n"
        "    print('got the', current_job().state)\n"
    )
    (tmp_path / "enqueue.py").write_text("from shop.mails import remind\nremind.enqueue()\n")
    env = environment(server.url)
    subprocess.run([sys.executable, "enqueue.py"], cwd=tmp_path, env=env, check=True, timeout=PATIENCE)
    result = relevo("worker", named, "--burst", url=server.url, cwd=tmp_path)
    assert result.code == 0, result.err
    assert "got the pool of p" in result.out + result.err
    assert (result.out + result.err).count("closed") == 2, "in the worker and in its child"


def test_a_lifespan_that_fails_in_a_child_process_fails_the_attempt_and_says_so(
    spanned: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESPAN_WORKS_IN", str(os.getpid()))
    with working(spanned):
        assert tasks.in_thread.enqueue().result(timeout=PATIENCE) is True
        with pytest.raises(JobFailed, match=r"the lifespan of the app failed: OSError\('the database does not answer'"):
            tasks.in_process.enqueue().result(timeout=PATIENCE)


async def test_an_error_while_it_is_left_is_logged_and_changes_nothing(
    app: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def lifespan() -> AsyncIterator[None]:
        yield
        raise OSError("the connection is gone")

    @app.task
    async def act() -> str:
        return "done"

    job = await act.aenqueue()
    worker = await drain(app)
    assert worker.done == 1
    assert await job.aresult(timeout=PATIENCE) == "done"
    assert "the lifespan of the app failed when the worker stopped" in caplog.text


def _plain(app: Any) -> Iterator[str]:
    yield f"of {app.name}"


def _without_app() -> Iterator[str]:
    yield "of no app"


async def _async(app: Any) -> AsyncIterator[str]:
    yield f"of {app.name}"


class _Manager:
    def __init__(self, app: Any) -> None:
        self._name = app.name

    async def __aenter__(self) -> str:
        return f"of {self._name}"

    async def __aexit__(self, *_: object) -> None: ...


FORMS = [_plain, _without_app, _async, contextmanager(_plain), asynccontextmanager(_async), _Manager]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
async def test_a_lifespan_is_a_context_manager_in_any_form(app: Relevo, form: Any) -> None:
    assert app.lifespan(form) is form

    @app.task
    async def state() -> Any:
        return current_job().state

    job = await state.aenqueue()
    await drain(app)
    assert await job.aresult(timeout=PATIENCE) == ("of no app" if form is _without_app else f"of {app.name}")


def test_what_is_no_context_manager_is_refused(app: Relevo) -> None:
    async def coroutine(app: Any) -> None: ...

    def greedy(app: Any, other: Any) -> Iterator[None]:
        yield

    with pytest.raises(TargetError, match="coroutine is no context manager: it needs a `yield`"):
        app.lifespan(coroutine)
    with pytest.raises(TargetError, match="greedy takes the app, or nothing"):
        app.lifespan(greedy)
    with pytest.raises(TargetError, match="needs a function"):
        app.lifespan(7)  # type: ignore[type-var]
    app.lifespan(lambda: None)
    with pytest.raises(ConfigurationError, match="gives no context manager"):
        asyncio.run(Worker(app).run())
    with pytest.raises(ConfigurationError, match="has a lifespan already"):
        app.lifespan(_plain)


def test_an_app_without_one_has_no_state(app: Relevo) -> None:
    @app.task
    def state() -> bool:
        return current_job().state is None

    job = state.enqueue()
    drained(app)
    assert job.result(timeout=PATIENCE) is True


def test_a_drain_enters_it_once_however_many_workers_it_starts(server: Server) -> None:
    app = Relevo("kit")
    happened: list[str] = []

    @app.lifespan
    def lifespan() -> Iterator[str]:
        happened.append("entered")
        yield "here"
        happened.append("left")

    @app.task
    def state(again: int) -> None:
        happened.append(current_job().state)
        if again:
            state.enqueue(again - 1)

    with bind(app, url=server.url) as kit:
        state.enqueue(1)
        assert kit.drain().done == 2
        assert happened == ["entered", "here", "here", "left"]
        state.enqueue(0)
        state.enqueue(0)
        assert kit.drain(max_jobs=2).done == 2
        assert happened[4:] == ["entered", "here", "here", "left"]


def test_a_direct_call_gets_the_state_that_the_test_gives() -> None:
    with job_context(state="a fake"):
        assert current_job().state == "a fake"
    with job_context():
        assert current_job().state is None
