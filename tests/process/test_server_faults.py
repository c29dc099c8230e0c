"""A server that restarts, dies, loses its scripts, is full or silent: workers outlive it and no job is lost."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from relevo import State
from relevo.errors import OutOfMemory
from relevo.queues.queue import JobRow
from relevo.worker import bell
from tests.conftest import PATIENT
from tests.eventually import eventually
from tests.process import jobs
from tests.process.harness import Site, let_pass
from tests.proxy import Proxy
from tests.servers import Server
from tests.working import working


def drain_rest(site: Site) -> None:
    """Run what the server handed out with a reply that was lost: no worker knows of it, so its lease has to end.

    Workers are stopped before: a job that was handed over may still be on its way to one.
    """

    def is_settled() -> bool:
        started, ended = ({effect.n for effect in site.effects(what)} for what in ("start", "end"))
        handles = [site.acknowledged[n] for n in started if n in site.acknowledged]
        return started == ended and site.queue.stats().ready == 0 and all(job.state().has_ended for job in handles)

    eventually(is_settled, what="the worker has settled all that it started")
    for worker in site.workers:
        worker.stop()
    site.move("61s")
    site.drain()


def test_no_acknowledged_job_is_lost_when_the_server_ends_under_load(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path) as site:
        worker = site.start()
        site.wait_idle(worker)
        mortal.stop()
        mortal.start()
        site.enqueue("nap", 1)  # an idle worker outlives a restart, too
        site.wait_effect("end", 1)
        with site.load("nap", 0.01):
            for n, end in enumerate([mortal.kill, mortal.stop, mortal.kill], start=1):
                eventually(partial(site.has_acknowledged, n * 50), what=f"load before round {n}")
                end()
                mortal.start()
        drain_rest(site)
        site.check()
        assert "Traceback" not in worker.log


def test_worker_waits_quietly_for_a_server_that_is_away(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path, lease="2s") as site:
        worker = site.start()
        site.enqueue("gated", 1)
        site.wait_effect("start", 1)
        before = len(worker.lines("INFO", "WARNING", "ERROR"))
        mortal.stop()
        site.open(1)  # its outcome cannot be recorded
        began, used = time.monotonic(), worker.cpu_seconds()
        let_pass(3)  # longer than a lease
        share = (worker.cpu_seconds() - used) / (time.monotonic() - began)
        mortal.start()
        site.enqueue("nap", 2)
        site.wait_effect("end", 2)
        site.check()
        assert share < 0.2, "of a core"
        assert len(worker.lines("INFO", "WARNING", "ERROR")[before:]) <= 5
        assert "Traceback" not in worker.log


def test_scripts_that_the_server_lost_are_loaded_again(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path) as site:
        worker = site.start()
        with site.load("nap"):
            for n in range(1, 11):
                mortal.command("SCRIPT", "FLUSH")
                eventually(partial(site.has_acknowledged, n * 10), what="load after the scripts were lost")
        site.check()
        assert not site.unsure
        assert "NOSCRIPT" not in worker.log
        assert "Traceback" not in worker.log


def test_silent_connections_are_replaced(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the job that was handed over into the silence runs, when its lease has ended."""
    monkeypatch.setattr(bell, "BLOCK", 1)  # seconds that an idle worker listens on one connection without an answer
    monkeypatch.setattr(bell, "MARGIN", 1.0)
    with Proxy("127.0.0.1", server.port) as proxy, Site(server, tmp_path) as site:
        settings = {**PATIENT, "call_timeout": "1s", "connect_timeout": "1s"}
        app = jobs.build(site.name, url=proxy.url, env="test", _clock_key=site.clock, **settings)
        with working(app):
            eventually(lambda: site.queue.stats().idle_workers == 1, what="the worker is idle")
            proxy.black_hole()
            site.enqueue("nap", 1)
            assert site.acknowledged[1].state() is State.RUNNING  # on its way into the silence
            site.move("61s")
            site.check()
        app.close()


def test_connections_that_fall_silent_under_load_lose_nothing(server: Server, tmp_path: Path) -> None:
    settings = {"call_timeout": "1s", "connect_timeout": "1s"}
    with Proxy("127.0.0.1", server.port) as proxy, Site(server, tmp_path, **settings) as site:
        site.start(url=proxy.url)
        with site.load("nap", 0.01):
            eventually(lambda: len(site.effects("end")) > 50, what="work before the silence")
            proxy.black_hole()
            last = max(site.acknowledged)
            eventually(lambda: max(effect.n for effect in site.effects("end")) > last, what="work after the silence")
        drain_rest(site)
        site.check()


def test_network_that_is_gone_for_a_while_loses_nothing(server: Server, tmp_path: Path) -> None:
    settings = {"call_timeout": "1s", "connect_timeout": "1s"}
    with Proxy("127.0.0.1", server.port) as proxy, Site(server, tmp_path, **settings) as site:
        worker = site.start(url=proxy.url)
        site.enqueue("gated", 1)
        site.wait_effect("start", 1)
        proxy.black_hole_all()
        site.open(1)
        worker.wait_log("trying again until it is back")
        proxy.heal()
        site.check()
        assert len(worker.lines("WARNING", "ERROR")) <= 5


def test_full_server_refuses_new_jobs_and_records_the_running_ones(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path) as site:
        worker = site.start()
        site.enqueue("gated", 1)
        site.enqueue("gated_thread", 2)
        site.enqueue("talk", 3)  # what it prints needs memory, too
        for n in (1, 2, 3):
            site.wait_effect("start", n)
        mortal.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        mortal.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(OutOfMemory, match="memory limit"):
            site.enqueue("nap", 4)
        site.unsure.clear()  # refused is sure
        site.open(1, 2, 3)
        site.check()  # while the server is still full
        assert worker.is_running
        mortal.command("CONFIG", "SET", "maxmemory", "0")
        site.enqueue("nap", 5)
        site.check()


def test_wrong_clock_of_a_worker_changes_nothing(server: Server, tmp_path: Path) -> None:
    """What a worker enqueues for later or retries is due by the server's clock, and does not expire by its own."""
    hour = 3_600_000
    with Site(server, tmp_path) as site:
        site.enqueue("nap", 0, 0.0, delay="1h", expires="1h30m")
        for number, clock in enumerate((-3600.0, 3600.0)):
            worker = site.start(clock=clock)  # the second one finds what the first one planted, and it is due
            due = {row.id for row in site.queue.jobs("scheduled")}
            before = site.now_ms()
            site.enqueue("plant", 100 + number, 3600.0)
            site.enqueue("fail_once", 200 + number)
            job = site.enqueue("nap", 300 + number)
            site.wait_effect("end", 300 + number)
            eventually(lambda: job.state().has_ended, what="the job is settled")
            new = eventually(partial(scheduled_besides, site, due, 2), what="the planted job and the retry wait")
            after = site.now_ms()
            # to the second: the worker's clock is an hour off
            assert all(before + hour - 1000 <= (row.due_ms or 0) <= after + hour + 1000 for row in new)
            record = job.info()
            assert before <= (record.started_ms or 0) <= (record.ended_ms or 0) <= after
            if number:
                for n in (0, 1100):
                    assert site.wait_effect("end", n).pid == worker.pid
                assert site.wait_effect("start", 200, times=2).pid == worker.pid
            assert worker.stop() == 0
            site.move("1h1m")
        site.drain()
        site.unsure |= {1100, 1101}  # acknowledged to a task
        site.check(again={200, 201})


def scheduled_besides(site: Site, known: set[str], count: int) -> list[JobRow]:
    """Jobs that wait for their time and did not before, once there are so many."""
    found = [row for row in site.queue.jobs("scheduled") if row.id not in known]
    return found if len(found) >= count else []
