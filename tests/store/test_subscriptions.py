"""Subscriptions: registered, kept by renewals, and removed without them."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.bus import subscription_store as module
from relevo.bus.subscription_store import WEEK_MS, Subscription, Swept, subscribe, subscriptions, sweep, unsubscribe
from relevo.errors import OptionError
from tests.conftest import AppFactory
from tests.servers import Server
from tests.store.bus import LEASE_MS, Bus, make_bus, queue_of
from tests.store.kin import everything

HALF = WEEK_MS // 2


@pytest.fixture
def bus(app_factory: AppFactory, server: Server) -> Bus:
    return make_bus(app_factory, server)


def swept(bus: Bus) -> tuple[list[str], list[str]]:
    """The queues that a sweep warned of and removed, by the last part of their names."""
    found: Swept = bus.run(sweep(bus.keys))
    warned, removed = ([one.queue.rpartition(":")[2] for one in some] for some in (found.warned, found.removed))
    return warned, removed


# --- registered and renewed


def test_a_subscription_is_registered_once_and_renewed_after_that(bus: Bus) -> None:
    assert bus.subscribe("shop.*") == "new"
    first = bus.known()["shop.*"]
    assert (first.pattern, first.service, first.queue) == ("shop.*", "mail", queue_of("shop.*"))
    assert (first.max_backlog, first.discard, first.retention_ms, first.inactive_ms) == (
        100_000,
        "old",
        WEEK_MS,
        WEEK_MS,
    )
    assert (first.until_ms, first.warned) == (0, False)
    assert first.created_ms == first.seen_ms > 1_600_000_000_000
    bus.advance(10_000)
    assert bus.subscribe("shop.*") == "renewed"
    second = bus.known()["shop.*"]
    assert second.created_ms == first.created_ms
    assert 10_000 <= second.seen_ms - first.seen_ms < 20_000


@pytest.mark.parametrize(
    "other",
    [
        {"max_backlog": 10},
        {"max_backlog": 1_000_000},
        {"discard": "new"},
        {"retention_ms": 0},
        {"inactive_ms": 1},
        {"lease_ms": 3},
        {"lease_ms": 300},
    ],
)
def test_other_options_change_a_subscription_and_keep_its_age(bus: Bus, other: dict[str, Any]) -> None:
    bus.subscribe("shop.*", lease_ms=30)
    created = bus.known()["shop.*"].created_ms
    bus.advance(1000)
    assert bus.subscribe("shop.*", **{"lease_ms": 30, **other}) == "changed"
    assert bus.subscribe("shop.*", **{"lease_ms": 30, **other}) == "renewed"
    found = bus.known()["shop.*"]
    assert found.created_ms == created
    assert {name: getattr(found, name) for name in other} == other


def test_events_are_matched_by_the_pattern_registered_last(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    bus.subscribe("shop.sold", "b")
    assert bus.subscribe("mail.>", "a") == "changed"
    assert sorted(one.pattern for one in bus.known().values()) == ["mail.>", "shop.sold"]
    assert [to.queue for to in bus.send("shop.sold").to] == [queue_of("b")]
    assert [to.queue for to in bus.send("mail.sent").to] == [queue_of("a")]
    bus.run(unsubscribe(bus.keys, queue_of("b")))
    assert bus.send("shop.sold").to == ()
    bus.run(unsubscribe(bus.keys, queue_of("a")))
    assert bus.own.ask("EXISTS", "topics") == 0


def test_many_may_wait_for_one_pattern_and_each_can_go(bus: Bus) -> None:
    names = [f"s{n}" for n in range(5)]
    for name in names:
        bus.subscribe("shop.*", name)
    for name in ("s0", "s3", "s4", "s2", "s1"):
        assert [to.queue for to in bus.send().to] == [queue_of(name) for name in names]
        bus.run(unsubscribe(bus.keys, queue_of(name)))
        names.remove(name)
    assert bus.own.ask("EXISTS", "topics") == 0


def test_a_subscription_removed_or_changed_by_hand_is_registered_again_and_gets_events_once(bus: Bus) -> None:
    bus.subscribe("shop.*", "a")
    text = bus.own.ask("HGET", "subscriptions", queue_of("a"))
    bus.own.ask("HDEL", "subscriptions", queue_of("a"))
    assert bus.send().to == ()
    assert bus.subscribe("shop.*", "a") == "new"
    assert [to.queue for to in bus.send().to] == [queue_of("a")]
    bus.own.ask("HSET", "subscriptions", queue_of("a"), text.replace(b"shop.*", b"mail.*"))
    assert bus.send("shop.sold").to == ()
    assert bus.subscribe("shop.*", "a") == "changed"
    assert len(bus.send("shop.sold").to) == 1


def test_all_subscriptions_of_a_worker_are_registered_in_one_call(bus: Bus) -> None:
    bus.subscribe("b")
    bus.subscribe("c", max_backlog=1)
    many = [Subscription(pattern=name, service="mail", queue=queue_of(name)) for name in "abc"]
    assert bus.run(subscribe(bus.keys, many)) == ["new", "renewed", "changed"]
    assert bus.run(subscribe(bus.keys, many)) == ["renewed"] * 3
    assert bus.run(subscribe(bus.keys, [])) == []
    assert [one.queue for one in bus.run(subscriptions(bus.keys))] == [queue_of(name) for name in "abc"]


def test_what_is_written_is_what_is_read(bus: Bus) -> None:
    name = 'mail:tenant "7" \\ é,"created_ms":1:notifications:>'.replace(" ", "%20")
    said = Subscription(
        pattern=">",
        service='mail "x","seen_ms":5',
        queue=name,
        max_backlog=7,
        discard="new",
        retention_ms=0,
        inactive_ms=60_000,
    )
    assert bus.run(subscribe(bus.keys, [said])) == ["new"]
    assert bus.run(subscribe(bus.keys, [said])) == ["renewed"]
    (found,) = bus.run(subscriptions(bus.keys))
    assert found == Subscription(
        pattern=">",
        service=said.service,
        queue=name,
        max_backlog=7,
        discard="new",
        retention_ms=0,
        inactive_ms=60_000,
        created_ms=found.created_ms,
        seen_ms=found.seen_ms,
    )
    bus.advance(40_000)
    assert len(bus.run(sweep(bus.keys)).warned) == 1
    assert bus.publish("a.b").to[0].queue == name
    bus.advance(20_000)
    assert [one.queue for one in bus.run(sweep(bus.keys)).removed] == [name]


def test_there_are_no_more_subscriptions_than_publishing_can_look_at(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    many = [Subscription(pattern=f"s{n}", service="mail", queue=queue_of(f"s{n}")) for n in range(5)]
    assert bus.run(subscribe(bus.keys, many)) == ["new"] * 3 + ["refused"] * 2
    assert bus.run(subscribe(bus.keys, many)) == ["renewed"] * 3 + ["refused"] * 2
    assert len(bus.known()) == 3
    assert bus.run(unsubscribe(bus.keys, queue_of("s0")))
    assert bus.subscribe("s4") == "new"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pattern": "a..b"}, "empty segment"),
        ({"pattern": "a.#"}, "Write '>'"),
        ({"queue": "default"}, "is not a queue's name"),
        ({"queue": "mail:actions"}, "a queue of notifications, found 'mail:actions'"),
        ({"queue": "mail:notifications:a b"}, "white space"),
        ({"max_backlog": 0}, "max_backlog: at least 1 is needed, found 0"),
        ({"retention_ms": -1}, "retention"),
        ({"inactive_ms": 0}, "inactive"),
        ({"lease_ms": -1}, "lease"),
    ],
)
def test_a_subscription_that_cannot_be_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Subscription(**{"pattern": "a", "service": "mail", "queue": queue_of("a"), **wrong})


# --- removed


def test_a_subscription_is_removed_once(bus: Bus) -> None:
    bus.subscribe("shop.*")
    assert bus.run(unsubscribe(bus.keys, queue_of("shop.*"))) is True
    assert bus.known() == {}
    before = everything(bus.own)
    assert bus.run(unsubscribe(bus.keys, queue_of("shop.*"))) is False
    assert bus.run(unsubscribe(bus.keys, "unknown")) is False
    assert everything(bus.own) == before
    assert bus.subscribe("shop.*") == "new"


def test_a_subscription_renewed_since_it_was_read_is_not_removed(bus: Bus) -> None:
    bus.subscribe("shop.*")
    seen = bus.known()["shop.*"].seen_ms
    bus.advance(1000)
    bus.subscribe("shop.*")
    assert bus.run(unsubscribe(bus.keys, queue_of("shop.*"), if_unseen_since_ms=seen)) is False
    seen = bus.known()["shop.*"].seen_ms
    assert bus.run(unsubscribe(bus.keys, queue_of("shop.*"), if_unseen_since_ms=seen - 1)) is False
    assert bus.run(unsubscribe(bus.keys, queue_of("shop.*"), if_unseen_since_ms=seen)) is True


def test_an_unserved_subscription_is_warned_of_once_and_then_removed(bus: Bus) -> None:
    bus.subscribe("served")
    bus.subscribe("left")
    assert swept(bus) == ([], [])
    bus.advance(HALF - 60_000)
    assert swept(bus) == ([], [])
    bus.advance(60_000)
    bus.subscribe("served")
    assert swept(bus) == (["left"], [])
    assert bus.known()["left"].warned
    assert swept(bus) == ([], []), "each is warned of once"
    assert bus.subscribe("left") == "renewed"
    assert not bus.known()["left"].warned
    bus.advance(HALF)
    bus.subscribe("served")
    assert swept(bus) == (["left"], []), "and again after it was served"
    bus.advance(HALF)
    bus.subscribe("served")
    assert swept(bus) == ([], ["left"])
    assert list(bus.known()) == ["served"]
    assert swept(bus) == ([], [])


def test_a_broadcast_subscription_ends_with_its_lease_and_without_a_warning(bus: Bus) -> None:
    bus.subscribe("a", lease_ms=LEASE_MS)
    bus.subscribe("b", lease_ms=LEASE_MS)
    bus.advance(LEASE_MS // 2)
    bus.subscribe("b", lease_ms=LEASE_MS)
    first, second = bus.known()["a"], bus.known()["b"]
    assert first.until_ms == first.seen_ms + LEASE_MS == second.until_ms - LEASE_MS // 2
    assert swept(bus) == ([], [])
    bus.advance(LEASE_MS // 2)
    assert swept(bus) == ([], ["a"])
    assert list(bus.known()) == ["b"]


def test_a_sweep_is_bounded_and_goes_on_with_the_next(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEPT", 4)
    for n in range(10):
        bus.subscribe(f"s{n}", lease_ms=LEASE_MS if n % 2 else 0)
    bus.advance(HALF)
    found = [swept(bus) for _ in range(4)]
    assert [len(warned) + len(removed) for warned, removed in found] == [4, 4, 2, 0]
    assert sorted(name for pair in found for name in pair[0]) == [f"s{n}" for n in range(0, 10, 2)]
    assert sorted(name for pair in found for name in pair[1]) == [f"s{n}" for n in range(1, 10, 2)]


GARBAGE: list[bytes] = [
    b"",
    b"{}",
    b"null",
    b"\xff\xfe",
    b'{"pattern":"shop.*"}',
    b'{"pattern":"shop.["}',
    b'{"pattern":"%","queue":"x"}',
    b'{"pattern":"shop.sold","max_backlog":"many","until_ms":1}',
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("field", [b"mail:notifications:x", b"a b", b"\xff", b"default", b""])
def test_malformed_subscriptions_delay_no_other_and_are_removed(bus: Bus, garbage: bytes, field: bytes) -> None:
    bus.subscribe("shop.*")
    bus.own.ask("HSET", "subscriptions", field, garbage)
    assert list(bus.known()) == ["shop.*"]
    event = bus.send()
    assert queue_of("shop.*") in [to.queue for to in event.to]
    assert bus.waiting("shop.*") == [event.id]
    bus.run(sweep(bus.keys))
    assert bus.own.ask("HKEYS", "subscriptions") == [queue_of("shop.*").encode()]
    bus.advance(10_000)
    bus.relay()
    assert bus.outbox() == {}
    assert bus.waiting("shop.*") == [event.id]
