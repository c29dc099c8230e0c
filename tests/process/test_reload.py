"""`relevo worker --reload`: new code runs without a restart by hand, and a broken app is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo import Relevo, State
from relevo.worker.reload import in_words
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.process.harness import WorkerProcess
from tests.servers import Server
from tests.system.shell import command, environment, relevo

JOBS = """\
from relevo import Relevo

app = Relevo("{name}")
"""
MAILS = """\
import asyncio
from jobs import app


@app.task(name="remind")
async def remind(*, waits: bool = False) -> int:
    while waits and {version} == 1:
        await asyncio.sleep(0.01)
    from later import VALUE
    return {version} * VALUE
"""


class Project:
    """An app in one module, a task in another, and a module that the task imports."""

    def __init__(self, folder: Path, app: Relevo, server: Server) -> None:
        self.folder = folder
        self.app = app
        self.write("jobs.py", JOBS.format(name=app.name))
        self.write("mails.py", MAILS.format(version=1))
        self.write("later.py", "VALUE = 1\n")
        env = environment(server.url, RELEVO_IMPORTS="mails", **{f"RELEVO_{k.upper()}": v for k, v in PATIENT.items()})
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # a file that is changed within a second would be taken for the old one
        order = command("worker", "jobs:app", "--reload")
        self.worker = WorkerProcess(order, env=env, log=folder / "log", dies=False)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def result(self) -> int:
        @self.app.task(name="remind")
        async def remind(*, waits: bool = False) -> int: ...  # type: ignore[empty-body]

        return remind.enqueue().result(timeout=PATIENCE)


@pytest.fixture
def project(tmp_path: Path, app: Relevo, server: Server) -> Iterator[Project]:
    project = Project(tmp_path, app, server)
    try:
        project.worker.wait_log("worker ")
        yield project
    except BaseException:
        print(project.worker.log)
        raise
    finally:
        project.worker.end()


def test_a_changed_module_is_loaded(project: Project) -> None:
    assert project.result() == 1
    project.write("mails.py", MAILS.format(version=2))
    project.worker.wait_log("mails.py changed: the worker starts anew")
    eventually(lambda: len(project.worker.ids) == 2, what="the new process")
    assert project.result() == 2
    assert project.worker.stop() == 0


def test_what_a_job_imported_counts_and_other_files_do_not(project: Project) -> None:
    assert project.result() == 1
    project.write("notes.txt", "no code\n")
    project.write("later.py", "VALUE = 5\n")
    project.worker.wait_log("later.py changed: the worker starts anew")
    assert "notes.txt" not in project.worker.log
    assert project.result() == 5


def test_a_running_job_is_handed_back_and_runs_again_with_the_new_code(project: Project) -> None:
    @project.app.task(name="remind")
    async def remind(*, waits: bool = False) -> int: ...  # type: ignore[empty-body]

    job = remind.enqueue(waits=True)
    eventually(lambda: job.state() is State.RUNNING, what="the job runs")
    project.write("mails.py", MAILS.format(version=2))
    assert job.result(timeout=PATIENCE) == 2
    assert job.info().attempts == (), "it has spent no attempt"


def test_a_broken_module_is_shown_and_waited_for(project: Project) -> None:
    project.write("mails.py", "def broken(\n")
    project.worker.wait_log("waiting for a change of its files")
    assert "SyntaxError: '(' was never closed" in project.worker.log
    project.write("mails.py", MAILS.format(version=3))
    assert project.result() == 3
    assert project.worker.is_running
    assert project.worker.stop() == 0


def test_a_worker_that_waits_for_a_change_can_be_stopped(project: Project) -> None:
    project.write("jobs.py", "1 / 0\n")
    project.worker.wait_log("waiting for a change of its files")
    assert project.worker.stop() == 0
    assert "died after" not in project.worker.log


def test_without_watchfiles_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['watchfiles'] = None; from relevo.cli.main import main; sys.exit(main())"
    words = [sys.executable, "-c", code, "worker", "shop:app", "--reload"]
    ran = subprocess.run(words, env=environment(None), cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert (ran.returncode, ran.stderr) == (2, 'relevo: --reload needs watchfiles: pip install "relevo[reload]"\n')


def test_a_burst_is_not_reloaded(tmp_path: Path) -> None:
    ran = relevo("worker", "shop:app", "--reload", "--burst", cwd=tmp_path)
    assert ran.code == 2
    assert "leave out --burst" in ran.err


def test_changes_are_named_as_a_person_knows_them(tmp_path: Path) -> None:
    here = Path.cwd()
    paths = [here / "a.py", here / "b" / "c.py", Path(os.sep) / "other" / "d.py", here / "e.py"]
    assert in_words(paths) == f"a.py, b{os.sep}c.py, {paths[2]} and 1 more changed"
