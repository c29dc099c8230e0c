"""The log of a service's events: all that was published is in it, for a time, to be read again from any moment."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.bus.event_store import publish_and_deliver
from relevo.bus.history_store import Log, Logged, LogPage, log_events, read_log
from relevo.errors import OptionError
from tests.conftest import AppFactory
from tests.servers import Server
from tests.store.bus import BODY, Bus, make_bus
from tests.store.desk import Desk, new_id
from tests.store.kin import step_by_step

HOUR = 3_600_000
SHOP = Log("shop:notifications", HOUR, 1000)


@pytest.fixture
def bus(app_factory: AppFactory, server: Server) -> Bus:
    return make_bus(app_factory, server)


@pytest.fixture
def shop(bus: Bus) -> Desk:
    """Where the log of the service `shop` is."""
    return Desk(bus.run, bus.app.engine.keys_of(SHOP.queue), bus.server)


def page(shop: Desk, **which: Any) -> LogPage:
    found: LogPage = shop.run(read_log(shop.keys, **which))
    return found


def ids(shop: Desk, **which: Any) -> list[str]:
    return [one.id for one in page(shop, **which).events]


def write(shop: Desk, *entries: Logged, keep_ms: int = HOUR, most: int = 1000) -> str:
    place: str = shop.run(log_events(shop.keys, entries, keep_ms=keep_ms, most=most))
    return place


def logged(n: int, at_ms: int = 1) -> Logged:
    return Logged(f"e{n}", "shop.sold", at_ms, b"{}")


def test_an_event_is_logged_when_it_is_delivered(bus: Bus, shop: Desk) -> None:
    bus.subscribe("shop.sold", "a")
    bus.send()
    assert (ids(shop), shop.ask("EXISTS", "log")) == ([], 0), "not if it is not to be kept"
    event = bus.send(log=SHOP)
    assert page(shop) == LogPage([Logged(event.id, "shop.sold", event.at_ms, BODY + b"}")], "")
    assert 0 < shop.ask("PTTL", "log") <= HOUR
    assert bus.outbox() == {}


def test_an_event_without_subscribers_is_logged(bus: Bus, shop: Desk) -> None:
    """Later subscriptions can catch up with it."""
    calls: list[str] = []
    plan = publish_and_deliver(bus.keys, bus.app.engine.keys_of, "shop.sold", id := new_id(), BODY, log=SHOP)
    step_by_step(bus.run, plan, lambda name, _: calls.append(name))
    assert calls == ["bus/publish_event", "bus/log_events", "engine/take_outbox"]
    assert ids(shop) == [id]
    assert bus.outbox() == {}


def test_the_event_of_a_killed_publisher_is_logged_by_the_relay_that_delivers_it(bus: Bus, shop: Desk) -> None:
    event = bus.publish(log=SHOP)
    assert ids(shop) == []
    bus.advance(5000)
    assert bus.relay().delivered == 1
    assert ids(shop) == [event.id]
    assert ids(shop, since_ms=event.at_ms) == [event.id], "it counts from when it was published"
    assert ids(shop, since_ms=event.at_ms + 1) == []


def test_a_log_is_read_from_a_time_on(bus: Bus, shop: Desk) -> None:
    events = []
    for _ in range(4):
        events.append(bus.send(log=SHOP))
        bus.advance(1000)
    assert ids(shop) == [one.id for one in events]
    assert ids(shop, since_ms=events[2].at_ms) == [one.id for one in events[2:]]
    assert ids(shop, since_ms=events[3].at_ms + 1) == []


def test_a_log_is_read_by_topic_and_by_pattern(bus: Bus, shop: Desk) -> None:
    topics = ("shop.sold", "shop.bought", "shop.order.sent")
    sold, bought, sent = (bus.send(topic, log=SHOP).id for topic in topics)
    assert ids(shop, pattern="shop.sold") == [sold]
    assert ids(shop, pattern="shop.*") == [sold, bought]
    assert ids(shop, pattern="shop.order.>") == [sent]
    with pytest.raises(OptionError, match="pattern"):
        read_log(shop.keys, pattern="shop.#")


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
def test_a_log_is_read_in_pages(shop: Desk, limit: int) -> None:
    write(shop, *(logged(n) for n in range(7)))
    found, after, pages = [], "", 0
    while True:
        part = page(shop, after=after, limit=limit, pattern="shop.*")
        assert len(part.events) <= limit
        found += [one.id for one in part.events]
        after, pages = part.after, pages + 1
        if not after:
            break
    assert found == [f"e{n}" for n in range(7)]
    assert pages == 7 // limit + 1


def test_a_page_without_matches_gives_the_next_cursor(shop: Desk) -> None:
    write(shop, *(logged(n) for n in range(10)))
    part = page(shop, pattern="mail.>", limit=5)
    assert part.events == [] and part.after != ""
    assert page(shop, pattern="mail.>", limit=6, after=part.after) == LogPage([], "")


def test_an_event_that_was_delivered_twice_is_read_once(bus: Bus, shop: Desk) -> None:
    first = bus.send(log=SHOP)
    second = bus.send(log=SHOP)
    bus.send(id=first.id, log=SHOP)
    assert shop.ask("XLEN", "log") == 3
    assert ids(shop) == [first.id, second.id]


def test_what_is_older_than_it_is_kept_is_forgotten(bus: Bus, shop: Desk) -> None:
    write(shop, *(logged(n) for n in range(500)))
    bus.advance(HOUR + 1)
    write(shop, logged(500))
    assert shop.ask("XLEN", "log") <= 101, "whole blocks of a hundred are cut off"
    assert ids(shop, limit=1000)[-1] == "e500"
    shop.ask("DEL", "log")
    for keep_ms in (60_000, HOUR):
        write(shop, logged(1), keep_ms=keep_ms)
        assert keep_ms // 2 < shop.ask("PTTL", "log") <= keep_ms


def test_no_more_than_about_so_many_are_kept(shop: Desk) -> None:
    for start in range(0, 1000, 100):
        write(shop, *(logged(n) for n in range(start, start + 100)), most=250)
    assert 250 <= shop.ask("XLEN", "log") <= 350
    assert ids(shop, limit=1000)[-1] == "e999"


def test_order_is_kept_when_the_clock_of_the_server_is_set_back(bus: Bus, shop: Desk) -> None:
    first = write(shop, logged(1), logged(2))
    bus.advance(-600_000)
    second = write(shop, logged(3))
    assert (first.partition("-")[2], second) == ("1", first[:-1] + "2")
    bus.advance(700_000)
    assert write(shop, logged(4)) > second
    assert ids(shop) == ["e1", "e2", "e3", "e4"]


def test_malformed_entries_of_a_log_are_skipped(shop: Desk) -> None:
    write(shop, logged(1))
    shop.ask("XADD", "log", "*", "what", "ever")
    shop.ask("XADD", "log", "*", "id", b"\xff", "topic", "a", "at", 1, "body", "{}")
    shop.ask("XADD", "log", "*", "id", "x", "topic", "a", "at", "noon", "body", "{}")
    write(shop, logged(2))
    assert ids(shop) == ["e1", "e2"]
