"""A liveness probe tells a worker that works from one that is stopped, killed, blocked or cut off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from relevo.worker.pulse import FRESH
from tests.eventually import eventually
from tests.process.harness import START, Site, children_of
from tests.servers import Server
from tests.system.shell import environment, relevo

#: Seconds after the last touch in which a probe of these tests believes in a worker.
AGE = 2


def is_alive(path: Path) -> bool:
    command = [sys.executable, "-m", "relevo.alive", str(path), "--max-age", str(AGE)]
    return subprocess.run(command, env=environment(None), capture_output=True, timeout=30).returncode == 0


def test_a_worker_that_is_stopped_is_not_alive_and_one_that_goes_on_is(server: Server, tmp_path: Path) -> None:
    """A stuck worker"""
    path = tmp_path / "alive"
    path.touch()  # of an earlier one
    with Site(server, tmp_path, lease="2s") as site:
        worker = site.start(supervised=True, wait=False, alive_file=path)
        eventually(lambda: not path.exists() or worker.ids, timeout=START, what="the old file is gone")
        eventually(lambda: worker.ids and is_alive(path), timeout=START, what="life")
        (child,) = children_of(worker.pid)
        subprocess.run(["kill", "-STOP", str(child)], check=True)
        eventually(lambda: not is_alive(path), timeout=FRESH + AGE + 10, what="a stopped process is noticed")
        subprocess.run(["kill", "-CONT", str(child)], check=True)
        eventually(lambda: is_alive(path), timeout=START, what="it goes on")
        subprocess.run(["kill", "-KILL", str(child)], check=True)
        eventually(lambda: len(worker.ids) == 2 and is_alive(path), timeout=START, what="another took its place")
        worker.stop()
        assert not path.exists(), "a worker that ended in good order is not alive"


def test_a_worker_that_is_killed_is_not_alive(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with Site(server, tmp_path) as site:
        worker = site.start(supervised=True, alive_file=path)
        eventually(lambda: is_alive(path), timeout=START, what="life")
        worker.kill()
        eventually(lambda: not is_alive(path), timeout=AGE + 10, what="a killed worker is noticed")


def test_a_worker_whose_server_does_not_answer_is_not_alive(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with Server(engine, directory=tmp_path / "server") as own, Site(own, tmp_path, call_timeout="1s") as site:
        site.start(supervised=True, alive_file=path)
        eventually(lambda: is_alive(path), timeout=START, what="life")
        own.pause()
        eventually(lambda: not is_alive(path), timeout=FRESH + AGE + 10, what="silence is noticed")
        own.resume()
        eventually(lambda: is_alive(path), timeout=START, what="it answers again")


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    told = relevo("worker", "shop:app", "--alive-file", str(tmp_path / "none" / "alive"))
    assert told.code == 2
    assert "--alive-file" in told.err and "No such file or directory" in told.err
