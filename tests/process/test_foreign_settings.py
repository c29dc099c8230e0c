"""Settings that another user left above a project: no worker runs his jobs, or sends its own to his server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relevo import State
from relevo.store.embedded.server import stop
from tests.conftest import PATIENT, AppFactory
from tests.servers import Server
from tests.system.shell import relevo

STRANGER = 12345
APP = "from relevo import Relevo\napp = Relevo('shop')\n@app.task\ndef greet(name: str) -> str:\n    return name\n"


@pytest.mark.parametrize("case", ["outside of the project", "of another user"])
def test_settings_left_above_a_project_run_no_code_in_its_worker(
    server: Server, app_factory: AppFactory, tmp_path: Path, case: str
) -> None:
    """`url` names the attacker's server and `allow` a module with `system` in it; there a job waits that calls it."""
    shared, project, ran = tmp_path / "shared", tmp_path / "shared" / "victim" / "project", tmp_path / "ran"
    project.mkdir(parents=True)
    (project / "shop.py").write_text(APP)
    prefix = f"left{os.getpid()}"
    (shared / "relevo.toml").write_text(f'url = "{server.url}"\nprefix = "{prefix}"\nallow = ["posix"]\n')
    if case == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can make files of another user; the other case needs none")
        for path in (shared, shared / "relevo.toml"):
            os.chown(path, STRANGER, STRANGER)
        shared.chmod(0o1777)
    else:
        (project / "pyproject.toml").write_text("[project]\nname = 'shop'\n")
    attacker = app_factory("shop", prefix=prefix, allow=["posix"])
    job = attacker.enqueue(os.system, f"touch {ran}")
    try:
        result = relevo("worker", "shop:app", "--burst", cwd=project)
        assert not ran.exists()
        assert job.state() is State.READY
        assert (result.code, ", settings from no file, server " in result.err) == (0, True)
        assert result.err.count(f"{shared / 'relevo.toml'} is not used: it is above ") == 2, result.err
    finally:
        stop(project / ".relevo")
        attacker.queue().clear()


def test_worker_names_the_files_of_its_settings_first(server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "relevo.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in PATIENT.items()))
    (tmp_path / "pyproject.toml").write_text("[tool.relevo]\nretries = 7\n")
    result = relevo("worker", "shop:app", "--burst", cwd=tmp_path, url=server.url)
    assert result.code == 0
    first = result.err.splitlines()[0]
    assert (
        f", settings from {tmp_path / 'relevo.toml'}, [tool.relevo] of {tmp_path / 'pyproject.toml'}, server " in first
    )
