"""Senders of requests, responders and the server are killed: every request ends once, and nothing stays."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo
from relevo.engine.offers_store import SERVE_MS
from relevo.errors import BusError, NoResponders, RemoteError, RequestTimeout, StoreError
from relevo.store.plan import Call
from relevo.worker.kill_points import Point
from tests.answering import kinds
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import lasting, leaks
from tests.process import bus_services, harness
from tests.process.harness import AFTER_LEASES, Site, WorkerProcess
from tests.servers import Server
from tests.working import working

#: The points, and the pass at which to die. The worker has a lane for each queue, and each begins with a turn.
PASSES: dict[Point, int] = {"claimed": 1, "handed_over": 1, "started": 1, "returned": 1, "settled": 9}
#: At these no request has done anything: a second start would be one too many.
BEFORE_ANY_START = ("claimed", "handed_over")
QUEUE = "back:actions"
SERVED = (QUEUE, "front:actions", "apart:actions")
COUNT = 10
HOUR = 3600.0


class BusSite(Site):
    """A site with the services of `bus_services` on a bus of its own, and an event loop that sends requests to them.

    The test moves its clock.
    """

    def __init__(self, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        self.prefix = f"b{uuid4().hex[:12]}"
        super().__init__(server, directory, prefix=self.prefix, **settings)
        monkeypatch.setattr(harness, "TARGET", "tests.process.bus_services:app")
        self.app.close()
        self.app = Relevo(self.name, url=server.url, env="test", _clock_key=self.clock, **self._settings)
        self.queue = self.app.queue(QUEUE)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="asks", daemon=True)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self.app.aclose(), self._loop).result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
        super().__exit__(kind, error, trace)

    # responders
    @contextmanager
    def answering_here(self) -> Iterator[None]:
        """A worker of these services in this process."""
        patient = {name: float(value.removesuffix("s")) for name, value in PATIENT.items()}
        bound = bus_services.app.engine.rebound(
            url=self.server.url, env="test", prefix=self.prefix, clock_key=self.clock, **patient
        )
        with bound, working(bus_services.app):
            yield

    def wait_served(self, *workers: WorkerProcess) -> None:
        """Until these workers are known to serve."""
        keys = [self.app.engine.keys_of(queue).key("instances") for queue in SERVED]

        def known() -> bool:
            alive: list[list[bytes]] = [self.app.engine.run(Call([b"ZRANGE", key, 0, -1])) for key in keys]
            return all(worker.ids and worker.ids[-1].encode() in ids for worker in workers for ids in alive)

        eventually(known, what="the workers are known to serve")

    # requests
    def ask(self, type: str, n: int, *, timeout: float = HOUR, wait: bool = False, **data: Any) -> Future[Any]:
        """Send a request, and give what becomes of it: the answer, or the error as a value."""

        async def ask() -> Any:
            try:
                return await self.app.service("me").arequest(type, {"n": n, **data}, timeout=timeout, wait=wait)
            except (BusError, StoreError) as error:
                return error

        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def ask_many(self, type: str, numbers: range, **about: Any) -> list[Future[Any]]:
        return [self.ask(type, n, **about) for n in numbers]

    # what is left
    def keys(self) -> dict[str, int]:
        """All keys of this bus, with their time to live.

        Without how long its tasks took, which workers write later, and without counters of calls.
        """
        found = dict(self.server.keys())
        mine = lasting(key for key in found if self.prefix in key)
        return {key: found[key] for key in mine if not key.endswith(":timings")}

    def check_left(self) -> None:
        eventually(lambda: self.queue.stats().living == 0, what="no message is left")
        eventually(lambda: not leaks(self.server, self.prefix), what="nothing is left without an end")

    def check_runs(self, numbers: range, *, duplicates: int) -> None:
        """Each of them ran, and a second time only where the worker died before it settled it."""
        starts = Counter(effect.n for effect in self.effects("start"))
        assert set(starts) == set(numbers)
        again = sum(starts.values()) - len(starts)
        assert again <= duplicates, f"ran more than once: {[n for n in starts if starts[n] > 1]}"


def answers(asked: list[Future[Any]]) -> list[Any]:
    """What became of all of them; none may hang."""
    until = time.monotonic() + PATIENCE
    return [one.result(max(0.0, until - time.monotonic())) for one in asked]


@pytest.fixture
def site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusSite]:
    with BusSite(server, tmp_path, monkeypatch) as site:
        yield site


# --- responders


@pytest.mark.parametrize("point", PASSES)
def test_requests_outlive_a_responder_that_is_killed_at_any_point(site: BusSite, point: Point) -> None:
    """Each is answered once, by the next responder."""
    numbers = range(COUNT)
    asked = []
    if point != "handed_over":
        asked = site.ask_many("back.work", numbers, wait=True)
        eventually(lambda: site.queue.stats().ready == COUNT, what="they wait for a responder")
    victim = site.start(fault=f"{point}:{PASSES[point]}", wait=False)
    if not asked:  # a request is handed over if it comes alone, to a worker that waits
        site.wait_served(victim)
        site.wait_idle(victim)
        asked = [site.ask("back.work", numbers[0])]
    site.wait_killed(victim)
    asked += site.ask_many("back.work", numbers[len(asked) :], wait=True)
    site.move(AFTER_LEASES)
    with site.answering_here():
        assert answers(asked) == list(numbers)
        site.check_left()
    site.check_runs(numbers, duplicates=0 if point in BEFORE_ANY_START else COUNT)
    assert site.app.engine.client.late_replies == 0
    assert "ended" not in str(site.keys()), "answers that were received are not kept"


def test_requests_of_a_killed_worker_are_answered_by_its_supervisors_next_one_although_leases_are_long(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of actions on the loop, in threads, and of one that itself waits for a request."""
    with BusSite(server, tmp_path, monkeypatch, lease="1h") as site:
        worker = site.start(supervised=True, wait=False)
        site.wait_served(worker)
        asked = [
            *site.ask_many("back.hold", range(5)),
            *site.ask_many("back.hold_thread", range(5, 8)),
            site.ask("front.ask_to_hold", 8),
        ]
        pids = {site.wait_effect("start", n).pid for n in range(9)}
        assert len(pids) == 1
        os.kill(pids.pop(), signal.SIGKILL)
        assert answers(asked) == list(range(9))
        assert len(site.effects("asked", 8)) == 2
        site.check_left()


def test_a_request_that_kills_every_worker_is_a_fault_in_the_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BusSite(server, tmp_path, monkeypatch, max_crashes="2") as site:
        worker = site.start(supervised=True, wait=False)
        site.wait_served(worker)
        error = site.ask("back.vanish", 1).result(PATIENCE)
        assert isinstance(error, RemoteError), error
        assert error.reason == "poison"
        assert len(site.effects("start", 1)) == 2
        assert site.ask("back.work", 2, wait=True).result(PATIENCE) == 2, "and the service lives"
        site.check_left()
        assert site.app.dead.list() == []


def test_a_frozen_responder_that_comes_back_does_not_answer_a_second_time(site: BusSite) -> None:
    """What it sends is refused, and the sender of the request does not receive it."""
    zombie = site.start(wait=False)
    site.wait_served(zombie)
    asked = site.ask_many("back.hold", range(5))
    for n in range(5):
        site.wait_effect("start", n)
    zombie.signal(signal.SIGSTOP)
    site.move(AFTER_LEASES)
    with site.answering_here():
        assert answers(asked) == list(range(5))
        assert {site.effects("end", n)[0].pid for n in range(5)} == {os.getpid()}
        Path(bus_services.gate()).touch()
        zombie.signal(signal.SIGCONT)
        eventually(lambda: "was refused" in zombie.log or "has lost its lease" in zombie.log, what="the refusal")
        assert site.ask("back.work", 9).result(PATIENCE) == 9
        site.check_left()
    assert site.app.engine.client.late_replies == 0
    assert site.queue.stats().totals["done"] == 6


def test_a_responder_that_is_stopped_hands_its_requests_on(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BusSite(server, tmp_path, monkeypatch, grace="0.1s") as site:
        first = site.start(wait=False)
        site.wait_served(first)
        asked = site.ask_many("back.hold", range(5))
        for n in range(5):
            site.wait_effect("start", n)
        with site.answering_here():
            assert first.stop() == 0
            assert answers(asked) == list(range(5))
            site.check_left()


def test_requests_are_refused_once_a_killed_responder_no_longer_counts_as_alive(site: BusSite) -> None:
    worker = site.start(wait=False)
    site.wait_served(worker)
    site.wait_idle(worker)
    assert site.ask("back.work", 1).result(PATIENCE) == 1
    worker.kill()
    assert isinstance(site.ask("back.work", 2, timeout=0.3).result(PATIENCE), RequestTimeout), "it may only be slow"
    site.move(f"{SERVE_MS + 1}ms")
    assert isinstance(site.ask("back.work", 3).result(PATIENCE), NoResponders)
    site.move(AFTER_LEASES)
    with site.answering_here():
        site.check_left()
    assert not site.effects("start", 2), "what was handed to the dead one and cancelled is not run by the next"


@pytest.mark.parametrize("ahead", [3600, -3600])
def test_a_wrong_clock_of_a_responder_changes_nothing(site: BusSite, ahead: int) -> None:
    worker = site.start(clock=ahead, wait=False)
    site.wait_served(worker)
    assert answers(site.ask_many("back.work", range(10), timeout=HOUR / 2)) == list(range(10))
    assert site.ask("front.ask_to_work", 20, timeout=HOUR / 2).result(PATIENCE) == 20

    def started_and_timed_out(n: int) -> bool:
        assert isinstance(site.ask("back.work", n, seconds=600, timeout=0.4).result(PATIENCE), RequestTimeout)
        return bool(site.effects("start", n))  # a slow machine may have no time to start it

    late = next(n for n in itertools.count(30) if started_and_timed_out(n))
    site.wait_effect("cancelled", late)
    site.check_left()


# --- senders


def test_nothing_is_left_of_the_requests_of_a_killed_sender(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have begun end; those that have not begun by their deadline never do."""
    count, concurrency = 60, 10
    with BusSite(server, tmp_path, monkeypatch, trace_max="0", lease="2h") as site:
        site.queue.limit(concurrency=concurrency)  # by the server, so that none is claimed ahead
        worker = site.start(concurrency=5 * concurrency, wait=False)
        site.wait_served(worker)
        assert answers(site.ask_many("back.work", range(1000, 1020))) == list(range(1000, 1020))
        eventually(lambda: site.queue.stats().living == 0)
        baseline = set(site.keys())
        code = f"from tests.process.bus_services import ask_many; ask_many({count}, 600)"
        sender = subprocess.Popen([sys.executable, "-c", code], env=site.environment(), stdin=subprocess.DEVNULL)
        try:
            eventually(
                lambda: site.queue.stats().living == count and len(site.effects("start")) == 20 + concurrency,
                what="all are under way",
            )
        finally:
            sender.kill()
            sender.wait()
        site.move("610s")
        Path(bus_services.gate()).touch()
        eventually(lambda: site.queue.stats().living == 0, what="all have ended")
        kept = {ttl for key, ttl in site.keys().items() if key not in baseline}
        assert kept <= set(range(61)), "no key is kept for more than a minute"
        assert len(site.effects("start")) == 20 + concurrency, "none began after its deadline"
        totals = site.queue.stats().totals
        assert (totals["done"] - 20, totals["expired"], totals["unheard"]) == (concurrency, count - concurrency, count)
        assert site.ask("back.work", 2000, wait=True).result(PATIENCE) == 2000


# --- the server


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_every_request_ends_when_the_server_does_under_traffic(
    mortal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with BusSite(mortal, tmp_path, monkeypatch) as site:
        worker = site.start(supervised=True, wait=False)
        site.wait_served(worker)
        over = threading.Event()
        found: list[Any] = []

        def ask_on(start: int) -> None:
            for n in itertools.count(start):
                if over.is_set():
                    return
                found.append(site.ask("back.work", n, seconds=0.01, timeout=2).result(PATIENCE))

        def wait_answers() -> None:
            before = kinds(found)["answer"]
            eventually(lambda: kinds(found)["answer"] > before + 30, what="requests are answered")

        threads = [threading.Thread(target=ask_on, args=(start,)) for start in range(0, 1_000_000, 100_000)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(2):
                wait_answers()
                mortal.stop() if how == "stopped" else mortal.kill()
                mortal.start()
            wait_answers()
        finally:
            over.set()
            for thread in threads:
                thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads), "a request hangs"
        print(kinds(found))
        away = {"ServerUnavailable", "OutcomeUnknown", "ConnectionLost", "NotNow"}
        assert set(kinds(found)) <= {"answer", "RequestTimeout", "NoResponders", *away}
        assert site.ask("back.work", -1, wait=True).result(PATIENCE) == -1
        assert worker.stop() == 0
        assert "Traceback" not in worker.log
        site.move(AFTER_LEASES)  # for what the dying server handed out and the worker did not receive
        with site.answering_here():
            site.check_left()
