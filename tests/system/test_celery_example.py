"""The ported project of examples/celery: two real workers, and the README shows what stands in the files."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from relevo import Relevo
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.servers import Server
from tests.system.shell import PATIENT_ENV, command, environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "celery"
README = (EXAMPLE / "README.md").read_text("utf-8")


@contextlib.contextmanager
def worker(variables: dict[str, str], queue: str) -> Iterator[None]:
    """A worker of one queue, for as long as the block lasts."""
    running = subprocess.Popen(command("worker", "shop.app:app", "-Q", queue), cwd=EXAMPLE, env=variables)
    try:
        yield
    finally:
        running.terminate()
        assert running.wait(PATIENCE) == 0


@pytest.fixture
def variables(server: Server) -> Iterator[dict[str, str]]:
    prefix = f"celery{uuid4().hex[:12]}"
    yield environment(server.url, RELEVO_PREFIX=prefix, **PATIENT_ENV)
    assert leaks(server, prefix) == []
    remove(server, prefix)


def test_the_ported_project_prints_what_the_readme_shows(server: Server, variables: dict[str, str]) -> None:
    settings = {"url": server.url, "env": "test", "prefix": variables["RELEVO_PREFIX"], **PATIENT}
    with (
        closing(Relevo("shop", **settings)) as app,
        worker(variables, "default"),
        worker(variables, "pictures"),
    ):
        call = [sys.executable, "try_it.py"]
        done = subprocess.run(call, cwd=EXAMPLE, env=variables, capture_output=True, text=True, timeout=PATIENCE)
        assert (done.returncode, done.stderr) == (0, "")
        [shown] = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
        assert shown.endswith(f"$ python try_it.py\n{done.stdout}")

        # If a schedule is due, I expect a worker to run it: there is no beat
        eventually(lambda: app.schedules.get("shop.reports.sync_stock").history(), what="a tick")
        assert app.schedules.get("shop.reports.report").info().words == "at 02:30 every day, Europe/Madrid time"
        assert app.queue("pictures").stats().totals["done"] == 4


@pytest.mark.parametrize(("word", "folder"), [("Celery", "before/shop"), ("relevo", "shop")])
def test_the_readme_shows_lines_of_the_files(word: str, folder: str) -> None:
    files = "\n".join(path.read_text("utf-8") for path in sorted((EXAMPLE / folder).glob("*.py")))
    parts = re.split(r"^(Celery|relevo):\n", README, flags=re.MULTILINE)[1:]
    blocks = [
        block
        for name, text in zip(parts[::2], parts[1::2], strict=True)
        if name == word
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    ]
    assert len(blocks) >= 6
    assert [block for block in blocks if block not in files] == []


def test_the_project_before_is_python() -> None:
    for path in (EXAMPLE / "before").rglob("*.py"):
        compile(path.read_text("utf-8"), str(path), "exec")
