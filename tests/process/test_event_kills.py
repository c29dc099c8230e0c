"""Publishers, relays, subscribers and servers are killed: who subscribed hears every event that was acknowledged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from relevo import Relevo
from relevo.errors import StoreError
from relevo.lists import known_queues
from relevo.store.events import publish
from relevo.store.plan import Call
from relevo.store.subscriptions import Subscription, subscribe, subscriptions
from tests.eventually import eventually
from tests.leaks import leaks
from tests.process import event_services, harness, jobs
from tests.process.event_services import SLOW
from tests.process.harness import START, Site, WorkerProcess
from tests.servers import Server

#: Publishing to two subscribers takes so many calls: the letter, the note of the task, a queue each, and its receipt.
CALLS = 5


class BusSite(Site):
    """A site with a bus of its own."""

    def __init__(self, server: Server, directory: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
        self.prefix = f"e{uuid4().hex[:12]}"
        super().__init__(server, directory, prefix=self.prefix, **settings)
        self._patch = monkeypatch
        monkeypatch.setenv(jobs.EFFECTS, str(self._effects))
        self.app.close()
        self.app = self.another()
        self.publishers: list[subprocess.Popen[bytes]] = []

    def another(self, **settings: Any) -> Relevo:
        """Another app on this bus, that serves nothing."""
        return event_services.build(
            self.name, "", **{"url": self.server.url, "env": "test", **self._settings, **settings}
        )

    # processes
    def serve(self, services: str, *, wait: bool = True, **order: Any) -> WorkerProcess:
        """A worker process with these services, when its subscriptions are known."""
        self._patch.setenv(event_services.SERVICES, services)
        worker = self.start(wait=wait, **order)
        if wait:
            eventually(lambda: self._hears(worker, services), timeout=START, what=f"{services} hear")
        return worker

    def _hears(self, worker: WorkerProcess, services: str) -> bool:
        known = {one.queue.partition(":notifications:")[0] for one in self.known()}
        return known >= {f"{name}:{worker.ids[-1]}" if name.endswith("s") else name for name in services.split(",")}

    def known(self) -> list[Subscription]:
        """What is subscribed to."""
        found: list[Subscription] = self.app.run(subscriptions(self.app.bus_keys))
        return found

    def register(self, *services: str) -> None:
        """Subscribe for services that nobody serves yet."""
        rows = [Subscription("shop.sold", name, self.queue_of(name)) for name in services]
        self.app.run(subscribe(self.app.bus_keys, rows))

    def publisher(self, *arguments: object) -> subprocess.Popen[bytes]:
        """A process that publishes."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
        env |= {f"RELEVO_{name.upper()}": value for name, value in self._settings.items()}
        env |= {
            "RELEVO_URL": self.server.url,
            "RELEVO_ENV": "test",
            jobs.APP: self.name,
            jobs.EFFECTS: str(self._effects),
            event_services.SERVICES: "",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-m", "tests.process.event_services", *map(str, arguments)]
        self.publishers.append(subprocess.Popen(command, env=env, start_new_session=True))
        return self.publishers[-1]

    def __exit__(self, *about: Any) -> None:
        for one in self.publishers:
            one.kill()
            one.wait()
        super().__exit__(*about)

    # looking
    def queue_of(self, service: str) -> str:
        return f"{service}:notifications:shop.sold"

    def numbers(self, what: str) -> list[int]:
        return [effect.n for effect in self.effects(what)]

    def letters(self) -> int:
        """Events that wait to be delivered."""
        return int(self.app.run(Call([b"HLEN", self.app.bus_keys.key("letters")])))

    def wait_due(self) -> None:
        """Until whoever comes by may deliver what a dead process had in hand."""
        key = self.app.bus_keys.key("errands")

        def are_due() -> bool:
            rows: list[bytes] = self.app.run(Call([b"ZRANGE", key, 0, -1, b"WITHSCORES"]))
            now_ms = self.app.run(self.app.now_ms())
            return all(float(score) <= now_ms for score in rows[1::2])

        eventually(are_due, what="the time of the dead one is up")

    def check_heard(self, numbers: set[int], *services: str, timeout: float = START) -> None:
        """Each of these services heard all these events, and after that nothing is left."""
        for name in services:
            eventually(
                lambda: set(self.numbers(name)) >= numbers,
                timeout=timeout,
                what=f"{name} heard {len(numbers)} events",
            )
        eventually(self.is_quiet, timeout=timeout, what="all queues are empty")
        self.check_left()

    def is_quiet(self) -> bool:
        living = [self.app.queue(one.queue).stats().living for one in self.known()]
        return not any(living) and not self.letters()

    def check_left(self) -> None:
        eventually(
            lambda: not leaks(self.server, self.prefix),
            what=f"nothing without an end: {leaks(self.server, self.prefix)}",
        )


@pytest.fixture(autouse=True)
def of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes import these services."""
    monkeypatch.setattr(harness, "TARGET", "tests.process.event_services:app")


# --- publishers


def test_a_publisher_may_be_killed_after_any_step(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written down is heard by all, whoever has to carry it."""
    with BusSite(server, tmp_path, monkeypatch) as site:
        site.register("mail", "audit")
        victims = [site.publisher("once", calls, calls, int(signal.SIGKILL)) for calls in range(1, CALLS + 1)]
        for victim in victims:
            assert victim.wait(START) == -signal.SIGKILL
        assert site.letters() == 4, "all but the last died before they could report it as delivered"
        site.wait_due()
        site.serve("mail,audit")
        numbers = set(range(1, CALLS + 1))
        site.check_heard(numbers, "mail", "audit")
        for name in ("mail", "audit"):
            assert all(count <= 2 for count in Counter(site.numbers(name)).values()), "twice if it was handled before"


def test_publishers_that_are_killed_in_the_middle_lose_no_event_that_they_published(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BusSite(server, tmp_path, monkeypatch) as site:
        first = site.serve("mail,audit")
        for start in (0, 10_000, 20_000):
            before = len(site.numbers("published"))
            victims = [site.publisher("from", start), site.publisher("from", start + 5_000)]
            eventually(lambda: len(site.numbers("published")) > before + 100, timeout=START, what="load")
            for victim in victims:
                victim.kill()
                victim.wait()
        published = site.numbers("published")
        assert len(set(published)) == len(published) > 300
        site.wait_due()
        first.stop()
        site.serve("mail,audit")  # whoever comes carries on what the dead had in hand
        site.check_heard(set(published), "mail", "audit")
        extra = set(site.numbers("mail")) - set(published)
        assert len(extra) <= 6, "each of the six may have had one more under way"
        assert extra == set(site.numbers("audit")) - set(published), "which all hear, or nobody"


def test_a_publisher_that_was_frozen_on_the_way_goes_on_and_does_no_harm(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BusSite(server, tmp_path, monkeypatch) as site:
        site.register("mail", "audit")
        frozen = [site.publisher("once", calls, calls, int(signal.SIGSTOP)) for calls in (1, 2, 3, 4)]
        eventually(lambda: site.letters() == 4, timeout=START, what="all of them wrote their event down")
        site.wait_due()
        site.serve("mail,audit")
        eventually(lambda: not site.letters(), what="somebody else delivered it")
        for one in frozen:
            one.send_signal(signal.SIGCONT)
            assert one.wait(START) == 0
        site.check_heard({1, 2, 3, 4}, "mail", "audit")
        for name in ("mail", "audit"):
            assert all(count <= 3 for count in Counter(site.numbers(name)).values()), "each of those who carried it"


# --- relays


def test_a_worker_that_is_killed_while_it_carries_events_is_followed_by_another(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three hundred events whose publisher died, and relays that die on the way."""
    with BusSite(server, tmp_path, monkeypatch, lease="1.5s") as site:
        site.register("mail", "audit")
        write_down(site, 300)
        for _ in range(2):
            site.wait_due()
            victim = site.serve("mail", wait=False)
            eventually(lambda: len(site.numbers("mail")) > 0 or site.letters() < 300, timeout=START, what="it carries")
            victim.kill()
        site.wait_due()
        site.serve("mail,audit")
        site.check_heard(set(range(300)), "mail", "audit")


def write_down(site: BusSite, count: int) -> None:
    """Publish, and never deliver."""
    for n in range(count):
        body = b'{"t":"shop.sold","h":{"o":"event","f":"shop"},"k":{"n":%d}' % n
        site.app.run(publish(site.app.bus_keys, "shop.sold", site.app.new_id(), body))


# --- subscribers


def test_events_in_the_hands_of_a_killed_subscriber_are_heard_by_the_next_one(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BusSite(server, tmp_path, monkeypatch, lease="1.5s") as site:
        site.register("audit")  # which comes later
        victim = site.serve("mail")
        shop = site.app.service("shop")
        numbers = {*range(SLOW, SLOW + 10), *range(10)}
        for n in numbers:
            assert shop.publish("sold", {"n": n}) == 2
        eventually(lambda: set(site.numbers("mail-began")) == numbers, timeout=START, what="it works on them")
        victim.kill()
        assert set(site.numbers("mail")) == set(range(10)), "and has ten in hand"
        for n in range(20, 30):
            assert shop.publish("sold", {"n": n}) == 2, "it is still subscribed"
        site.serve("mail,audit")
        site.check_heard({*numbers, *range(20, 30)}, "mail", "audit")
        assert sorted(site.numbers("audit")) == sorted({*numbers, *range(20, 30)}), "the other one heard all once"


@pytest.fixture
def clock(server: Server) -> Iterator[str]:
    """A clock that is ahead as far as a test says, for whoever reads it."""
    key = f"relevo-test-clock-{uuid4().hex[:8]}"
    yield key
    server.command("DEL", key)


def test_nothing_is_left_of_a_broadcast_to_a_killed_process(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    with BusSite(server, tmp_path, monkeypatch) as site:
        victim, heir = site.serve("caches"), site.serve("caches")
        shop = site.app.service("shop")
        assert shop.publish("sold", {"n": 1}) == 2
        eventually(lambda: len(site.numbers("caches")) == 2, what="each of them heard it")
        victim.kill()
        assert shop.publish("sold", {"n": 2}) == 2, "nobody knows yet"
        eventually(lambda: len(site.numbers("caches")) == 3, what="who lives heard it")
        (dead,) = [one.queue for one in site.known() if victim.ids[-1] in one.queue]
        assert site.app.queue(dead).stats().living == 1
        assert heir.stop() == 0
        later = site.another(_clock_key=clock)
        for ahead in (31_000, 37_000):
            server.command("SET", clock, ahead, "EX", 600)
            later.run(Call(["DEL", later.bus_keys.key("sweeping")]))
            assert not later.sweep(dry_run=False).skipped
        assert later.queue(dead).stats().living == 0
        later.close()
        assert site.known() == []
        assert shop.publish("sold", {"n": 3}) == 0
        assert dead not in site.app.run(known_queues(site.app))
        site.check_left()


# --- servers


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_no_acknowledged_event_is_lost_when_the_server_ends_under_load(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with (
        Server(engine, directory=tmp_path / "mortal", config=config) as mortal,
        BusSite(mortal, tmp_path, monkeypatch, lease="1.5s") as site,
    ):
        workers = [site.serve("mail,audit"), site.serve("mail,audit")]
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
                eventually(lambda: len(acknowledged) > rounds * 60, timeout=START, what="load")
                mortal.stop() if how == "stopped" else mortal.kill()
                mortal.start()
            before = len(acknowledged)
            eventually(lambda: len(acknowledged) > before + 20, timeout=START, what="publishing goes on")
        finally:
            over.set()
            publisher.join(30)
        site.wait_due()
        workers[0].stop()
        site.serve("mail,audit")
        site.check_heard(acknowledged, "mail", "audit")
        assert "Traceback" not in workers[1].log
