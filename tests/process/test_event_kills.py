"""Publishers, relays, subscribers and servers are killed: subscribers hear every event that was acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo
from relevo.bus.event_store import publish
from relevo.bus.subscription_store import Subscription, subscribe, subscriptions
from relevo.engine.lists import known_queues
from relevo.errors import StoreError
from relevo.store.plan import Call
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks
from tests.process import event_services, harness
from tests.process.event_services import SLOW
from tests.process.harness import AFTER_LEASES, Site, WorkerProcess
from tests.servers import Server
from tests.working import working

#: Publishing to two subscribers takes so many calls: the event, the note of the task, a queue each, and its receipt.
CALLS = 5


class BusSite(Site):
    """A site with a bus of its own, and a clock that the test moves."""

    def __init__(self, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prefix = f"e{uuid4().hex[:12]}"
        super().__init__(server, directory, prefix=self.prefix)
        self._patch = monkeypatch
        monkeypatch.setattr(harness, "TARGET", "tests.process.event_services:app")
        self.app.close()
        self.app = self.another("")
        self.publishers: list[subprocess.Popen[str]] = []

    def another(self, services: str) -> Relevo:
        """Another app on this bus, with these services."""
        settings = {"url": self.server.url, "env": "test", "_clock_key": self.clock, **self._settings}
        return event_services.build(self.name, services, **settings)

    # processes
    def serve(self, services: str, *, wait: bool = True, **order: Any) -> WorkerProcess:
        """A worker process with these services; `wait`: until its subscriptions are known."""
        self._patch.setenv(event_services.SERVICES, services)
        worker = self.start(wait=wait, **order)
        if wait:
            eventually(lambda: self._hears(worker, services), what=f"{services} hear")
        return worker

    def _hears(self, worker: WorkerProcess, services: str) -> bool:
        known = {one.queue.partition(":notifications:")[0] for one in self.known()}
        return known >= {f"{name}:{worker.ids[-1]}" if name.endswith("s") else name for name in services.split(",")}

    def known(self) -> list[Subscription]:
        """What is subscribed to."""
        found: list[Subscription] = self.app.engine.run(subscriptions(self.app.engine.bus_keys))
        return found

    def register(self, *services: str) -> None:
        """Subscribe for services that have no worker yet."""
        rows = [Subscription(pattern="shop.sold", service=name, queue=self.queue_of(name)) for name in services]
        self.app.engine.run(subscribe(self.app.engine.bus_keys, rows))

    def publisher(self, code: str) -> subprocess.Popen[str]:
        """A process that publishes."""
        command = [sys.executable, "-c", f"from tests.process.event_services import *; {code}"]
        env = self.environment(**{event_services.SERVICES: ""})
        started = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.publishers.append(started)
        return started

    def __exit__(self, *about: Any) -> None:
        for one in self.publishers:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.communicate()
        super().__exit__(*about)

    # looking
    def queue_of(self, service: str) -> str:
        return f"{service}:notifications:shop.sold"

    def numbers(self, what: str) -> list[int]:
        return [effect.n for effect in self.effects(what)]

    def undelivered(self) -> int:
        """Events that wait to be delivered."""
        return int(self.app.engine.run(Call([b"HLEN", self.app.engine.bus_keys.key("letters")])))

    def finish(self, numbers: set[int], services: str = "mail,audit") -> None:
        """After all leases a worker in this process does what is left: each service hears all these events."""
        self.move(AFTER_LEASES)
        app = self.another(services)
        with working(app):
            for name in services.split(","):
                eventually(lambda: set(self.numbers(name)) >= numbers, what=f"{name} heard {len(numbers)} events")
            eventually(self.is_quiet, what="all queues are empty")
        app.close()
        self.check_left()

    def is_quiet(self) -> bool:
        living = [self.app.queue(one.queue).stats().living for one in self.known()]
        return not any(living) and not self.undelivered()

    def check_left(self) -> None:
        eventually(
            lambda: not leaks(self.server, self.prefix),
            what=f"nothing without an end: {leaks(self.server, self.prefix)}",
        )


@pytest.fixture
def site(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusSite]:
    with BusSite(server, tmp_path, monkeypatch) as site:
        yield site


# --- publishers


def test_a_publisher_may_be_killed_after_any_step(site: BusSite) -> None:
    """What was stored is heard by all."""
    site.register("mail", "audit")
    publishers = site.publisher(f"publish_and_signal({int(signal.SIGKILL)}, {CALLS})")
    assert publishers.communicate(timeout=PATIENCE)[0].split() == ["-9"] * CALLS
    assert site.undelivered() == 4, "all but the last died before they could report it as delivered"
    site.finish(set(range(1, CALLS + 1)))
    for name in ("mail", "audit"):
        assert all(count <= 2 for count in Counter(site.numbers(name)).values()), "twice if it was handled before"


def test_publishers_that_are_killed_in_the_middle_lose_no_event_that_they_published(site: BusSite) -> None:
    with working(site.another("mail,audit")):
        eventually(lambda: len(site.known()) == 2, what="both are subscribed")
        victims = [site.publisher(f"publish_from({start})") for start in (0, 10_000)]
        for start in (0, 10_000):
            eventually(lambda: sum(n // 10_000 == start // 10_000 for n in site.numbers("published")) > 50, what="load")
        for victim in victims:
            victim.kill()
            victim.wait()
    published = site.numbers("published")
    assert len(set(published)) == len(published) > 100
    site.finish(set(published))
    extra = set(site.numbers("mail")) - set(published)
    assert len(extra) <= 2, "each of the two may have had one more under way"
    assert extra == set(site.numbers("audit")) - set(published), "which all hear, or none"


def test_a_publisher_that_was_frozen_on_the_way_goes_on_and_does_no_harm(site: BusSite) -> None:
    site.register("mail", "audit")
    frozen = site.publisher(f"publish_and_signal({int(signal.SIGSTOP)}, 4)")
    eventually(lambda: site.undelivered() == 4, what="all of them stored their event")
    site.finish({1, 2, 3, 4})
    os.killpg(frozen.pid, signal.SIGCONT)
    assert frozen.communicate(timeout=PATIENCE)[0].split() == ["0"] * 4
    site.finish({1, 2, 3, 4})
    for name in ("mail", "audit"):
        assert all(count <= 3 for count in Counter(site.numbers(name)).values()), "each of those that carried it"


# --- relays


def test_a_worker_that_is_killed_while_it_carries_events_is_followed_by_another(site: BusSite) -> None:
    """Events whose publisher died, and relays that die on the way."""
    site.register("mail", "audit")
    for n in range(300):  # published, and not delivered
        body = b'{"t":"shop.sold","h":{"o":"event","f":"shop"},"k":{"n":%d}' % n
        site.app.engine.run(publish(site.app.engine.bus_keys, "shop.sold", site.app.engine.new_id(), body))
    for _ in range(2):
        site.move(AFTER_LEASES)
        victim = site.serve("mail", wait=False)
        eventually(lambda: site.undelivered() < 300, what="it delivers")
        victim.kill()
    site.finish(set(range(300)))


# --- subscribers


def test_events_in_the_hands_of_a_killed_subscriber_are_heard_by_the_next_one(site: BusSite) -> None:
    site.register("audit")  # which comes later
    victim = site.serve("mail")
    shop = site.app.service("shop")
    numbers = {*range(SLOW, SLOW + 10), *range(10)}
    for n in numbers:
        assert shop.publish("sold", {"n": n}) == 2
    eventually(lambda: set(site.numbers("mail-began")) == numbers, what="it works on them")
    eventually(lambda: set(site.numbers("mail")) == set(range(10)), what="and has ten in hand")
    victim.kill()
    for n in range(20, 30):
        assert shop.publish("sold", {"n": n}) == 2, "it is still subscribed"
    site.finish({*numbers, *range(20, 30)})
    assert sorted(site.numbers("audit")) == sorted({*numbers, *range(20, 30)}), "the other one heard all once"


def test_nothing_is_left_of_a_broadcast_to_a_killed_process(site: BusSite) -> None:
    victim, shop = site.serve("caches"), site.app.service("shop")
    with working(site.another("caches")):
        eventually(lambda: len(site.known()) == 2, what="both are subscribed")
        assert shop.publish("sold", {"n": 1}) == 2
        eventually(lambda: len(site.numbers("caches")) == 2, what="each of them heard it")
        victim.kill()
        assert shop.publish("sold", {"n": 2}) == 2, "its death is not known yet"
        eventually(lambda: len(site.numbers("caches")) == 3, what="the live one heard it")
        (dead,) = [one.queue for one in site.known() if victim.ids[-1] in one.queue]
        assert site.app.queue(dead).stats().living == 1
    for time in ("31s", "6s"):
        site.move(time)
        site.app.engine.run(Call(["DEL", site.app.engine.bus_keys.key("leader")]))
        assert not site.app.sweep(dry_run=False).skipped
    assert site.app.queue(dead).stats().living == 0
    assert site.known() == []
    assert shop.publish("sold", {"n": 3}) == 0
    assert dead not in site.app.engine.run(known_queues(site.app.engine))
    site.check_left()


# --- servers


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_no_acknowledged_event_is_lost_when_the_server_ends_under_load(
    mortal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with BusSite(mortal, tmp_path, monkeypatch) as site:
        worker = site.serve("mail,audit")
        acknowledged: set[int] = set()
        over = threading.Event()

        def load() -> None:
            shop, n = site.app.service("shop"), 0
            while not over.wait(0.002):
                n += 1
                try:
                    shop.publish("sold", {"n": n})
                    acknowledged.add(n)
                except StoreError:
                    pass

        publisher = threading.Thread(target=load)
        publisher.start()
        try:
            for rounds in range(1, 4):
                eventually(lambda: len(acknowledged) > rounds * 40, what="load")
                mortal.stop() if how == "stopped" else mortal.kill()
                mortal.start()
            before = len(acknowledged)
            eventually(lambda: len(acknowledged) > before + 20, what="publishing goes on")
        finally:
            over.set()
            publisher.join(PATIENCE)
        assert worker.stop() == 0
        site.finish(acknowledged)
        assert "Traceback" not in worker.log
