"""Tasks in several modules: the setting `imports`, what a worker says when it starts, and what it does not know."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import uuid4

import pytest

from relevo import Job, Relevo, State
from relevo.engine.push import push_plain
from relevo.errors import ConfigurationError
from relevo.health.status import Status
from relevo.worker import Worker
from relevo.worker.imports import modules_of
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.system.shell import importing_from, relevo
from tests.working import drained, working

APP = 'from relevo import Relevo\n\napp = Relevo("{name}"{more})\n'
MAILS = """\
from {package}.jobs import app


@app.task
def remind(n: int) -> int:
    return n * 2


@app.task(cron="30 2 * * *", tz="Europe/Madrid")
async def digest() -> None: ...
"""


class Project:
    """A package with the app in `jobs.py` and the tasks in `mails.py`, under a name of its own."""

    def __init__(self, root: Path, more: str = "") -> None:
        self.root = root
        self.package = f"pkg{uuid4().hex[:8]}"
        self.write("__init__.py", "")
        self.write("jobs.py", APP.format(name=self.package, more=more))
        self.write("mails.py", MAILS.format(package=self.package))
        self.app = f"{self.package}.jobs:app"

    def write(self, path: str, text: str) -> None:
        file = self.root / self.package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def push(app: Relevo, target: str) -> Job[int]:
    """A job that a program enqueued which knows the task."""
    id = app.engine.new_id()
    app.engine.run(app.engine.list_queue("default"))
    app.engine.run(
        push_plain(app.engine.keys_of("default"), [(id, f'{{"t":"{target}","a":[4]}}'.encode())], 100, 60_000)
    )
    return Job(app.engine, id, "default")


def test_tasks_of_imported_modules_run_and_their_schedules_are_registered(
    project: Project, server: Server, app_factory: AppFactory
) -> None:
    app = app_factory(project.package)
    job = push(app, f"{project.package}.mails.remind")
    ran = relevo(
        "worker", project.app, "--burst", cwd=project.root, url=server.url, RELEVO_IMPORTS=f"{project.package}.mails"
    )
    assert ran.code == 0, ran.err
    assert job.result(timeout=PATIENCE) == 8
    lines = [re.sub(".*?relevo.worker: ", "", line) for line in ran.err.splitlines()[:3]]
    assert lines[0].startswith("worker ")
    assert f": app {project.package} ({project.app}) in test, settings from " in lines[0]
    assert ", 2 tasks, 1 schedule, queues default, 100 at once" in lines[0]
    assert lines[1] == f"tasks: {project.package}.mails.digest, {project.package}.mails.remind"
    assert lines[2] == f"schedules: {project.package}.mails.digest (at 02:30 every day, Europe/Madrid time)"
    assert [one.name for one in app.schedules.list()] == [f"{project.package}.mails.digest"]
    app.schedules.get(f"{project.package}.mails.digest").remove()


def test_commands_import_them_too(project: Project, server: Server) -> None:
    (project.root / "relevo.toml").write_text(f'imports = ["{project.package}.broken"]\n')
    project.write("broken.py", "1 / 0\n")
    asked = relevo("status", "-A", project.app, cwd=project.root, url=server.url)
    assert asked.code == 2
    assert f"imports: module '{project.package}.broken' cannot be imported: ZeroDivisionError" in asked.err


def test_a_worker_in_a_program_imports_them(tmp_path: Path, server: Server) -> None:
    project = Project(tmp_path, f', imports=["{{package}}.mails"], url="{server.url}", env="test"')
    project.write("jobs.py", (tmp_path / project.package / "jobs.py").read_text().format(package=project.package))
    with importing_from(tmp_path):
        app = __import__(f"{project.package}.jobs", fromlist=["app"]).app
        job = push(app, f"{project.package}.mails.remind")
        drained(app)
        assert job.result(timeout=PATIENCE) == 8
        app.schedules.get(f"{project.package}.mails.digest").remove()
        app.close()


def test_patterns_name_modules_of_a_package(project: Project) -> None:
    project.write("__main__.py", "raise SystemExit('the program runs')\n")
    project.write("orders/__init__.py", "")
    project.write("orders/tasks.py", "")
    project.write("users/__init__.py", "")
    name = project.package
    with importing_from(project.root):
        assert list(modules_of(f"{name}.mails")) == [f"{name}.mails"]
        assert list(modules_of(f"{name}.*")) == [f"{name}.jobs", f"{name}.mails", f"{name}.orders", f"{name}.users"]
        assert list(modules_of(f"{name}.*.tasks")) == [f"{name}.orders.tasks"]
        with pytest.raises(ConfigurationError, match="is a module and no package"):
            list(modules_of(f"{name}.jobs.*"))


@pytest.mark.parametrize(
    ("imports", "why"),
    [("{}.nothing", "no module '{}.nothing'"), ("{}.*.tasks", "imports: there is no module '{}.\\*.tasks'")],
)
def test_what_does_not_exist_is_refused(project: Project, app_factory: AppFactory, imports: str, why: str) -> None:
    app = app_factory(imports=[imports.format(project.package)])
    with importing_from(project.root), pytest.raises(ConfigurationError, match=why.format(project.package)):
        Worker(app)


def test_an_app_without_tasks_is_warned_of_with_the_module_to_name(project: Project, server: Server) -> None:
    ran = relevo("worker", project.app, "--burst", cwd=project.root, url=server.url)
    (line,) = [line for line in ran.err.splitlines() if "has no tasks" in line]
    assert f"app '{project.package}' has no tasks after the import of {project.package}.jobs" in line
    assert f'imports = ["{project.package}.mails"] in relevo.toml' in line


async def test_an_unknown_task_is_logged_once_with_the_module_to_name(
    project: Project, app: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def known() -> None: ...

    with importing_from(project.root):
        jobs = [push(app, f"{project.package}.mails.remind") for _ in range(3)]
        jobs.append(push(app, "subprocess.run"))
        worker = Worker(app, burst=True)
        await worker.run()
    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 2, lines
    assert lines[0].startswith(f"no task '{project.package}.mails.remind' in app '{app.name}'; its jobs wait for")
    assert f'mails was not imported: imports = ["{project.package}.mails"]' in lines[0]
    assert "imports" not in lines[1], "names of the standard library are not guessed"
    for job in jobs:
        assert await job.acancel()


def test_unknown_tasks_of_any_number_are_logged_as_far_as_they_can_be_read(
    app: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def known() -> None: ...

    jobs = [push(app, f"nobody.t{n}") for n in range(120)]
    drained(app)
    lines = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(lines) == 101
    assert lines[-1].startswith("more than 100 unknown tasks")
    for job in jobs:
        job.cancel()


def test_workers_without_tasks_and_unknown_tasks_are_reasons_of_health(app: Relevo) -> None:
    job = push(app, "shop.mails.remind")
    with working(app):
        eventually(lambda: job.state() is State.SCHEDULED, what="the worker refuses the job")
        found = app.health()
    assert found.status is Status.DEGRADED
    texts = {reason.measure: reason.text for reason in found.reasons}
    assert re.fullmatch(r"the worker \w+ \(process \d+ on \S+\) knows no task: name the modules .*", texts["tasks"])
    assert "if shop.mails defines it, name that in the setting imports" in texts["unknown shop.mails.remind"]
    job.cancel()


def test_a_worker_of_allowed_modules_or_with_tasks_is_no_reason(app_factory: AppFactory) -> None:
    app = app_factory(allow=["shop"])
    with working(app):
        assert "tasks" not in {reason.measure for reason in app.health().reasons}
