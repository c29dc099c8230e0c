"""Signals: a worker that has to stop loses nothing, and signals that mean something else do not stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relevo import State
from tests.eventually import PATIENCE, eventually
from tests.process.harness import Site, children_of, is_gone
from tests.servers import Server

#: A supervisor that gets SIGTERM while it starts the second of three processes, before or after that one exists.
#: None of them ends by itself or is killed in this test's time.
STOPPED_WHILE_STARTING = """
import os, signal, subprocess, sys
from relevo.settings import Settings
from relevo.worker import supervisor
from relevo.worker.child import Order

started = []

class Popen(subprocess.Popen):
    def __init__(self, *args, **kwargs):
        started.append(self)
        if len(started) == 2 and sys.argv[1] == "before":
            os.kill(os.getpid(), signal.SIGTERM)
        super().__init__(*args, **kwargs)
        if len(started) == 2 and sys.argv[1] == "after":
            os.kill(os.getpid(), signal.SIGTERM)

supervisor.subprocess.Popen = Popen
code = supervisor.Supervisor(Order(app="asleep:app"), 3, Settings(grace=3600.0)).run()
print("exit", code, [one.returncode for one in started])
"""

both = pytest.mark.parametrize("supervised", [False, True], ids=["alone", "supervised"])


@pytest.mark.parametrize("when", ["before", "after"])
def test_supervisor_stopped_while_it_starts_processes_starts_no_more_and_stops_the_last_one(
    tmp_path: Path, when: str
) -> None:
    (tmp_path / "asleep.py").write_text("import time\ntime.sleep(600)\n", "utf-8")
    command = [sys.executable, "-c", STOPPED_WHILE_STARTING, when]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        try:
            printed, _ = running.communicate(timeout=PATIENCE)
        finally:
            running.kill()
    assert printed == f"exit 0 {[-int(signal.SIGTERM)] * 2}\n"


@both
def test_worker_ignores_hup_and_usr_signals_and_finishes_its_jobs_after_sigterm(
    server: Server, tmp_path: Path, supervised: bool
) -> None:
    with Site(server, tmp_path, grace="1h") as site:
        worker = site.start(supervised=supervised)
        site.enqueue("gated", 1)
        site.enqueue("gated_thread", 2)
        process = site.wait_effect("start", 1).pid
        site.wait_effect("start", 2)
        for pid in {worker.pid, process}:
            for harmless in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, harmless)
        worker.wait_log("is ignored", times=3)
        site.enqueue("nap", 3)  # it works on
        site.wait_effect("end", 3)
        worker.was_ended = True
        worker.signal(signal.SIGTERM)
        worker.wait_log("stopping: 2 jobs")
        site.open(1, 2)
        assert worker.process.wait(PATIENCE) == 0
        site.check(timeout=0)
        assert {effect.pid for effect in site.effects()} == {process}


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_job_longer_than_the_grace_time_runs_elsewhere_and_has_spent_no_attempt(
    server: Server, tmp_path: Path, stop: signal.Signals
) -> None:
    with Site(server, tmp_path, grace="0.5s") as site:
        worker = site.start()
        jobs = [site.enqueue("nap_once", 1, 600.0), site.enqueue("work_once", 2, 600.0)]
        site.wait_effect("start", 1)
        site.wait_effect("start", 2)
        worker.was_ended = True
        worker.signal(stop)
        assert worker.process.wait(PATIENCE) == 0
        assert {job.state() for job in jobs} == {State.READY}
        assert all(job.info().attempts == () for job in jobs)
        site.drain()  # at once, not when a lease ends
        site.check(timeout=0, again={1, 2})


def test_jobs_that_wait_for_a_slot_are_handed_back_at_once(server: Server, tmp_path: Path) -> None:
    """While the worker still finishes the job that it runs."""
    with Site(server, tmp_path, grace="1h") as site:
        worker = site.start(concurrency=100, threads=1)
        site.wait_idle(worker)
        site.enqueue("gated_thread", 0)
        site.wait_effect("start", 0)
        site.enqueue_many("work", range(1, 20))  # one thread: nineteen wait for it
        eventually(lambda: site.queue.stats().running == 20, what="the worker has claimed them")
        worker.was_ended = True
        worker.signal(signal.SIGTERM)
        eventually(lambda: site.queue.stats().ready == 19, what="they are ready for another worker")
        site.open(0)
        assert worker.process.wait(PATIENCE) == 0
        assert site.acknowledged[0].state() is State.DONE
        site.drain()
        site.check(timeout=0)


@both
def test_second_sigterm_stops_at_once(server: Server, tmp_path: Path, supervised: bool) -> None:
    """Although the grace time is an hour."""
    with Site(server, tmp_path, grace="1h") as site:
        worker = site.start(supervised=supervised)
        site.enqueue("nap_once", 1, 600.0)
        site.wait_effect("start", 1)
        worker.was_ended = True
        worker.signal(signal.SIGTERM)
        worker.wait_log("stopping: 1 jobs")
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE) == 0
        site.drain()
        site.check(timeout=0, again={1})


def test_no_process_outlives_a_killed_supervisor(server: Server, tmp_path: Path) -> None:
    """Its processes stop as after SIGTERM: they hand back what they cannot finish."""
    with Site(server, tmp_path, grace="0.5s") as site:
        supervisor = site.start(supervised=True, processes=2)
        eventually(lambda: len(supervisor.ids) == 2, what="both processes begin")
        orphans = children_of(supervisor.pid)
        assert len(orphans) == 2
        job = site.enqueue("nap_once", 1, 600.0)
        site.wait_effect("start", 1)
        supervisor.kill()
        eventually(lambda: all(is_gone(pid) for pid in orphans), what="the processes end")
        assert job.state() is State.READY
        assert job.info().attempts == ()
        site.drain()
        site.check(timeout=0, again={1})


def test_worker_stops_while_the_server_is_away(engine: str, tmp_path: Path) -> None:
    own = Server(engine, directory=tmp_path / "own", config={"appendonly": "yes"})
    with own, Site(own, tmp_path, grace="0.5s") as site:
        worker = site.start()
        site.enqueue("nap_once", 1, 600.0)
        site.wait_effect("start", 1)
        own.stop()
        assert worker.stop() == 0
        own.start()
        site.move("61s")  # the worker could not hand its job back
        site.drain()
        site.check(timeout=0, again={1})
