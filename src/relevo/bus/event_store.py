"""Events: published to all subscriptions to their topic, and delivered even if the publisher dies.

Publishing writes one message into the outbox of the bus, leased to the publisher for two seconds. The publisher
delivers it at once; if it is not reported as delivered by then, any worker that relays the bus delivers it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from relevo.bus.delivery_store import Event, deliver_events, letter_id, recipients, terms
from relevo.bus.history_store import NO_LOG, Log
from relevo.bus.message_store import NO_CONVERSATION, Place, Tracked
from relevo.bus.subscription_store import CLOSE_MS
from relevo.engine.ids import looks_like_id, made_ms
from relevo.engine.job import PRIORITY_DEFAULT
from relevo.engine.outbox import RESERVED_MS, KeysOf, Taken, deliver, relay, take_outbox
from relevo.engine.push import KEEP_MS
from relevo.engine.topics import check_topic
from relevo.errors import ConfigurationError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.text.names import parse

#: First line of an outbox message about a subscription that ended; see bus/lua/include/subscription.lua.
CLOSED = b"closed\n"
#: Jobs of such a queue that one call removes.
REMOVED = 100
#: Counters of a queue that outlive it.
_KEPT = ("done", "dead", "expired", "cleaned")
#: Entries that are looked at, in each of a few places, to find the oldest job of a queue.
LOOKED_AT = 10

ANYWHERE = Place(PRIORITY_DEFAULT)


def publish(
    bus: QueueKeys,
    topic: str,
    id: str,
    body: bytes,
    place: Place = ANYWHERE,
    *,
    tracked: Tracked = NO_CONVERSATION,
    log: Log = NO_LOG,
) -> Call[Event]:
    """Store an event for all subscriptions to its topic. Its delivery is leased to the caller for two seconds.

    `body` is that of its jobs, JSON without the closing brace. Without a subscription, nothing is written.
    """
    script = bus.script("bus/publish_event")

    def decode(reply: list[bytes]) -> Event:
        at_ms, *to = reply
        if not to:  # an earlier try was stored and delivered
            return Event(id, topic, int(at_ms), body, (), place, tracked)
        return Event(id, topic, int(at_ms), body, recipients(to[0]), place, tracked, log)

    details, logged = terms(place, tracked, log), int(bool(log.queue))
    args: list[Argument] = [check_topic(topic), id, details, logged, RESERVED_MS, CLOSE_MS, body]
    return Call(args, decode, script, bus.of(script), numbered=True, timed=True)


def deliver_event(bus: QueueKeys, keys_of: KeysOf, event: Event) -> Generator[Call[Any], Any, None]:
    """Deliver an event that was just published, and report it. If this fails, a worker delivers it."""
    if event.is_wanted:
        yield from deliver_events(keys_of, [event])
        yield finish(bus, [letter_id(event.id)])


def publish_and_deliver(
    bus: QueueKeys,
    keys_of: KeysOf,
    topic: str,
    id: str,
    body: bytes,
    place: Place = ANYWHERE,
    *,
    tracked: Tracked = NO_CONVERSATION,
    log: Log = NO_LOG,
) -> Generator[Call[Any], Any, Event]:
    """Publish an event and deliver it at once: two calls, and one for each recipient and the log."""
    event: Event = yield publish(bus, topic, id, body, place, tracked=tracked, log=log)
    yield from deliver_event(bus, keys_of, event)
    return event


def finish(bus: QueueKeys, letters: Sequence[str]) -> Call[int]:
    """Report outbox messages as delivered and take no others. Returns when the next one is due, 0 if there is none."""
    script = bus.script("engine/take_outbox")
    return Call([RESERVED_MS, 0, 0, *letters], lambda reply: reply[3], script, bus.of(script))


class Relayed(Struct, frozen=True):
    """The result of relaying the bus."""

    #: Outbox messages that were delivered.
    delivered: int
    #: When the next one is due, 0 if there is none; and what time it is.
    next_ms: int
    now_ms: int


def relay_events(bus: QueueKeys, keys_of: KeysOf, dead_max: int) -> Generator[Call[Any], Any, Relayed]:
    """Deliver what publishers could not, and clear the queues of subscriptions that ended."""
    finished: list[str] = []
    delivered = 0
    while True:
        taken: Taken = yield take_outbox(bus, finished)
        if not taken.ids:
            return Relayed(delivered, taken.next_ms, taken.now_ms)
        letters = list(zip(taken.ids, taken.texts, strict=True))
        # Events first: those that reach a closed queue are then removed with it.
        events = [(id, text) for id, text in letters if not text.startswith(CLOSED)]
        finished, onward = yield from deliver(keys_of, bus, events, dead_max)
        for id, text in letters:
            if text.startswith(CLOSED):
                queue, _, since = text.removeprefix(CLOSED).decode(errors="replace").partition("\n")
                if (yield from _clear_up(bus, keys_of, queue, int(since) if since.isdecimal() else 0)):
                    finished.append(id)
        if onward:
            yield from relay(keys_of, onward, dead_max)
        delivered += len(finished)


def close(queue: QueueKeys, since_ms: int) -> Call[tuple[int, int, dict[str, int]]]:
    """Remove jobs of a queue without a subscription: how many, how many are left; if none, its counters."""
    script = queue.script("bus/close_subscription")

    def decode(reply: list[Any]) -> tuple[int, int, dict[str, int]]:
        removed, left, totals = reply
        return removed, left, {totals[i].decode(): int(totals[i + 1]) for i in range(0, len(totals), 2)}

    return Call([since_ms, REMOVED], decode, script, queue.of(script))


def _count_in(bus: QueueKeys, totals: Mapping[str, int], swept: int) -> Generator[Call[Any], Any, None]:
    """Add the counters of a removed queue to those of the bus."""
    counted = {"created": totals.get("enqueued", 0), "swept": swept, **{name: totals.get(name, 0) for name in _KEPT}}
    for name, count in counted.items():
        if count:
            yield Call([b"HINCRBY", bus.key("stats"), f"notifications:{name}", count], repeatable=False)
    yield Call([b"PEXPIRE", bus.key("stats"), KEEP_MS])


def _clear_up(bus: QueueKeys, keys_of: KeysOf, queue: str, since_ms: int) -> Generator[Call[Any], Any, bool]:
    """Empty the queue of a subscription that ended. Returns whether it is empty: running jobs are waited for."""
    try:
        keys = keys_of(queue)
        if parse(queue, prefix=False, env=False).kind != "notifications":
            return True  # only another program writes that as a subscription
    except ConfigurationError:
        return True
    if (yield Call([b"HEXISTS", bus.key("subscriptions"), queue])):
        return True  # there is a new subscription, which continues with this queue
    swept, removed, totals = 0, REMOVED, dict[str, int]()
    while removed == REMOVED:
        removed, left, totals = yield close(keys, since_ms)
        swept += removed
    if left:
        return False
    yield from _count_in(bus, totals, swept)
    if not (yield Call([b"HEXISTS", bus.key("subscriptions"), queue])):  # no new subscription since
        yield Call([b"ZREM", bus.key("queues"), queue])
    return True


class Lag(Struct, frozen=True):
    """How far behind a queue is."""

    #: Jobs that wait for a worker, or for another attempt.
    waiting: int
    #: When the oldest of them was made, and how long ago that is; None: none waits.
    oldest_ms: int | None
    age_ms: int


def lag(queue: QueueKeys) -> Call[Lag]:
    """How far behind a queue is, at the same cost however much is in it."""
    script = queue.script("bus/measure_lag")

    def decode(reply: list[Any]) -> Lag:
        now_ms, waiting, oldest = reply
        id = oldest.decode(errors="replace")
        if not looks_like_id(id):
            return Lag(waiting, None, 0)
        return Lag(waiting, made_ms(id), max(0, now_ms - made_ms(id)))

    return Call([LOOKED_AT], decode, script, queue.of(script))
