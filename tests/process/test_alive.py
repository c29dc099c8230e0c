"""A liveness probe: a worker that is stopped, killed, or whose server does not answer, is not alive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from relevo.alive import main
from tests.eventually import eventually
from tests.process.harness import Site, children_of
from tests.servers import Server
from tests.system.shell import relevo

#: After how many seconds without a pulse the supervisor of these tests gives a process up. By default it is 6: three
#: pulses of its event loop.
PRELUDE = "import relevo.worker.supervisor as s; s.FRESH = 3.0"


def is_alive(path: Path) -> bool:
    return main([str(path), "--max-age", "2"]) == 0


def test_worker_is_alive_while_its_processes_run_and_the_server_answers(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.touch()  # of an earlier worker
    with Server(engine, directory=tmp_path / "server") as own, Site(own, tmp_path, call_timeout="1s") as site:
        worker = site.start(supervised=True, wait=False, alive_file=path, prelude=PRELUDE)
        eventually(lambda: not path.exists() or worker.ids, what="the old file is gone")
        eventually(lambda: worker.ids and is_alive(path), what="life")
        (child,) = children_of(worker.pid)
        os.kill(child, signal.SIGSTOP)
        eventually(lambda: not is_alive(path), what="a stopped process is noticed")
        os.kill(child, signal.SIGCONT)
        eventually(lambda: is_alive(path), what="it goes on")
        own.pause()
        eventually(lambda: not is_alive(path), what="a server that does not answer is noticed")
        own.resume()
        eventually(lambda: is_alive(path), what="it answers again")
        os.kill(child, signal.SIGKILL)
        eventually(lambda: len(worker.ids) == 2 and is_alive(path), what="another process took its place")
        assert worker.stop() == 0
        assert not path.exists(), "a worker that ended in good order is not alive"


def test_killed_worker_is_not_alive(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with Site(server, tmp_path) as site:
        worker = site.start(supervised=True, alive_file=path)
        eventually(lambda: is_alive(path), what="life")
        assert subprocess.run([sys.executable, "-m", "relevo.alive", str(path)], stdout=subprocess.PIPE).returncode == 0
        worker.kill()
        eventually(lambda: not is_alive(path), what="a killed worker is noticed")


def test_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    shown = relevo("worker", "shop:app", "--alive-file", str(tmp_path / "none" / "alive"))
    assert shown.code == 2
    assert "--alive-file" in shown.err and "No such file or directory" in shown.err
