"""Senders, responders, relays, callers and servers that are killed: each callback is settled once all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo.store.plan import Call
from relevo.worker.faults import Point
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process import callback_services, harness, jobs
from tests.process.harness import START, Effect, Site, WorkerProcess
from tests.servers import Server
from tests.topologies import Cluster
from tests.working import drained, working

ACTIONS, CALLBACKS = "embedding:actions", "ingestion:callbacks"
MESSAGES = 12
ENDS = ("done", "failed", "timeout", "late-timeout", "cancelled")


class BusSite(Site):
    """A site whose services have a bus of their own."""

    def __init__(self, server: Server, directory: Path, **settings: str) -> None:
        super().__init__(server, directory, **settings)
        self._settings["prefix"] = self.name
        self.app.close()
        self.app = callback_services.build(self.name, url=server.url, env="test", **self._settings)
        self.queue = self.app.queue(CALLBACKS)
        self.sender = self.app.service("ingestion")

    def serve(self, services: str, **options: Any) -> WorkerProcess:
        """A worker process of `embedding`, `ingestion` or `both`."""
        harness.TARGET = f"tests.process.callback_services:{services}"
        return self.start(**options)

    def send(self, numbers: range, *, timeout: str = "1h", **data: Any) -> None:
        """Send messages; every third of them fails."""
        for n in numbers:
            self.sender.send(
                "embedding.generate",
                {"n": n, "fails": n % 3 == 0, **data},
                on_reply="ready",
                on_timeout="gave_up",
                on_progress="half",
                timeout=timeout,
                context=n,
            )

    def environment(self) -> dict[str, str]:
        """For a process that is no worker."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
        return env | {
            "RELEVO_URL": self.server.url,
            "RELEVO_ENV": "test",
            "RELEVO_PREFIX": self.name,
            jobs.APP: self.name,
            jobs.EFFECTS: str(self._effects),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }

    def is_over(self) -> bool:
        """Whether nothing waits, runs or is under way."""
        names = (ACTIONS, CALLBACKS, "ingestion:actions")
        return not any(self.app.queue(name).stats().living or self.letters(name) for name in names)

    def letters(self, queue: str) -> int:
        """How many are under way from a queue to others."""
        return self.app.run(Call([b"HLEN", self.app.keys_of(queue).key("letters")], int))

    def wait_over(self, *, timeout: float = START) -> None:
        eventually(self.is_over, timeout=timeout, what="all callbacks were handled")

    def wait_dies(self, victim: WorkerProcess) -> None:
        eventually(lambda: not victim.is_running, timeout=START, what="the worker dies")
        assert victim.process.returncode == -signal.SIGKILL, victim.log

    def settled(self) -> dict[int, list[str]]:
        """What the handlers were told, by the number of the message."""
        found: dict[int, list[str]] = {}
        for effect in self.effects():
            if effect.what in ENDS:
                found.setdefault(effect.n, []).append(effect.what)
        return found

    def check_once(self, numbers: range, *, killed: WorkerProcess | None = None) -> None:
        """Each callback was handled once; again only by others than the worker that was killed with it."""
        calls = self.effects("called")
        assert {effect.n for effect in calls} == set(numbers)
        again = [n for n, times in Counter(effect.n for effect in calls).items() if times > 1]
        assert not again or killed is not None, f"handled more than once: {again}"
        for n in again:
            first, *others = (effect.pid for effect in calls if effect.n == n)
            assert killed is not None and first == killed.pid and len(others) == 1, (
                f"{n} was handled by {first, others}"
            )
        for n, words in self.settled().items():
            assert len(set(words)) == 1, f"{n} was told different things: {words}"
        self.check_left()

    def check_left(self) -> None:
        """Nothing is left without an end."""

        def eternal() -> list[str]:
            found = self.server.keys()
            return [key for key, ttl in found if self.name in key and ttl == -1]

        eventually(lambda: not leaks(self.server, self.name), what="nothing is lost")
        eventually(lambda: not eternal(), what=f"every key has a time limit: {eternal()}")


@pytest.fixture(autouse=True)
def of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes import these services."""
    monkeypatch.setattr(harness, "TARGET", harness.TARGET)


@pytest.fixture
def site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusSite]:
    """A site whose workers in this process write effects, too."""
    with BusSite(server, tmp_path, lease="1s") as site:
        monkeypatch.setenv(jobs.EFFECTS, str(site._effects))
        yield site


# --- the sender


#: One queue is listed, the callback promised, the other queue listed, the data laid beside, and the message sent.
@pytest.mark.parametrize("calls", range(1, 6))
def test_a_sender_killed_after_any_of_its_calls_leaves_a_callback_that_ends(site: BusSite, calls: int) -> None:
    env = site.environment() | {callback_services.CALLS: str(calls)}
    code = "from tests.process.callback_services import die_sending; die_sending()"
    sender = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert sender.returncode == -signal.SIGKILL, sender.stderr
    promised, sent = site.app.queue(CALLBACKS).stats().waiting, site.app.queue(ACTIONS).stats().ready
    assert (promised, sent) == (int(calls >= 2), int(calls >= 5)), "promised first, sent last"
    with working(site.app):
        site.wait_over()
    assert site.settled() == ({} if calls < 2 else {1: ["late-timeout"]} if calls < 5 else {1: ["done"]})
    assert len(site.effects("called")) == promised
    site.check_left()


def test_a_sender_killed_in_the_middle_of_many_is_called_back_for_each_that_it_sent(site: BusSite) -> None:
    code = "from tests.process.callback_services import send_for_ever; send_for_ever()"
    sender = subprocess.Popen([sys.executable, "-c", code], env=site.environment(), stdout=subprocess.PIPE, text=True)
    assert sender.stdout is not None
    try:
        acknowledged = [int(sender.stdout.readline()) for _ in range(300)]
    finally:
        sender.kill()
    acknowledged += [int(line) for line in sender.stdout.read().splitlines() if line]
    sender.wait()
    sender.stdout.close()
    with working(site.app):
        site.wait_over()
    numbers = site.settled()
    assert set(acknowledged) <= set(numbers) <= {*acknowledged, acknowledged[-1] + 1}
    assert {tuple(words) for words in numbers.values()} <= {("done",), ("late-timeout",)}
    assert all(numbers[n] == ["done"] for n in acknowledged)
    site.check_left()


# --- the responder, and whoever relays for it

PASSES: dict[Point, int] = {
    "turn_sent": 2,
    "claimed": 1,
    "started": 5,
    "returned": 4,
    "settled": 3,
    "errand_taken": 1,
    "errand_done": 1,
}


@pytest.mark.parametrize("point", PASSES)
def test_callbacks_outlive_responders_and_relays_that_are_killed_at_any_point(site: BusSite, point: Point) -> None:
    site.send(range(MESSAGES), reports=1)
    victim = site.serve("embedding", fault=f"{point}:{PASSES[point]}", concurrency=4, wait=False)
    site.wait_dies(victim)
    with working(site.app):
        site.wait_over()
    site.check_once(range(MESSAGES))
    assert {n: words for n, words in site.settled().items() if words != ["done" if n % 3 else "failed"]} == {}
    starts = Counter(effect.n for effect in site.effects("start"))
    assert sum(starts.values()) - MESSAGES <= 4, "again only what the dead one had in hand"
    assert {effect.n for effect in site.effects("half")} == set(range(MESSAGES))


def test_a_responder_killed_while_it_was_handed_a_message_is_followed_by_another(site: BusSite) -> None:
    victim = site.serve("embedding", fault="handed_over:1")
    key = site.app.keys_of(ACTIONS).key("idle")
    eventually(lambda: site.app.run(Call([b"ZCARD", key])), timeout=START, what="it waits")
    site.send(range(1, 2))
    site.wait_dies(victim)
    with working(site.app):
        site.wait_over()
    site.check_once(range(1, 2))


def test_a_relay_killed_with_the_deadline_in_hand_is_followed_by_another(site: BusSite) -> None:
    site.send(range(MESSAGES), timeout="50ms")
    eventually(lambda: _are_due(site, MESSAGES), what="the deadlines have passed")
    for point in ("errand_taken:1", "errand_done:1"):
        site.wait_dies(site.serve("ingestion", fault=point, wait=False))
    with working(site.app):
        site.wait_over()
    site.check_once(range(MESSAGES))
    assert set(map(tuple, site.settled().values())) == {("late-timeout",)}


def _are_due(site: BusSite, count: int) -> bool:
    now = int(time.time() * 1000)
    found: int = site.app.run(Call([b"ZCOUNT", site.app.keys_of(CALLBACKS).key("errands"), b"-inf", now]))
    return found == count


# --- the one that is called back


@pytest.mark.parametrize("point", ["turn_sent", "claimed", "started", "returned", "settled"])
def test_a_callback_whose_worker_is_killed_is_handled_by_another(site: BusSite, point: Point) -> None:
    """At least once: a second time only those that the dead one had begun."""
    site.send(range(MESSAGES))
    drained(site.app, queues=[ACTIONS])
    eventually(lambda: site.app.queue(CALLBACKS).stats().ready == MESSAGES, what="all replies are there")
    victim = site.serve("ingestion", fault=f"{point}:{2 if point == 'turn_sent' else 1}", concurrency=4, wait=False)
    site.wait_dies(victim)
    with working(site.app):
        site.wait_over()
    site.check_once(range(MESSAGES), killed=victim)


def test_a_sticky_callback_of_a_worker_killed_before_the_reply_goes_to_another(site: BusSite) -> None:
    victim = site.serve("ingestion")
    eventually(lambda: _serves(site), timeout=START, what="it serves callbacks")
    site.app.service("web").send("ingestion.begin", {"n": 7})
    site.wait_effect("begin", 7)
    eventually(lambda: not site.app.queue("ingestion:actions").stats().living, what="it has sent and told so")
    victim.kill()
    drained(site.app, queues=[ACTIONS])
    eventually(lambda: site.app.queue(CALLBACKS).stats().running, what="it is handed to the one that is believed alive")
    began = time.monotonic()
    with working(site.app):
        called = site.wait_effect("called", 7)
        site.wait_over()
    assert called.pid == os.getpid()
    assert time.monotonic() - began < 10, "after a lease, which is a second here, and twelve by default"
    site.check_once(range(7, 8))


def test_a_sticky_callback_of_a_worker_killed_when_it_was_handed_over_goes_to_another(site: BusSite) -> None:
    victim = site.serve("ingestion", fault="handed_over:2", wait=True)
    idle = site.app.keys_of("ingestion:actions").key("idle")
    eventually(lambda: _serves(site) and site.app.run(Call([b"ZCARD", idle])), timeout=START, what="it waits")
    site.app.service("web").send("ingestion.begin", {"n": 7})  # handed over to it, for the first time
    site.wait_effect("begin", 7)
    eventually(lambda: not site.app.queue("ingestion:actions").stats().living, what="it has sent and told so")
    drained(site.app, queues=[ACTIONS])
    site.wait_dies(victim)
    assert site.effects("called") == []
    with working(site.app):
        called: Effect = site.wait_effect("called", 7)
        site.wait_over()
    assert called.pid == os.getpid()
    site.check_once(range(7, 8))


def test_a_sticky_callback_comes_back_to_the_process_that_sent(site: BusSite) -> None:
    mine, other = site.serve("ingestion", wait=False), site.serve("ingestion", wait=False)
    eventually(lambda: _serves(site) == 2, timeout=START, what="both serve callbacks")
    for n in range(20):
        site.app.service("web").send("ingestion.begin", {"n": n})
    with working(site.app, queues=[ACTIONS]):
        eventually(lambda: len(site.effects("called")) == 20, timeout=START, what="all were called")
    began = {effect.n: effect.pid for effect in site.effects("begin")}
    assert {effect.n: effect.pid for effect in site.effects("called")} == began
    assert set(began.values()) <= {mine.pid, other.pid}


def _serves(site: BusSite) -> int:
    found: int = site.app.run(Call([b"ZCARD", site.app.keys_of(CALLBACKS).key("instances")]))
    return found


# --- on a cluster, where messages and callbacks are on different nodes


@pytest.mark.slow
def test_callbacks_find_their_way_over_the_nodes_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jobs.EFFECTS, str(tmp_path / "effects"))
    with Cluster(tmp_path) as cluster:
        settings = {"url": cluster.url, "env": "test", "lease": "1s", "signing_keys": ["k1:0123456789abcdef"]}
        app = callback_services.build("clustered", **settings)
        site = app.service("ingestion")
        said: dict[str, Any] = {"on_reply": "ready", "on_timeout": "gave_up", "on_progress": "half"}
        with working(app):
            eventually(lambda: app.bus.worker, what="the worker runs")
            for n in range(12):
                text = "x" * (100_000 if n % 2 else 0)
                data = {"n": n, "fails": n % 3 == 0, "reports": 1, "text": text}
                site.send("embedding.generate", data, context=n, sticky=n % 4 == 0, **said)
            site.send("nowhere.at_all", context=12, timeout=0.2, **said)
            eventually(lambda: len(_lines(tmp_path, "called")) == 13, timeout=START, what="all were called back")
            eventually(lambda: not app.queue(CALLBACKS).stats().living, what="it is over")
        assert sorted(_lines(tmp_path, "called")) == list(range(13))
        assert sorted(_lines(tmp_path, "half")) == list(range(12))
        assert sorted(_lines(tmp_path, "failed")) == [0, 3, 6, 9]
        assert _lines(tmp_path, "late-timeout") == [12]
        app.close()


def _lines(directory: Path, what: str) -> list[int]:
    text = (directory / "effects").read_text() if (directory / "effects").exists() else ""
    return [int(line.split()[3]) for line in text.splitlines() if line.split()[2] == what]


# --- everybody


def test_callbacks_come_after_all_processes_of_the_sender_were_killed_and_started_anew(site: BusSite) -> None:
    first = site.serve("ingestion")
    site.send(range(5))
    first.kill()
    responder = site.serve("embedding", wait=False)
    eventually(lambda: len(site.effects("end")) == 5, timeout=START, what="the work is done meanwhile")
    eventually(lambda: site.app.queue(CALLBACKS).stats().ready == 5, what="the replies wait")
    eventually(lambda: not site.letters(ACTIONS), what="and the responder knows: nobody else would see to its letters")
    responder.kill()
    second = site.serve("ingestion", wait=False)
    site.wait_over()
    site.check_once(range(5))
    assert {effect.pid for effect in site.effects("called")} == {second.pid}


def test_an_action_in_a_process_of_its_own_reports_and_calls_back_also_if_that_process_is_killed(site: BusSite) -> None:
    site.serve("embedding", wait=False)
    for n in (1, 2):
        data = {"n": n, "dies": n == 2}
        about: dict[str, Any] = {"on_reply": "ready", "on_progress": "half", "context": n, "tenant": "acme"}
        site.sender.send("embedding.crunch", data, **about)
    with working(site.app, queues=[CALLBACKS]):
        eventually(lambda: len(site.settled()) == 2, timeout=START, what="both were called back")
        eventually(lambda: len(site.effects("end")) == 4, timeout=START, what="what they sent was handled, too")
        site.wait_over()
    assert site.settled() == {1: ["done"], 2: ["done"]}
    assert Counter(effect.n for effect in site.effects("half")) == {1: 1, 2: 2}
    assert len({effect.pid for effect in site.effects("start", 2)}) == 2
    site.check_once(range(1, 3))


@pytest.mark.slow
def test_callbacks_are_settled_once_when_the_server_is_killed(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with (
        Server(engine, directory=tmp_path / "mortal", config=config) as mortal,
        BusSite(mortal, tmp_path, lease="2s") as site,
    ):
        site.send(range(MESSAGES), seconds=0.2)
        site.send(range(100, 105), timeout="4s", seconds=30)  # these take longer than anybody waits
        site.serve("embedding", concurrency=2, wait=False)
        site.serve("ingestion", concurrency=2, wait=False)
        for n in (1, 5, 9):
            site.wait_effect("start", n)
            mortal.kill()
            mortal.start()
        eventually(lambda: len(site.settled()) == MESSAGES + 5, timeout=40, what="all were called back")
        for letter in site.app.queue(ACTIONS).jobs("running"):
            site.app.job(letter.id, queue=ACTIONS).cancel()
        site.app.queue(ACTIONS).clear()
        site.wait_over(timeout=30)
        calls = Counter(effect.n for effect in site.effects("called"))
        words = site.settled()
        assert set(calls) == {*range(MESSAGES), *range(100, 105)}
        # A handler whose end the server forgot, or could not hear in time, may run again; it is told the same then.
        assert all(len(set(told)) == 1 for told in words.values()), words
        assert {n: told[0] for n, told in words.items() if n >= 100} == dict.fromkeys(range(100, 105), "late-timeout")
        assert sum(calls.values()) - len(calls) <= 6, calls
        site.check_left()
