"""A server that restarts, dies, forgets, fills up or falls silent: workers outlive it and no job is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from relevo import State
from relevo.errors import OutOfMemory
from tests.eventually import eventually
from tests.process.harness import Site, let_pass
from tests.proxy import Proxy
from tests.servers import Server


@pytest.fixture
def mortal(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, that keeps its data when it dies."""
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with Server(engine, directory=tmp_path / "mortal", config=config) as server:
        yield server


def test_idle_worker_outlives_a_restart_of_the_server(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path, lease="3s") as site:
        worker = site.start()
        site.wait_idle(worker)
        mortal.stop()
        mortal.start()
        back = time.monotonic()
        site.enqueue("nap", 1)
        assert site.wait_effect("end", 1).when - back < 3
        site.check()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_no_acknowledged_job_is_lost_when_the_server_ends_under_load(mortal: Server, tmp_path: Path, how: str) -> None:
    with Site(mortal, tmp_path, lease="2s") as site:
        worker = site.start()
        with site.load("nap", 0.01):
            for n in range(1, 5):
                eventually(partial(site.has_acknowledged, n * 50), what=f"load before round {n}")
                mortal.stop() if how == "stopped" else mortal.kill()
                mortal.start()
        site.check(duplicates=20)  # of attempts whose end was told to a server that could not keep it
        print(f"{len(site.acknowledged)} acknowledged, {len(site.unsure)} unsure")
        assert "Traceback" not in worker.log


def test_worker_waits_quietly_for_a_server_that_is_away(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path, lease="2s") as site:
        worker = site.start()
        site.enqueue("nap", 1, 3.0)  # ends while nobody can be told
        site.wait_effect("start", 1)
        before = len(worker.lines("INFO", "WARNING", "ERROR"))
        mortal.stop()
        used = worker.cpu_seconds()
        let_pass(5)
        used = worker.cpu_seconds() - used
        mortal.start()
        back = time.monotonic()
        site.enqueue("nap", 2)
        assert site.wait_effect("end", 2).when - back < 3
        site.check(duplicates=1)
        told = worker.lines("INFO", "WARNING", "ERROR")[before:]
        print(f"{used:.2f} s of CPU in 5 s", *told, sep="\n")
        assert used < 0.5
        assert len(told) <= 5
        assert "Traceback" not in worker.log


def test_server_that_forgets_its_scripts_is_told_them_again(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path, lease="2s") as site:
        worker = site.start()
        with site.load("nap", 0.01):
            for _ in range(20):
                mortal.command("SCRIPT", "FLUSH")
                let_pass(0.1)
        site.check()
        assert not site.unsure
        assert not worker.lines("WARNING", "ERROR")


@pytest.mark.slow
def test_silent_connections_are_replaced_within_15_seconds_by_default(server: Server, tmp_path: Path) -> None:
    """Also the job that was handed over into the silence runs."""
    with Proxy("127.0.0.1", server.port) as proxy, Site(server, tmp_path) as site:
        worker = site.start(url=proxy.url)
        site.wait_idle(worker)
        proxy.black_hole()
        silent = time.monotonic()
        site.enqueue("nap", 1)
        assert site.acknowledged[1].status() is State.RUNNING  # on its way to nobody
        took = site.wait_effect("end", 1, timeout=25).when - silent
        print(f"worked again {took:.2f} s after the silence began")
        assert took < 15
        site.check()


def test_connections_that_fall_silent_under_load_lose_nothing(server: Server, tmp_path: Path) -> None:
    settings = {"lease": "2s", "call_timeout": "1s", "connect_timeout": "1s"}
    with Proxy("127.0.0.1", server.port) as proxy, Site(server, tmp_path, **settings) as site:
        site.start(url=proxy.url)
        with site.load("nap", 0.01):
            eventually(lambda: len(site.effects("end")) > 50, what="work before the silence")
            proxy.black_hole()
            silent = time.monotonic()
            back = eventually(
                lambda: [one for one in site.effects("end") if one.when > silent + 0.5], what="work after the silence"
            )
            assert back[0].when - silent < 8
        site.check(duplicates=30)


def test_network_that_is_gone_for_some_seconds_loses_nothing(server: Server, tmp_path: Path) -> None:
    settings = {"lease": "2s", "call_timeout": "1s", "connect_timeout": "1s"}
    with Proxy("127.0.0.1", server.port) as proxy, Site(server, tmp_path, **settings) as site:
        worker = site.start(url=proxy.url)
        site.enqueue("nap", 1, 1.0)
        site.wait_effect("start", 1)
        proxy.black_hole_all()
        let_pass(4)
        proxy.heal()
        back = time.monotonic()
        site.enqueue("nap", 2)
        assert site.wait_effect("end", 2).when - back < 8
        site.check(duplicates=1)
        assert len(worker.lines("WARNING", "ERROR")) <= 5


def test_full_server_refuses_new_jobs_and_records_the_running_ones(mortal: Server, tmp_path: Path) -> None:
    with Site(mortal, tmp_path, lease="2s") as site:
        worker = site.start()
        site.enqueue("nap", 1, 1.5)
        site.enqueue("work", 2, 1.5)
        site.enqueue("talk", 3, 1.5)  # what it prints needs memory, too
        for n in (1, 2, 3):
            site.wait_effect("start", n)
        mortal.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        mortal.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(OutOfMemory, match="memory limit"):
            site.enqueue("nap", 4)
        site.unsure.clear()  # refused is sure
        site.check(timeout=6)  # while the server is still full
        assert worker.is_running
        mortal.command("CONFIG", "SET", "maxmemory", "0")
        site.enqueue("nap", 5)
        site.check()


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_wrong_clock_of_a_worker_changes_nothing(server: Server, tmp_path: Path, ahead: int) -> None:
    with Site(server, tmp_path, lease="1.5s") as site:
        site.start(clock=ahead)
        site.start()  # that sees the leases of the other
        began = time.monotonic()
        for n in range(10):
            site.enqueue("nap", n, 0.0, delay=1.0 + n / 10, expires=30)
            site.enqueue("plant", 100 + n, 1.0)
            site.enqueue("fail_once", 200 + n)
        site.enqueue_many("nap", range(300, 306), 2.5)  # longer than a lease
        for n in (*range(10), *range(1100, 1110)):
            planted = site.wait_effect("start", n - 1000).when if n >= 1100 else began + n / 10
            assert 1.0 <= site.wait_effect("end", n).when - planted < 15
        for n in range(200, 210):
            first, second = site.wait_effect("start", n), site.wait_effect("start", n, times=2)
            assert 0.8 <= second.when - first.when < 15
        site.unsure |= set(range(1100, 1110))  # acknowledged to a task
        site.check(duplicates=10)  # those that fail once
        assert all(len(site.effects("start", n)) == 1 for n in (*range(10), *range(300, 306), *range(1100, 1110)))
        started, ended = (getattr(site.acknowledged[300].info(), name) for name in ("started_ms", "ended_ms"))
        assert 2000 < ended - started < 20_000
