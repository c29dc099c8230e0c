"""Senders, responders, relays, callers and servers that are killed: each callback is settled once all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.store.plan import Call
from relevo.worker.kill_points import Point
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks
from tests.process import callback_services, harness
from tests.process.harness import AFTER_LEASES, Site, WorkerProcess
from tests.servers import Server
from tests.working import drained, working

ACTIONS, CALLBACKS = "embedding:actions", "ingestion:callbacks"
MESSAGES = 12
ENDS = ("done", "failed", "timeout", "late-timeout", "cancelled")


class BusSite(Site):
    """A site whose services have a bus of their own, and a clock that the test moves."""

    def __init__(self, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(server, directory)
        self._settings["prefix"] = self.name
        self._patch = monkeypatch
        self.app.close()
        self.app = self.another()
        self.queue = self.app.queue(CALLBACKS)
        self.sender = self.app.service("ingestion")

    def another(self) -> Relevo:
        """Another app object on this bus."""
        settings = {"url": self.server.url, "env": "test", "_clock_key": self.clock, **self._settings}
        return callback_services.build(self.name, **settings)

    def serve(self, service: str, *, wait: bool = False, **options: Any) -> WorkerProcess:
        """A worker process of `embedding` or of `ingestion`."""
        self._patch.setattr(harness, "TARGET", f"tests.process.callback_services:{service}")
        return self.start(wait=wait, **options)

    def send(self, numbers: range, **data: Any) -> None:
        """Send messages that must be answered within an hour; every third of them fails."""
        for n in numbers:
            self.sender.send(
                "embedding.generate",
                {"n": n, "fails": n % 3 == 0, **data},
                on_reply="ready",
                on_timeout="gave_up",
                on_progress="half",
                timeout="1h",
                context=n,
            )

    def run(self, code: str) -> subprocess.Popen[str]:
        """A process that is no worker."""
        code = f"from tests.process.callback_services import *; {code}"
        command = [sys.executable, "-c", code]
        return subprocess.Popen(command, env=self.environment(), stdout=subprocess.PIPE, text=True)

    def outbox(self, queue: str) -> int:
        """How many messages are on their way from a queue to others."""
        return self.app.engine.run(Call([b"HLEN", self.app.engine.keys_of(queue).key("letters")], int))

    def is_over(self) -> bool:
        """Whether nothing waits, runs or is on its way."""
        names = (ACTIONS, CALLBACKS, "ingestion:actions")
        return not any(self.app.queue(name).stats().living or self.outbox(name) for name in names)

    def finish(self, *, after: str = AFTER_LEASES) -> None:
        """A worker in this process does what is left, after that time."""
        self.move(after)
        with working(self.app):
            eventually(self.is_over, what="all callbacks were handled")

    def settled(self) -> dict[int, list[str]]:
        """The outcomes that handlers were called with, by the number of the message."""
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
        for n, outcomes in self.settled().items():
            assert len(set(outcomes)) == 1, f"{n} was settled with different outcomes: {outcomes}"
        self.check_left()

    def check_left(self) -> None:
        """Nothing is left without an end."""

        def eternal() -> list[str]:
            found = self.server.keys()
            return [key for key, ttl in found if self.name in key and ttl == -1]

        eventually(lambda: not leaks(self.server, self.name), what="nothing is lost")
        eventually(lambda: not eternal(), what=f"every key has a time limit: {eternal()}")


@pytest.fixture
def site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusSite]:
    with BusSite(server, tmp_path, monkeypatch) as site:
        yield site


# --- the sender


def test_a_sender_killed_after_any_of_its_calls_leaves_a_callback_that_ends(site: BusSite) -> None:
    """One queue is listed, the callback promised, the other queue listed, the data stored beside, the message sent."""
    senders = site.run("die_sending(1, 5)")
    assert senders.communicate(timeout=PATIENCE)[0].split() == ["-9"] * 5
    promised, sent = site.app.queue(CALLBACKS).stats().waiting, site.app.queue(ACTIONS).stats().ready
    assert (promised, sent) == (4, 1), "promised by the second call, sent by the last"
    with working(site.app):
        eventually(lambda: site.settled(), what="the message that was sent is answered")
    site.finish(after="2h")
    assert site.settled() == {2: ["late-timeout"], 3: ["late-timeout"], 4: ["late-timeout"], 5: ["done"]}
    site.check_once(range(2, 6))


def test_a_sender_killed_in_the_middle_of_many_is_called_back_for_each_that_it_sent(site: BusSite) -> None:
    sender = site.run("send_for_ever()")
    assert sender.stdout is not None
    try:
        acknowledged = [int(sender.stdout.readline()) for _ in range(100)]
    finally:
        sender.kill()
    acknowledged += [int(line) for line in sender.communicate()[0].splitlines() if line]
    with working(site.app):
        eventually(lambda: len(site.settled()) >= len(acknowledged), what="all that was sent is answered")
    site.finish(after="2h")  # the last one may have been promised and not sent
    outcomes = site.settled()
    assert {n: outcomes[n] for n in acknowledged} == {n: ["done"] for n in acknowledged}
    assert set(outcomes) <= {*acknowledged, acknowledged[-1] + 1}
    assert outcomes.get(acknowledged[-1] + 1, ["done"]) in (["done"], ["late-timeout"])
    site.check_left()


# --- the responder, and the worker that relays for it

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
    site.wait_killed(site.serve("embedding", fault=f"{point}:{PASSES[point]}", concurrency=4))
    site.finish()
    site.check_once(range(MESSAGES))
    assert {n: words for n, words in site.settled().items() if words != ["done" if n % 3 else "failed"]} == {}
    starts = Counter(effect.n for effect in site.effects("start"))
    assert sum(starts.values()) - MESSAGES <= 4, "again only what the dead one had in hand"
    assert {effect.n for effect in site.effects("half")} == set(range(MESSAGES))


def test_a_responder_killed_while_it_was_handed_a_message_is_followed_by_another(site: BusSite) -> None:
    victim = site.serve("embedding", fault="handed_over:1")
    key = site.app.engine.keys_of(ACTIONS).key("idle")
    eventually(lambda: site.app.engine.run(Call([b"ZCARD", key])), what="it waits")
    site.send(range(1, 2))
    site.wait_killed(victim)
    site.finish()
    site.check_once(range(1, 2))


def test_a_relay_killed_with_the_deadline_in_hand_is_followed_by_another(site: BusSite) -> None:
    site.send(range(MESSAGES))
    site.move("2h")
    for point in ("errand_taken:1", "errand_done:1"):
        site.wait_killed(site.serve("ingestion", fault=point))
        site.move(AFTER_LEASES)
    site.finish()
    site.check_once(range(MESSAGES))
    assert set(map(tuple, site.settled().values())) == {("late-timeout",)}


# --- the service that is called back


@pytest.mark.parametrize("point", ["claimed", "started", "returned", "settled"])
def test_a_callback_whose_worker_is_killed_is_handled_by_another(site: BusSite, point: Point) -> None:
    """At least once: a second time only those that the dead one had begun."""
    site.send(range(MESSAGES))
    drained(site.app, queues=[ACTIONS])
    eventually(lambda: site.app.queue(CALLBACKS).stats().ready == MESSAGES, what="all replies are there")
    victim = site.serve("ingestion", fault=f"{point}:1", concurrency=4)
    site.wait_killed(victim)
    site.finish()
    site.check_once(range(MESSAGES), killed=victim)


def begin(site: BusSite, numbers: range) -> None:
    """Let `ingestion` send messages with sticky callbacks from one of its workers, until it has sent them all."""
    for n in numbers:
        site.app.service("web").send("ingestion.begin", {"n": n})
    eventually(lambda: len(site.effects("begin")) == len(numbers), what="its workers have begun")
    eventually(lambda: not site.app.queue("ingestion:actions").stats().living, what="and have sent")


def wait_serving(site: BusSite, worker: WorkerProcess) -> None:
    """Until a worker can be handed callbacks and actions of `ingestion`."""

    def serves() -> bool:
        idle = [site.app.engine.keys_of(queue).key("idle") for queue in (CALLBACKS, "ingestion:actions")]
        lists = [*idle, site.app.engine.keys_of(CALLBACKS).key("instances")]
        return all(site.app.engine.run(Call([b"ZCARD", one])) for one in lists)

    eventually(serves, what="it waits for callbacks and actions")


def test_a_sticky_callback_of_a_worker_killed_before_the_reply_goes_to_another(site: BusSite) -> None:
    victim = site.serve("ingestion")
    wait_serving(site, victim)
    begin(site, range(7, 8))
    victim.kill()
    drained(site.app, queues=[ACTIONS])
    eventually(lambda: site.app.queue(CALLBACKS).stats().running, what="it is handed to the one that counts as alive")
    site.finish()
    assert [effect.pid for effect in site.effects("called", 7)] == [os.getpid()]
    site.check_once(range(7, 8))


def test_a_sticky_callback_of_a_worker_killed_when_it_was_handed_over_goes_to_another(site: BusSite) -> None:
    victim = site.serve("ingestion", fault="handed_over:2")
    wait_serving(site, victim)
    begin(site, range(7, 8))  # handed over to it, for the first time
    drained(site.app, queues=[ACTIONS])
    site.wait_killed(victim)
    assert site.effects("called") == []
    site.finish()
    assert [effect.pid for effect in site.effects("called", 7)] == [os.getpid()]
    site.check_once(range(7, 8))


def test_a_sticky_callback_comes_back_to_the_process_that_sent(site: BusSite) -> None:
    other = site.serve("ingestion")
    wait_serving(site, other)
    with working(site.app, queues=["ingestion:actions", CALLBACKS]):
        eventually(
            lambda: site.app.engine.run(Call([b"ZCARD", site.app.engine.keys_of(CALLBACKS).key("instances")])) == 2
        )
        begin(site, range(20))
        drained(site.another(), queues=[ACTIONS])
        eventually(lambda: len(site.effects("called")) == 20, what="all were called")
    began = {effect.n: effect.pid for effect in site.effects("begin")}
    assert {effect.n: effect.pid for effect in site.effects("called")} == began
    assert set(began.values()) <= {other.pid, os.getpid()}


# --- processes of actions, and servers


def test_an_action_in_a_process_of_its_own_reports_and_calls_back_also_if_that_process_is_killed(site: BusSite) -> None:
    site.serve("embedding")
    for n in (1, 2):
        data = {"n": n, "dies": n == 2}
        about: dict[str, Any] = {"on_reply": "ready", "on_progress": "half", "context": n, "tenant": "acme"}
        site.sender.send("embedding.crunch", data, **about)
    with working(site.app, queues=[CALLBACKS]):
        eventually(lambda: len(site.settled()) == 2, what="both were called back")
        eventually(lambda: len(site.effects("end")) == 4, what="what they sent was handled, too")
        eventually(site.is_over, what="it is over")
    assert site.settled() == {1: ["done"], 2: ["done"]}
    assert Counter(effect.n for effect in site.effects("half")) == {1: 1, 2: 2}
    assert len({effect.pid for effect in site.effects("start", 2)}) == 2
    site.check_once(range(1, 3))


def test_callbacks_are_settled_once_when_the_server_is_killed(
    mortal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BusSite(mortal, tmp_path, monkeypatch) as site:
        site.send(range(MESSAGES), seconds=0.1)
        for n in range(100, 105):
            site.sender.send("nowhere.at_all", on_reply="ready", on_timeout="gave_up", timeout="1h", context=n)
        workers = [site.serve(service, concurrency=2) for service in ("embedding", "ingestion")]
        for count in (1, 4, 7):  # what a dying server handed out and no worker received waits for the lease
            eventually(lambda: len(site.effects("start")) >= count, what=f"{count} have begun")
            mortal.kill()
            mortal.start()
        assert [worker.stop() for worker in workers] == [0, 0]
        site.move(AFTER_LEASES)
        with working(site.app):
            eventually(lambda: len(site.settled()) == MESSAGES, what="all that can be answered is")
        site.finish(after="2h")
        site.app.queue("nowhere:actions").clear()
        outcomes, late = site.settled(), range(100, 105)
        assert set(outcomes) == {*range(MESSAGES), *late}
        # A handler whose end the server did not acknowledge may run again; it is called with the same outcome.
        assert all(len(set(ones)) == 1 for ones in outcomes.values()), outcomes
        assert {n: ones[0] for n, ones in outcomes.items() if n >= 100} == dict.fromkeys(
            range(100, 105), "late-timeout"
        )
        calls = site.effects("called")
        assert len(calls) - len(outcomes) <= 6, "two in hand, three times"
        site.check_left()
