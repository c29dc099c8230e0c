"""Events: published to all subscriptions, delivered to each once although processes die, and never delaying others."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.bus import event_store as module
from relevo.bus import subscription_store as subscribing
from relevo.bus.delivery_store import (
    IN_PLACE_OF_AN_OLDER,
    KNOWN,
    NO_ROOM,
    STORED,
    TOGETHER,
    Event,
    Recipient,
    deliver_events,
    event_of,
    letter_id,
    put_events,
)
from relevo.bus.event_store import (
    ANYWHERE,
    Lag,
    Relayed,
    deliver_event,
    finish,
    lag,
    publish,
    publish_and_deliver,
    relay_events,
)
from relevo.bus.history_store import Log
from relevo.bus.message_store import Place, Tracked
from relevo.bus.subscription_store import CLOSE_MS, Subscription, subscribe, subscriptions, sweep, unsubscribe
from relevo.engine.ids import Ids, made_ms
from relevo.engine.lists import bus_queues
from relevo.engine.outbox import RESERVED_MS, relay, take_outbox
from relevo.engine.push import CHUNK_BYTES
from relevo.engine.topics import DEEPEST, check_pattern, matches
from relevo.errors import OptionError, OutOfMemory
from relevo.limits import store as tenant_limits
from relevo.limits.limit import Limit
from relevo.store.plan import Call
from tests.clock import TimedApp
from tests.conftest import PATIENT, AppFactory
from tests.eventually import aeventually
from tests.leaks import leaks
from tests.servers import Server
from tests.store.bus import BODY, LEASE_MS, Bus, make_bus, queue_of
from tests.store.desk import Desk, kept, moved, new_id
from tests.store.kin import everything, step_by_step
from tests.topologies import Cluster

#: What others hold: the letter of an event is theirs until this has passed.
GONE = RESERVED_MS + 1


@pytest.fixture
def bus(app_factory: AppFactory, server: Server) -> Bus:
    return make_bus(app_factory, server)


def put(bus: Bus, name: str, *ids: str, most: int = 100, discard: str = "old", place: Place = ANYWHERE) -> list[int]:
    """Put events into the queue of a subscription: what became of them."""
    to = Recipient(queue_of(name), most, discard, 60_000)
    some = [Event(id, "shop.sold", 1, BODY, (to,), place) for id in ids]
    found: list[int] = bus.run(put_events(bus.app.engine.keys_of(to.queue), to, some))
    return found


def put_of(bus: Bus, tenant: str, *, most: int = 100) -> str:
    """Put an event of a tenant into the queue `a`: its id."""
    to = Recipient(queue_of("a"), most, "old", 10**13)  # never too late, whatever the clock says
    body = BODY.replace(b',"k"', b',"g":"%b","k"' % tenant.encode())
    event = Event(new_id(), "shop.sold", 1, body, (to,), Place(100, tenant))
    assert bus.run(put_events(bus.app.engine.keys_of(to.queue), to, [event])) != [NO_ROOM]
    return event.id


# --- both sides decide the same


def test_scripts_and_python_agree_on_what_a_pattern_stands_for(server: Server) -> None:
    include = files("relevo.bus").joinpath("lua", "include", "topic.lua").read_text("utf-8")
    chance = random.Random(7)
    words = ["a", "b", "a-b", "a_b", "-", "A1"]
    common: Counter[bool] = Counter()
    for _ in range(200):
        topic = [chance.choice(words) for _ in range(chance.randint(1, 5))]
        found = server.command("EVAL", f"{include}\nreturn patterns_of(ARGV[1])", 0, ".".join(topic))
        spelt = {pattern.decode() for pattern in found}
        assert len(found) == len(spelt) == 2 ** (len(topic) + 1) - 1
        for _ in range(50):
            pattern = [chance.choice(["*", chance.choice(words), part]) for part in topic]
            match chance.randint(0, 3):
                case 0:
                    pattern = [*pattern[: chance.randint(0, len(pattern))], ">"]
                case 1:
                    pattern = pattern[: chance.randint(1, len(pattern))]
                case 2:
                    pattern.append(chance.choice(["*", "a"]))
            said = matches(".".join(pattern), ".".join(topic))
            assert (".".join(pattern) in spelt) is said
            common[said] += 1
        assert all(check_pattern(pattern) and matches(pattern, ".".join(topic)) for pattern in spelt)
    assert min(common[True], common[False]) > 2000, "both answers are common"


# --- published


def test_an_event_without_subscribers_is_no_error_and_leaves_nothing(bus: Bus) -> None:
    bus.subscribe("shop.bought")
    before = everything(bus.own)
    for event in (bus.publish(), bus.send()):
        assert (event.to, event.is_wanted) == ((), False)
        assert event.at_ms > 1_600_000_000_000
    for topic in ("", "shop.*", "a b"):
        with pytest.raises(OptionError, match="topic"):
            bus.publish(topic)
    assert everything(bus.own) == before


def test_each_subscription_gets_a_matching_event_once_and_no_other(bus: Bus) -> None:
    """K subscriptions, K deliveries."""
    for pattern in ("shop.sold", "shop.*", "*.sold", "shop.>", ">", "*", "shop.bought", "shop.sold.twice", "mail.>"):
        bus.subscribe(pattern)
    event = bus.send("shop.sold")
    wanted = ["shop.sold", "shop.*", "*.sold", "shop.>", ">"]
    assert sorted(to.queue for to in event.to) == sorted(map(queue_of, wanted))
    for pattern in bus.known():
        assert bus.waiting(pattern) == [event.id] * (pattern in wanted)
    topic = ".".join(f"s{n}" for n in range(DEEPEST))
    deep = [topic, ".".join("*" * DEEPEST), topic.replace("s7", ">"), topic.replace("s3", "*")]
    for pattern in deep:
        bus.subscribe(pattern)
    assert {to.queue for to in bus.send(topic).to} == set(map(queue_of, [">", *deep]))
    assert bus.outbox() == {}


def test_one_outbox_message_holds_the_event_and_its_recipients(bus: Bus) -> None:
    for name in "abc":
        bus.subscribe("shop.sold", name, max_backlog=7, discard="new", retention_ms=1000)
    place = Place(50, "tenant 7 % é\n", 2.5, "free tier")
    event = bus.publish(place=place, tracked=Tracked("task\n 1", 5000), log=Log("shop:notifications", 1000, 10))
    ((id, text),) = bus.outbox().items()
    assert id == letter_id(event.id)
    assert event_of(text) == event
    since = {name: one.created_ms for name, one in bus.known().items()}
    assert set(event.to) == {Recipient(queue_of(name), 7, "new", 1000, since[name]) for name in "abc"}
    assert (event.place, event.tracked) == (place, Tracked("task\n 1", 5000))
    bus.advance(GONE)
    bus.relay()


def test_an_event_published_twice_has_one_outbox_message_with_the_same_recipients(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    first = bus.publish()
    bus.advance(GONE)
    bus.subscribe("shop.sold", "b")
    second = bus.publish(id=first.id)
    assert second == first
    assert list(bus.outbox()) == [letter_id(first.id)]
    assert bus.relay().delivered == 0, "the publisher that repeated it holds it for a while"
    bus.run(deliver_event(bus.keys, bus.app.engine.keys_of, second))
    assert (bus.waiting("a"), bus.waiting("b"), bus.outbox()) == ([first.id], [], {})
    before = everything(bus.desk("a"))
    assert bus.send(id=first.id).id == first.id
    assert everything(bus.desk("a")) == before, "also after it was delivered"


def test_a_broadcast_subscription_gets_events_while_its_lease_lives_and_is_removed_then(bus: Bus) -> None:
    bus.subscribe("shop.sold", "durable")
    bus.subscribe("shop.sold", "one", lease_ms=LEASE_MS)
    bus.subscribe("shop.sold", "two", lease_ms=LEASE_MS)
    bus.subscribe("other", "three", lease_ms=LEASE_MS)
    assert len(bus.send().to) == 3
    bus.advance(LEASE_MS // 2)
    bus.subscribe("shop.sold", "two", lease_ms=LEASE_MS)
    assert len(bus.send().to) == 3
    bus.advance(LEASE_MS // 2)
    event = bus.send()
    assert {to.queue for to in event.to} == {queue_of("durable"), queue_of("two")}
    assert set(bus.known()) == {"durable", "two", "three"}, "in passing, of those that match"
    assert bus.subscribe("shop.sold", "one", lease_ms=LEASE_MS) == "new"


def test_among_a_thousand_subscriptions_the_ten_that_match_are_found_at_once(bus: Bus) -> None:
    many = [Subscription(pattern=f"shop.topic_{n}.*", service="mail", queue=queue_of(f"s{n}")) for n in range(990)]
    many += [Subscription(pattern="shop.*.sold", service="mail", queue=queue_of(f"t{n}")) for n in range(10)]
    assert Counter(bus.run(subscribe(bus.keys, many))) == {"new": 1000}
    calls: Counter[str] = Counter()
    plan = publish_and_deliver(bus.keys, bus.app.engine.keys_of, "shop.all.sold", new_id(), BODY)
    event: Event = step_by_step(bus.run, plan, lambda name, _: calls.update([name]))
    assert sorted(to.queue for to in event.to) == [queue_of(f"t{n}") for n in range(10)]
    assert calls == {"bus/publish_event": 1, "bus/deliver_events": 10, "engine/take_outbox": 1}

    assert "hgetall" not in bus.own.commands(lambda: bus.publish("shop.all.sold"))
    unmatched = bus.own.commands(lambda: bus.publish("shop.all.nothing"))
    assert unmatched.total() < 10, "the others are not looked at"
    assert Counter(bus.run(subscribe(bus.keys, many))) == {"renewed": 1000}


# --- delivered


@pytest.mark.parametrize("late_ms", [0, 30_000])
def test_each_gets_the_same_job_with_the_time_until_which_it_wants_it(bus: Bus, late_ms: int) -> None:
    """Counted from the time at which it was published, also if it is delivered late."""
    bus.subscribe("shop.sold", "short", retention_ms=60_000)
    bus.subscribe("shop.sold", "long")
    bus.subscribe("shop.sold", "ever", retention_ms=0)
    for worker in ("w1", "w2"):
        bus.desk("long").wait(worker, idle_ms=600_000)
    event = bus.publish() if late_ms else bus.send()
    bus.advance(late_ms)
    assert bus.relay().delivered == bool(late_ms)
    bodies = {name: bus.desk(name).ask("HGET", "jobs", event.id) for name in ("short", "long", "ever")}
    assert bodies["short"] == BODY + b',"x":%d}' % (event.at_ms + 60_000)
    assert bodies["long"] == BODY + b',"x":%d}' % (event.at_ms + 7 * 86_400_000)
    assert bodies["ever"] == BODY + b"}"
    assert sorted(map(bus.desk("long").bell, ("w1", "w2"))) == [[], [b""]], "one idle worker is called"


@pytest.mark.parametrize("how", ["ready", "running", "scheduled", "kept", "dead"])
def test_delivering_twice_changes_nothing_wherever_the_first_one_is(bus: Bus, how: str) -> None:
    bus.subscribe("shop.sold", "a")
    event = bus.send()
    desk = bus.desk("a")
    if how != "ready":
        assert desk.claim() == [event.id]
    if how == "scheduled":
        desk.turn(0, moved(event.id, "retry"))
    elif how == "kept":
        desk.turn(0, kept([event.id]))
    elif how == "dead":
        desk.turn(0, moved(event.id, "dead", text=b'{"state":"dead"}'))
    before = everything(desk)
    assert put(bus, "a", event.id, event.id) == [KNOWN, KNOWN]
    assert put(bus, "a", event.id, most=1, discard="new") == [KNOWN]
    assert everything(desk) == before


def test_the_event_of_a_killed_publisher_is_delivered_by_the_next_relay(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    bus.subscribe("shop.sold", "b")
    event = bus.publish()
    early = bus.relay()
    assert early.delivered == 0
    assert 0 < early.next_ms - early.now_ms <= RESERVED_MS
    assert (bus.waiting("a"), bus.waiting("b")) == ([], [])
    bus.advance(GONE)
    assert bus.run(take_outbox(bus.keys)).ids == [letter_id(event.id)]
    assert bus.relay().delivered == 0, "another relay holds it, and dies"
    bus.advance(GONE)
    late = bus.relay()
    assert (late.delivered, late.next_ms) == (1, 0)
    assert (bus.waiting("a"), bus.waiting("b"), bus.outbox()) == ([event.id], [event.id], {})
    bus.run(deliver_event(bus.keys, bus.app.engine.keys_of, event))
    assert (bus.waiting("a"), bus.waiting("b"), bus.outbox()) == ([event.id], [event.id], {})


@pytest.mark.parametrize("steps", range(6))
def test_a_publisher_may_be_killed_after_any_step(bus: Bus, steps: int) -> None:
    for name in "abc":
        bus.subscribe("shop.sold", name)
    id = new_id()
    plan = publish_and_deliver(bus.keys, bus.app.engine.keys_of, "shop.sold", id, BODY)
    answer = None
    for _ in range(steps):
        try:
            answer = bus.run(plan.send(answer))
        except StopIteration:
            break
    plan.close()
    bus.advance(GONE)
    bus.relay()
    assert [bus.waiting(name) for name in "abc"] == [[id] * (steps > 0)] * 3, "all of them or none"
    assert bus.outbox() == {}


def test_confirming_an_outbox_message_takes_no_other(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    first, second = bus.publish(), bus.publish()
    bus.advance(GONE)
    assert bus.run(finish(bus.keys, [letter_id(first.id)])) == bus.own.score("errands", letter_id(second.id))
    assert bus.run(finish(bus.keys, [letter_id(first.id)])) > 0
    assert bus.relay().delivered == 1
    assert bus.run(finish(bus.keys, [])) == 0


def test_an_event_in_the_outbox_of_any_queue_is_delivered_from_there(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    event = bus.publish()
    ((id, text),) = bus.outbox().items()
    bus.run(finish(bus.keys, [id]))
    shop = Desk(bus.run, bus.app.engine.keys_of("shop:actions"), bus.server)
    shop.ask("HSET", "letters", id, text)
    shop.ask("ZADD", "errands", 1, id)
    assert bus.run(relay(bus.app.engine.keys_of, ["shop:actions"], 1000)) == 1
    assert bus.waiting("a") == [event.id]
    assert shop.ask("EXISTS", "letters") == 0


def test_many_outbox_messages_are_delivered_in_few_bounded_calls(bus: Bus) -> None:
    bus.subscribe("shop.*", "a")
    bus.subscribe("shop.sold", "b")
    ids = [bus.publish().id for _ in range(TOGETHER + 5)]
    bus.advance(GONE)
    calls: list[str] = []
    plan = relay_events(bus.keys, bus.app.engine.keys_of, 1000)
    done: Relayed = step_by_step(bus.run, plan, lambda name, _: calls.append(name))
    assert done.delivered == len(ids)
    take, put = "engine/take_outbox", "bus/deliver_events"
    assert calls == [take, put, put, take, put, put, take]
    assert bus.waiting("a") == bus.waiting("b") == ids


@pytest.mark.parametrize(("count", "size", "calls"), [(250, 10, 3), (7, CHUNK_BYTES // 3, 4)])
def test_events_are_delivered_in_calls_of_bounded_length_and_size(bus: Bus, count: int, size: int, calls: int) -> None:
    to = Recipient(queue_of("a"), 1000, "old", 0)
    body, log = b'{"t":"x","d":"%b"' % (b"x" * size), Log("shop:notifications", 60_000)
    some = [Event(new_id(), "a", 1, body, (to,), ANYWHERE, log=log) for _ in range(count)]
    made: list[tuple[str, int]] = []

    def note(name: str, call: Call[Any]) -> None:
        made.append((name, sum(len(arg) for arg in call.args if isinstance(arg, bytes))))

    step_by_step(bus.run, deliver_events(bus.app.engine.keys_of, some), note)
    assert [name for name, _ in made] == ["bus/deliver_events"] * calls + ["bus/log_events"] * calls
    assert max(size for _, size in made) <= CHUNK_BYTES + 10_000
    assert bus.waiting("a") == [one.id for one in some]


def test_events_share_by_priority_and_weight_and_count_by_tier_as_in_any_queue(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    big, small = Place(100, "big", 2.0, "free"), Place(100, "small", 1.0)
    low = bus.send(place=Place(150)).id
    many = [bus.send(place=big, tracked=Tracked("order-7", 60_000)).id for _ in range(4)]
    few = [bus.send(place=small).id for _ in range(2)]
    high = bus.send(place=Place(50)).id
    assert bus.waiting("a") == [high, many[0], many[1], few[0], many[2], many[3], few[1], low]
    desk = bus.desk("a")
    assert desk.stats().totals == {"enqueued": 8, "tier:free": 4}
    assert desk.members("made:order-7") == many
    assert 0 < desk.ask("PTTL", "made:order-7") <= 60_000


# --- no more than there is room for


def test_a_full_queue_takes_nothing_new_if_it_wants_to_keep_the_old(bus: Bus) -> None:
    """Memory is bounded, and what was lost is counted."""
    first, second, third = (new_id() for _ in range(3))
    assert put(bus, "a", first, second, third, most=2, discard="new") == [STORED, STORED, NO_ROOM]
    assert put(bus, "a", third, most=2, discard="new") == [NO_ROOM]
    assert bus.waiting("a") == [first, second]
    assert bus.desk("a").stats().totals == {"enqueued": 2, "overflow": 2}
    assert bus.desk("a").claim() == [first]
    assert put(bus, "a", third, most=2, discard="new") == [STORED], "what runs does not wait"


def test_a_full_queue_drops_the_oldest_if_it_wants_the_new(bus: Bus) -> None:
    ids = [new_id() for _ in range(5)]
    assert put(bus, "a", *ids, most=2) == [STORED, STORED] + [IN_PLACE_OF_AN_OLDER] * 3
    assert bus.waiting("a") == ids[3:]
    stats = bus.desk("a").stats()
    assert (stats.living, stats.totals) == (2, {"enqueued": 5, "overflow": 3})
    assert bus.desk("a").drain() == ids[3:]


def test_of_several_levels_the_one_that_runs_last_gives_way(bus: Bus) -> None:
    low = [new_id(), new_id()]
    high = [new_id(), new_id()]
    put(bus, "a", *low, most=4, place=Place(150))
    put(bus, "a", *high, most=4, place=Place(0))
    assert put(bus, "a", third := new_id(), most=4, place=Place(1023)) == [IN_PLACE_OF_AN_OLDER]
    assert bus.waiting("a") == [*high, low[1], third]
    assert put(bus, "a", fourth := new_id(), most=4, place=Place(0)) == [IN_PLACE_OF_AN_OLDER]
    assert bus.waiting("a") == [*high, fourth, low[1]]


def test_nothing_is_left_of_what_gave_way(bus: Bus) -> None:
    first, second = new_id(), new_id()
    put(bus, "a", first)
    desk = bus.desk("a")
    desk.claim()
    desk.ask("HSET", f"carried:{first}", "s:fetch", "1")
    desk.ask("HSET", "waiters", first, "inbox")
    desk.turn(0, moved(first, "back", text=b"{}"))
    assert desk.ask("HLEN", "claims") == desk.ask("HLEN", "story") == 1
    assert put(bus, "a", second, most=1) == [IN_PLACE_OF_AN_OLDER]
    assert bus.waiting("a") == [second]
    for key in ("claims", "story", "groups", "waiters", f"carried:{first}"):
        assert desk.ask("EXISTS", key) == 0, key


def test_where_all_wait_for_another_attempt_the_next_one_gives_way(bus: Bus) -> None:
    first, second, third = (new_id() for _ in range(3))
    put(bus, "a", first, second, place=Place(100, "g"))
    desk = bus.desk("a")
    desk.claim(2)
    desk.turn(0, moved(second, "retry", ms=90_000, tenant="g"))
    desk.turn(0, moved(first, "retry", ms=60_000, tenant="g"))
    assert put(bus, "a", third, most=2) == [IN_PLACE_OF_AN_OLDER]
    assert (desk.members("scheduled"), bus.waiting("a")) == ([second], [third])
    assert desk.ask("HKEYS", "groups") == [second.encode()]


def test_what_a_limit_holds_up_gives_way_before_what_can_run(bus: Bus) -> None:
    """A tenant that floods must not cost the others their events."""
    desk = bus.desk("a")
    bus.run(tenant_limits.limit(desk.keys, "g:flood", Limit(concurrency=1)))
    ids = [put_of(bus, "flood") for _ in range(4)]
    assert desk.claim(4) == ids[:1]
    other = put_of(bus, "calm")
    assert desk.members("waiting") == ids[1:]
    fresh = put_of(bus, "calm", most=4)
    assert (desk.members("waiting"), bus.waiting("a")) == (ids[2:], [other, fresh])
    assert desk.members("parked:g:flood") == ids[2:]
    assert bus.run(lag(desk.keys)).waiting == 4
    for _ in range(3):
        fresh = put_of(bus, "calm", most=4)
    assert desk.ask("EXISTS", "parked:g:flood", "parking", "waiting") == 0
    assert bus.waiting("a")[-1] == fresh
    empty = bus.desk("b")
    empty.push_one(needs="w 1 1000 ")
    assert put(bus, "b", new_id(), most=1) == [NO_ROOM], "nothing can give way"
    assert empty.stats().totals["overflow"] == 1
    assert desk.finish(ids[:1]) == []


# --- letters that others wrote


GARBAGE = [
    b"event\n",
    b"event\nx\n\n{",
    b"event\nx 1 a 100 1.0      \n\n{",
    b"event\nx one a 100 1.0    0  0 0\n\n{",
    b"event\nx 1 a 100 1.0    0  0 0\nmail:notifications:a 1\n{",
    b"event\nx 1 a 100 1.0    0  0 0\nmail:notifications:a many old 1\n{",
    b"event\n\xff\n\xff\n\xff",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_an_unreadable_outbox_message_is_dropped_and_delays_no_other(
    bus: Bus, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    bus.subscribe("shop.sold", "a")
    bus.own.ask("HSET", "letters", "x.event", garbage)
    bus.own.ask("ZADD", "errands", 1, "x.event")
    event = bus.publish()
    bus.advance(GONE)
    with caplog.at_level(logging.ERROR, "relevo.relay"):
        assert bus.relay().delivered == 2
    assert "outbox message x.event cannot be read and is dropped" in caplog.text
    assert (bus.waiting("a"), bus.outbox()) == ([event.id], {})


def test_a_queue_that_cannot_be_does_not_keep_the_event_from_the_others(
    bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [Recipient(queue, 10, "old", 0) for queue in ("dead_letter", "mail:responses", "q" * 500)]
    right = Recipient(queue_of("a"), 10, "old", 0)
    event = Event(new_id(), "shop.sold", 1, BODY, (*wrong, right), ANYWHERE, log=Log("mail:responses", 1, 1))
    with caplog.at_level(logging.ERROR, "relevo.relay"):
        bus.run(deliver_events(bus.app.engine.keys_of, [event]))
    assert bus.waiting("a") == [event.id]
    assert caplog.text.count("is dropped: no queue can be called so") == 4


# --- the queue of a subscription that ended


@pytest.mark.parametrize("how", ["durable", "broadcast"])
def test_the_queue_of_a_subscription_that_ended_is_cleared_and_forgotten(bus: Bus, server: Server, how: str) -> None:
    """A broadcast subscription ends with the lease of its instance."""
    bus.subscribe("shop.sold", "a", lease_ms=LEASE_MS if how == "broadcast" else 0)
    bus.subscribe("shop.sold", "b")
    ids = [bus.send(place=Place(100, "g")).id for _ in range(5)]
    desk = bus.desk("a")
    desk.claim(3, lease_ms=CLOSE_MS - 1)
    desk.turn(0, moved(ids[0], "retry", text=b"{}"))
    desk.turn(0, moved(ids[1], "back", text=b"{}"))
    desk.ask("HSET", f"carried:{ids[2]}", "s:fetch", "1")
    desk.ask("HSET", "paused", "w", 1)
    if how == "broadcast":
        bus.advance(LEASE_MS)
        assert len(bus.run(sweep(bus.keys)).removed) == 1
    else:
        bus.publish(place=Place(100, "g"))
        bus.run(unsubscribe(bus.keys, queue_of("a")))
    early = bus.relay()
    assert early.delivered == 0
    assert 0 < early.next_ms - early.now_ms <= CLOSE_MS
    assert desk.stats().living == 5
    bus.advance(CLOSE_MS)
    assert bus.relay().delivered == (1 if how == "broadcast" else 2), "also events that were under way"
    assert {key for key in everything(desk) if desk.ask("PTTL", key) == -1} == set()
    assert bus.run(bus_queues(bus.app.engine)) == [queue_of("b")]
    assert bus.waiting("b")[:5] == ids
    assert bus.outbox() == {}
    bus.run(unsubscribe(bus.keys, queue_of("b")))
    bus.advance(CLOSE_MS)
    bus.relay()
    assert bus.eternal() == set()
    assert leaks(server, bus.app.name) == []


def test_a_subscription_renewed_in_time_keeps_its_backlog(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    event = bus.send()
    bus.run(unsubscribe(bus.keys, queue_of("a")))
    bus.subscribe("shop.sold", "a")
    bus.advance(CLOSE_MS)
    assert bus.relay().delivered == 1
    assert bus.waiting("a") == [event.id]
    assert bus.run(bus_queues(bus.app.engine)) == [queue_of("a")]


def test_events_for_a_closed_queue_are_dropped_until_it_is_served_again(bus: Bus) -> None:
    """Its publisher stood still, so long that all else is over."""
    bus.subscribe("shop.sold", "a")
    event = bus.publish()
    bus.run(unsubscribe(bus.keys, queue_of("a")))
    bus.advance(CLOSE_MS)
    bus.relay()
    bus.run(deliver_event(bus.keys, bus.app.engine.keys_of, event))
    assert bus.desk("a").stats().living == 0
    assert bus.eternal() == set()
    bus.advance(1)
    bus.subscribe("shop.sold", "a")
    assert bus.waiting("a") == []
    event = bus.send()
    assert bus.waiting("a") == [event.id]


def test_what_still_runs_in_a_queue_that_is_closed_is_left_to_its_worker(bus: Bus) -> None:
    bus.subscribe("shop.sold", "a")
    desk = bus.desk("a")
    bus.run(tenant_limits.limit(desk.keys, "g:t7", Limit(concurrency=2)))
    first, second, *_ = ids = [put_of(bus, "t7") for _ in range(5)]
    assert desk.claim(4, lease_ms=60_000) == ids[:2]
    bus.run(unsubscribe(bus.keys, queue_of("a")))
    bus.advance(CLOSE_MS)
    assert bus.relay().delivered == 0
    assert desk.ask("HGET", "holding", "#g:t7") == b"2", "what runs still counts for its limit"
    assert desk.ask("EXISTS", "parked:g:t7") == desk.ask("EXISTS", "waiting") == 0
    assert desk.finish([first]) == []
    assert desk.stats().running == 1
    assert len(bus.outbox()) == 1
    bus.advance(60_000)
    assert bus.relay().delivered == 1, "the other one's worker is gone"
    assert desk.stats().living == 0
    assert desk.finish([second]) == [second.encode()]
    assert {key for key in everything(desk) if desk.ask("PTTL", key) == -1} == set()
    assert bus.outbox() == {}


def test_a_large_queue_is_cleared_in_bounded_calls(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOVED", 10)
    put(bus, "a", *(new_id() for _ in range(35)))
    desk = bus.desk("a")
    desk.claim(20, lease_ms=1)
    for _ in range(3):
        desk.push_one(needs="w 1 1000 ")
        desk.push_one(when="+60000", tenant="g")
    bus.subscribe("shop.sold", "a")
    bus.run(unsubscribe(bus.keys, queue_of("a")))
    bus.advance(CLOSE_MS)
    calls: list[str] = []
    plan = relay_events(bus.keys, bus.app.engine.keys_of, 1000)
    step_by_step(bus.run, plan, lambda name, _: calls.append(name))
    take = "engine/take_outbox"
    assert [name for name in calls if name] == [take, *["bus/close_subscription"] * 5, take]
    assert desk.stats().living == 0
    assert {key for key in everything(desk) if desk.ask("PTTL", key) == -1} == set()


@pytest.mark.parametrize("queue", ["default", "mail:actions", "mail:notifications:a b", "", "\\xff"])
def test_only_the_queue_of_a_subscription_can_be_closed(bus: Bus, queue: str) -> None:
    desks = [Desk(bus.run, bus.app.engine.keys_of(name), bus.server) for name in ("default", "mail:actions")]
    for desk in desks:
        desk.push()
    bus.own.ask("HSET", "letters", "closed.1.x", f"closed\n{queue}")
    bus.own.ask("ZADD", "errands", 1, "closed.1.x")
    assert bus.relay().delivered == 1
    assert [desk.stats().ready for desk in desks] == [1, 1]
    assert bus.outbox() == {}


# --- the lag of a subscription


def test_the_lag_is_what_waits_and_how_old_it_is(bus: Bus) -> None:
    assert bus.run(lag(bus.desk("a").keys)) == Lag(0, None, 0)
    put(bus, "b", "!")
    assert bus.run(lag(bus.desk("b").keys)) == Lag(1, None, 0), "an id that tells no time stops nothing"
    ids = [new_id() for _ in range(20)]
    put(bus, "a", *ids)
    desk = bus.desk("a")
    desk.claim(5)
    bus.advance(3_600_000)
    oldest_ms = made_ms(ids[5])
    assert bus.run(lag(desk.keys)) == Lag(15, oldest_ms, bus.own.now_ms - oldest_ms)
    desk.turn(0, moved(ids[0], "retry", ms=60_000))
    found = bus.run(lag(desk.keys))
    assert (found.waiting, found.oldest_ms) == (16, made_ms(ids[0])), "it waits for another attempt"


def test_an_old_event_behind_many_urgent_ones_is_seen(bus: Bus) -> None:
    old = Ids()()
    put(bus, "a", old, place=Place(150))
    later = f"{old[:8]}z{old[9:]}"
    put(bus, "a", *(later[:-3] + f"{n:03d}" for n in range(99)), place=Place(0))
    found = bus.run(lag(bus.desk("a").keys))
    assert (found.waiting, found.oldest_ms) == (100, made_ms(old))


# --- servers that are full, and clusters


def test_without_memory_nothing_new_is_published_but_nothing_is_lost(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path) as server:
        app = TimedApp("own", url=server.url, env="test", **PATIENT)
        bus = Bus(app, server)
        bus.own.clock.start()
        bus.subscribe("shop.sold", "a")
        bus.subscribe("shop.sold", "b", lease_ms=LEASE_MS)
        bus.subscribe("shop.sold", "c")
        event = bus.publish()
        bus.advance(GONE)
        server.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(OutOfMemory):
            bus.publish()
        with pytest.raises(OutOfMemory):
            bus.relay()
        assert bus.subscribe("shop.sold", "b", lease_ms=LEASE_MS) == "renewed"
        assert bus.run(unsubscribe(bus.keys, queue_of("c")))
        assert bus.run(sweep(bus.keys)).removed == []
        assert bus.run(finish(bus.keys, ["unknown"])) > 0
        server.command("CONFIG", "SET", "maxmemory", 0)
        bus.advance(GONE)
        bus.relay()
        assert (bus.waiting("a"), bus.waiting("b")) == ([event.id], [event.id])
        app.close()


@pytest.fixture(scope="module")
def cluster(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), engine) as cluster:
        yield cluster


async def test_subscriptions_may_be_on_all_nodes_of_a_cluster(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RESERVED_MS", 200)  # no clock can be moved there, so all must happen sooner
    monkeypatch.setattr(subscribing, "CLOSE_MS", 200)
    app = Relevo("nodes", url=cluster.url, env="test")
    names = [queue_of(f"s{n}") for n in range(8)]
    homes = {cluster.primary_of(app.engine.keys_of(name).key("jobs").decode()).port for name in names}
    assert len(homes) == 3, "the queues are on all nodes"
    many = [Subscription(pattern="shop.*", service="mail", queue=name) for name in names]
    assert app.engine.run(subscribe(app.engine.bus_keys, many)) == ["new"] * 8
    log = Log("shop:notifications", 60_000)
    ids = [new_id() for _ in range(4)]
    for blocking, id in enumerate(ids[:2]):
        plan = publish_and_deliver(app.engine.bus_keys, app.engine.keys_of, "shop.sold", id, BODY, log=log)
        event = app.engine.run(plan) if blocking else await app.engine.arun(plan)
        assert len(event.to) == 8
    for id in ids[2:]:
        await app.engine.arun(publish(app.engine.bus_keys, "shop.sold", id, BODY, log=log))
    assert await app.engine.arun(sweep(app.engine.bus_keys)) is not None

    async def is_done() -> bool:
        await app.engine.arun(relay_events(app.engine.bus_keys, app.engine.keys_of, 1000))
        return not await app.engine.arun(Call([b"HLEN", app.engine.bus_keys.key("letters")]))

    await aeventually(is_done, what="the outbox messages that were not delivered")
    for name in names:
        assert sorted(one.id for one in await app.queue(name).ajobs()) == sorted(ids)
        assert (await app.engine.arun(lag(app.engine.keys_of(name)))).waiting == 4
        assert await app.engine.arun(unsubscribe(app.engine.bus_keys, name))
    assert app.engine.run(subscriptions(app.engine.bus_keys)) == []
    await aeventually(is_done, what="the queues are cleared")
    for name in names:
        assert (await app.queue(name).astats()).living == 0
    await app.aclose()
    app.close()
