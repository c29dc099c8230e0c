"""Signals: a worker that is told to stop loses nothing, and one that is not goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from relevo import State
from tests.eventually import eventually
from tests.process.harness import START, Site, children_of, is_gone
from tests.servers import Server

#: A supervisor that is told to stop while it starts the second of three processes, before or after that one is there.
#: None of them ends by itself or is killed in this test's time.
TOLD_WHILE_STARTING = """
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
def test_a_supervisor_told_while_it_starts_processes_starts_no_more_and_tells_the_last_one(
    tmp_path: Path, when: str
) -> None:
    (tmp_path / "asleep.py").write_text("import time\ntime.sleep(120)\n", "utf-8")
    command = [sys.executable, "-c", TOLD_WHILE_STARTING, when]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as running:
        try:
            told, _ = running.communicate(timeout=60)
        finally:
            running.kill()
    assert told == f"exit 0 {[-int(signal.SIGTERM)] * 2}\n"


@both
def test_short_job_finishes_after_sigterm(server: Server, tmp_path: Path, supervised: bool) -> None:
    with Site(server, tmp_path, lease="30s", grace="10s") as site:
        worker = site.start(supervised=supervised)
        site.enqueue("nap", 1, 0.7)
        site.enqueue("work", 2, 0.7)
        site.wait_effect("start", 1)
        site.wait_effect("start", 2)
        assert worker.stop() == 0
        site.check(timeout=0)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_job_longer_than_the_grace_time_runs_elsewhere_and_has_spent_no_attempt(
    server: Server, tmp_path: Path, stop: signal.Signals
) -> None:
    with Site(server, tmp_path, lease="60s", grace="1s") as site:
        worker = site.start()
        jobs = [site.enqueue("nap_once", 1, 60.0), site.enqueue("work_once", 2, 60.0)]
        site.wait_effect("start", 1)
        site.wait_effect("start", 2)
        told = time.monotonic()
        worker.was_ended = True
        worker.signal(stop)
        assert worker.process.wait(30) == 0
        assert time.monotonic() - told < 20
        assert {job.status() for job in jobs} == {State.READY}
        assert all(job.info().attempts == () for job in jobs)
        site.start()
        handed_on = time.monotonic()
        for n in (1, 2):  # at once, not when a lease ends
            assert site.wait_effect("start", n, times=2).when - handed_on < 20
        site.check(duplicates=2)


def test_jobs_that_wait_for_a_slot_are_handed_back_at_once(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path, lease="30s", grace="30s") as site:
        worker = site.start(concurrency=100, threads=1)
        site.wait_idle(worker)
        site.enqueue("work", 0, 8.0)  # long enough for another worker to start
        site.wait_effect("start", 0)
        site.enqueue_many("work", range(1, 20), 1.0)  # one thread: nineteen wait for it
        eventually(lambda: site.queue.stats().running == 20, what="they are in the worker's hands")
        other = site.start()
        assert worker.stop(timeout=30) == 0
        site.check()
        by_other = {effect.n for effect in site.effects("end") if effect.pid == other.pid}
        assert len(by_other) >= 18


@both
def test_second_sigterm_stops_at_once(server: Server, tmp_path: Path, supervised: bool) -> None:
    with Site(server, tmp_path, lease="10s", grace="60s") as site:
        worker = site.start(supervised=supervised)
        site.enqueue("nap_once", 1, 60.0)
        site.wait_effect("start", 1)
        worker.was_ended = True
        worker.signal(signal.SIGTERM)
        eventually(lambda: "stopping: 1 jobs" in worker.log, what="the worker stops")
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
        assert time.monotonic() - began < 20
        site.start()
        site.check(duplicates=1)


@both
def test_hup_and_usr1_leave_a_worker_at_work(server: Server, tmp_path: Path, supervised: bool) -> None:
    with Site(server, tmp_path, lease="30s") as site:
        worker = site.start(supervised=supervised)
        site.enqueue("nap", 1, 0.5)
        process = site.wait_effect("start", 1).pid
        for pid in {worker.pid, process}:
            for harmless in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, harmless)
        eventually(lambda: worker.log.count("is ignored") >= 3, what="the signals arrive")
        site.enqueue("nap", 2)
        site.check()
        assert {effect.pid for effect in site.effects()} == {process}


def test_no_process_outlives_a_killed_supervisor(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path, lease="30s", grace="3s") as site:
        supervisor = site.start(supervised=True, processes=2)
        eventually(lambda: len(supervisor.ids) == 2, timeout=START, what="both processes begin")
        orphans = children_of(supervisor.pid)
        assert len(orphans) == 2
        site.enqueue("nap", 1, 0.4)
        site.enqueue("nap_once", 2, 60.0)
        site.wait_effect("start", 1)
        site.wait_effect("start", 2)
        supervisor.kill()
        eventually(lambda: all(is_gone(pid) for pid in orphans), timeout=30, what="the orphans wind down")
        assert site.acknowledged[1].status() is State.DONE  # in good order
        assert site.acknowledged[2].status() is State.READY
        site.start()
        site.check(duplicates=1)


def test_worker_stops_while_the_server_is_away(engine: str, tmp_path: Path) -> None:
    own = Server(engine, directory=tmp_path / "own", config={"appendonly": "yes"})
    with own, Site(own, tmp_path, lease="2s", grace="1s") as site:
        worker = site.start()
        site.enqueue("nap_once", 1, 60.0)
        site.wait_effect("start", 1)
        own.stop()
        told = time.monotonic()
        assert worker.stop(timeout=40) == 0
        assert time.monotonic() - told < 30
        own.start()
        site.start()
        site.check(duplicates=1)
