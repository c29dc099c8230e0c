"""Who asks, who answers and the server between them are killed: every request ends once, and nothing stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo
from relevo.errors import BusError, NoResponders, RemoteError, RequestTimeout, StoreError
from relevo.store.plan import Call
from relevo.store.presence import SERVE_MS
from relevo.worker.faults import Point
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process import harness, jobs
from tests.process.harness import START, Site, WorkerProcess
from tests.servers import Server

#: The points, and the pass at which to die. The worker has a lane for each queue, and each begins with a turn.
PASSES: dict[Point, int] = {
    "turn_sent": 1,
    "claimed": 1,
    "handed_over": 1,
    "started": 1,
    "returned": 1,
    "settled": 9,
    "renewing": 1,
    "stopping": 1,
}
#: At these no request has done anything: a second start would be one too many.
BEFORE_ANY_START = ("turn_sent", "claimed", "handed_over")
QUEUE = "back:actions"
SERVED = (QUEUE, "front:actions", "apart:actions")
COUNT = 10


class BusSite(Site):
    """A site with the services of `bus_services` on a bus of its own, and an event loop from which they are asked."""

    def __init__(self, server: Server, directory: Path, **settings: str) -> None:
        self.prefix = f"b{uuid4().hex[:12]}"
        super().__init__(server, directory, prefix=self.prefix, **settings)
        self.app.close()
        self.clock = f"relevo-test-clock-{self.prefix}"
        self.app = Relevo(self.name, url=server.url, env="test", prefix=self.prefix, _clock_key=self.clock, **settings)
        self.queue = self.app.queue(QUEUE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asks", daemon=True)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.app.aclose(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()
        super().__exit__(kind, error, trace)

    # asking
    def ask(self, type: str, n: int, *, timeout: float = 20, wait: bool = False, **data: Any) -> Future[Any]:
        """Ask, and give what becomes of it: the answer, or the error as a value."""

        async def ask() -> Any:
            try:
                return await self.app.service("me").arequest(type, {"n": n, **data}, timeout=timeout, wait=wait)
            except (BusError, StoreError) as error:
                return error

        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def ask_many(self, type: str, numbers: range, **about: Any) -> list[Future[Any]]:
        return [self.ask(type, n, **about) for n in numbers]

    def wait_served(self, *workers: WorkerProcess) -> None:
        """Until these workers are known to serve."""
        keys = [self.app.keys_of(queue).key("instances") for queue in SERVED]

        def known() -> bool:
            alive: list[list[bytes]] = [self.app.run(Call([b"ZRANGE", key, 0, -1])) for key in keys]
            return all(worker.ids and worker.ids[-1].encode() in ids for worker in workers for ids in alive)

        eventually(known, timeout=START, what="the workers are known to serve")

    # what is left
    def keys(self) -> dict[str, int]:
        """All keys of this bus, with their time to live, but for how long its tasks took: workers write that later."""
        found = dict(self.server.keys())
        ours = {key for key in found if self.prefix in key and key != self.clock and not key.endswith(":timings")}
        return {key: found[key] for key in ours}

    def check_left(self) -> None:
        eventually(lambda: self.queue.stats().living == 0, timeout=15, what="no message is left")
        eventually(lambda: not leaks(self.server, self.prefix), timeout=5, what="nothing is left without an end")

    def check_runs(self, numbers: range, *, duplicates: int) -> None:
        """Each of them ran, and a second time only where the worker died before it could tell."""
        starts = Counter(effect.n for effect in self.effects("start"))
        assert set(starts) == set(numbers)
        again = sum(starts.values()) - len(starts)
        assert again <= duplicates, f"ran more than once: {[n for n in starts if starts[n] > 1]}"


def answers(asked: list[Future[Any]], timeout: float = 30) -> list[Any]:
    """What became of all of them; none may hang."""
    until = time.monotonic() + timeout
    return [one.result(max(0.0, until - time.monotonic())) for one in asked]


def kinds(outcomes: list[Any]) -> Counter[str]:
    return Counter(type(one).__name__ if isinstance(one, Exception) else "answer" for one in outcomes)


@pytest.fixture(autouse=True)
def of_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes import these services."""
    monkeypatch.setattr(harness, "TARGET", "tests.process.bus_services:app")


@pytest.fixture
def mortal(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, that keeps its data when it dies."""
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with Server(engine, directory=tmp_path / "mortal", config=config) as server:
        yield server


# --- who answers


@pytest.mark.parametrize("point", PASSES)
def test_requests_outlive_a_responder_that_is_killed_at_any_point(server: Server, tmp_path: Path, point: Point) -> None:
    """Each is answered once, in its time, by whoever comes after."""
    numbers = range(COUNT)
    with BusSite(server, tmp_path, lease="1s") as site:
        seconds = 1.0 if point == "renewing" else 0.3
        asked = []
        if point not in ("handed_over", "stopping"):
            asked = site.ask_many("back.work", numbers, seconds=seconds, wait=True)
            eventually(lambda: site.queue.stats().ready == COUNT, what="they wait for somebody")
        victim = site.start(fault=f"{point}:{PASSES[point]}", wait=False)
        if not asked:
            site.wait_served(victim)
            asked = site.ask_many("back.work", numbers, seconds=seconds)
        if point == "stopping":
            site.wait_effect("start", COUNT - 1)
            victim.signal(signal.SIGTERM)
        eventually(lambda: not victim.is_running, timeout=START, what=f"the worker dies at {point}")
        assert victim.process.returncode == -signal.SIGKILL
        site.start()
        assert answers(asked) == list(numbers)
        site.check_runs(numbers, duplicates=0 if point in BEFORE_ANY_START else COUNT)
        site.check_left()
        assert site.app.client.late_replies == 0
        assert "ended" not in str(site.keys()), "what was heard is not kept"


def test_a_supervised_responder_that_is_killed_answers_within_3_seconds_by_default(
    server: Server, tmp_path: Path
) -> None:
    with BusSite(server, tmp_path) as site:
        worker = site.start(supervised=True)
        site.wait_served(worker)
        asked = [
            *site.ask_many("back.work", range(5), seconds=0.5),
            *site.ask_many("back.plain_work", range(5, 8), seconds=0.5),
        ]
        pids = {site.wait_effect("start", n).pid for n in range(8)}
        assert len(pids) == 1
        killed = time.monotonic()
        os.kill(pids.pop(), signal.SIGKILL)
        assert answers(asked) == list(range(8))
        took = time.monotonic() - killed
        print(f"answered {took:.2f} s after the kill")
        assert took < 5, "seen by its supervisor; by its lease it would take longer"
        site.check_left()


def test_a_request_inside_a_request_outlives_the_worker_of_both(server: Server, tmp_path: Path) -> None:
    with BusSite(server, tmp_path) as site:
        worker = site.start(supervised=True)
        site.wait_served(worker)
        asked = site.ask("front.ask_to_work", 1, seconds=0.3)
        os.kill(site.wait_effect("start", 1).pid, signal.SIGKILL)
        assert asked.result(20) == 1
        assert len(site.effects("asked", 1)) == 2
        site.check_left()


def test_a_request_that_kills_every_worker_is_a_fault_in_the_end(server: Server, tmp_path: Path) -> None:
    with BusSite(server, tmp_path, max_crashes="2") as site:
        worker = site.start(supervised=True)
        site.wait_served(worker)
        asked = site.ask("back.vanish", 1, timeout=30)
        error = asked.result(30)
        assert isinstance(error, RemoteError), error
        assert error.reason == "poison"
        assert len(site.effects("start", 1)) == 2
        assert site.ask("back.work", 2, wait=True).result(20) == 2, "and the service lives"
        site.check_left()
        assert site.app.dead.list() == []


def test_a_frozen_responder_that_comes_back_does_not_answer_a_second_time(server: Server, tmp_path: Path) -> None:
    """Its word is refused, and who asked never hears it."""
    with BusSite(server, tmp_path, lease="1.5s") as site:
        zombie = site.start()
        site.wait_served(zombie)
        asked = site.ask_many("back.work", range(5), seconds=1.0)
        for n in range(5):
            site.wait_effect("start", n)
        zombie.signal(signal.SIGSTOP)
        heir = site.start()
        assert answers(asked) == list(range(5))
        assert {site.effects("end", n)[0].pid for n in range(5)} == {heir.pid}
        zombie.signal(signal.SIGCONT)
        eventually(lambda: "was refused" in zombie.log or "is not ours any more" in zombie.log, what="the refusal")
        assert site.ask("back.work", 9).result(20) == 9
        assert site.app.client.late_replies == 0
        assert site.queue.stats().totals["done"] == 6
        site.check_left()


def test_a_responder_that_is_stopped_hands_its_requests_on(server: Server, tmp_path: Path) -> None:
    with BusSite(server, tmp_path, grace="0.1s") as site:
        first = site.start()
        site.wait_served(first)
        asked = site.ask_many("back.work", range(5), seconds=0.5)
        for n in range(5):
            site.wait_effect("start", n)
        second = site.start()
        site.wait_served(first, second)
        assert first.stop() == 0
        assert answers(asked) == list(range(5))
        site.check_left()


def test_nobody_is_there_once_the_lease_of_a_killed_responder_has_ended(server: Server, tmp_path: Path) -> None:
    with BusSite(server, tmp_path, lease="1s") as site:
        worker = site.start()
        site.wait_served(worker)
        site.wait_idle(worker)
        assert site.ask("back.work", 1).result(20) == 1
        worker.kill()
        assert isinstance(site.ask("back.work", 2, timeout=0.3).result(20), RequestTimeout), "it may only be slow"
        site.server.command("SET", site.clock, SERVE_MS + 1, "PX", 60_000)  # let so much time pass
        began = time.monotonic()
        assert isinstance(site.ask("back.work", 3, timeout=60).result(20), NoResponders)
        assert time.monotonic() - began < 15
        site.server.command("DEL", site.clock)
        # what was handed to the dead one and cancelled is not run by the next
        site.start()
        site.check_left()
        assert not site.effects("start", 2)


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_wrong_clock_of_who_answers_changes_nothing(server: Server, tmp_path: Path, ahead: int) -> None:
    with BusSite(server, tmp_path) as site:
        worker = site.start(clock=ahead)
        site.wait_served(worker)
        assert answers(site.ask_many("back.work", range(10), seconds=0.1, timeout=5)) == list(range(10))
        assert site.ask("front.ask_to_work", 20, seconds=0.1, timeout=5).result(20) == 20
        late = site.ask("back.work", 30, seconds=30.0, timeout=0.4)
        assert isinstance(late.result(5), RequestTimeout)
        site.wait_effect("cancelled", 30, timeout=5)
        site.check_left()


# --- who asks


def asker(site: BusSite, count: int, seconds: float, timeout: float) -> subprocess.Popen[bytes]:
    """A process that asks so many times at once."""
    code = f"from tests.process.bus_services import ask_many; ask_many({count}, {seconds}, {timeout})"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
    env |= {
        "RELEVO_URL": site.server.url,
        "RELEVO_ENV": "test",
        "RELEVO_PREFIX": site.prefix,
        jobs.APP: site.name,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("concurrency", [200, 10], ids=["all run", "most wait"])
def test_nothing_is_left_of_the_requests_of_one_who_was_killed(
    server: Server, tmp_path: Path, concurrency: int
) -> None:
    """Those that have not begun by their deadline never do."""
    count, seconds, timeout = 200, 0.8, 2.5
    with BusSite(server, tmp_path, trace_max="0") as site:
        worker = site.start(concurrency=concurrency)
        site.wait_served(worker)
        assert answers(site.ask_many("back.work", range(1000, 1050))) == list(range(1000, 1050))
        eventually(lambda: site.queue.stats().living == 0)
        baseline = set(site.keys())
        process = asker(site, count, seconds, timeout)
        try:
            eventually(
                lambda: site.queue.stats().living == count and site.queue.stats().running >= min(concurrency, count),
                timeout=START,
                what="all are under way",
            )
        finally:
            process.kill()
            process.wait()
        killed = time.monotonic()
        eventually(lambda: site.queue.stats().living == 0, timeout=15, what="all have ended")
        endless = {key for key, ttl in site.keys().items() if ttl == -1} - baseline
        assert not endless, "no key without an end"
        eventually(lambda: set(site.keys()) <= baseline, timeout=10, what="and in the end no key at all")
        print(f"clean {time.monotonic() - killed:.1f} s after the kill")
        starts = [effect for effect in site.effects("start") if effect.n < count]
        assert all(effect.when - killed < timeout for effect in starts), "none began after its time"
        totals = site.queue.stats().totals
        assert totals["done"] - 50 + totals.get("expired", 0) + totals.get("dead", 0) == count
        if concurrency == 200:
            assert totals["unheard"] == count
        assert site.ask("back.work", 2000).result(10) == 2000


# --- the server


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_every_request_ends_when_the_server_does_under_traffic(mortal: Server, tmp_path: Path, how: str) -> None:
    with BusSite(mortal, tmp_path, lease="2s") as site:
        first, second = site.start(supervised=True), site.start()
        site.wait_served(second)
        over = threading.Event()
        found: list[Any] = []

        def ask_on(start: int) -> None:
            n = start
            while not over.is_set():
                n += 1
                found.append(site.ask("back.work", n, seconds=0.01, timeout=5).result(30))
                time.sleep(0.005)

        threads = [threading.Thread(target=ask_on, args=(start,)) for start in range(0, 1_000_000, 100_000)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                before = kinds(found)["answer"]
                eventually(lambda: kinds(found)["answer"] > before + 50, timeout=20, what="requests are answered")
                mortal.stop() if how == "stopped" else mortal.kill()
                mortal.start()
            before = kinds(found)["answer"]
            eventually(lambda: kinds(found)["answer"] > before + 50, timeout=20, what="and after the last restart")
        finally:
            over.set()
            for thread in threads:
                thread.join(40)
        assert not any(thread.is_alive() for thread in threads), "a request hangs"
        print(kinds(found))
        assert set(kinds(found)) <= {
            "answer",
            "RequestTimeout",
            "NoResponders",
            "ServerUnavailable",
            "ConnectionLost",
            "NotNow",
        }
        assert site.ask("back.work", -1, wait=True).result(20) == -1
        site.check_left()
        assert first.is_running
        assert "Traceback" not in second.log
