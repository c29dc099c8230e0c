"""Delivery of events: from the outbox message that publishing wrote into the queues of all subscribers.

The outbox message holds the event once, its recipients, and how much each of them can take. Each recipient gets a job
with the event's id, so that repeated deliveries have no effect. `bus/publish_event.lua` writes the outbox message:

    event
    <id> <when, ms> <topic> <priority> <weight> <tenant> <tier> <conversation> <ms> <log> <ms> <most>
    <queue> <max_backlog> <discard> <retention, ms> <since, ms> <queue> …
    <body without its closing brace>
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from msgspec import Struct

from relevo.bus.history_store import NO_LOG, Log, Logged, log_events
from relevo.bus.message_store import NO_CONVERSATION, Place, Tracked
from relevo.engine.edges import label
from relevo.engine.outbox import CARRIERS, Carrier, KeysOf
from relevo.engine.push import CHUNK_BYTES, KEEP_MS
from relevo.errors import ConfigurationError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

log = logging.getLogger("relevo.relay")

#: First line of an outbox message that holds an event.
EVENT = b"event\n"
#: Events per call, so that no script runs long.
TOGETHER = 100

#: Outcomes of an event in one queue.
STORED, IN_PLACE_OF_AN_OLDER, KNOWN, NO_ROOM = 1, 2, 0, -1

Sized = TypeVar("Sized", "Event", Logged)


class Recipient(Struct, frozen=True):
    """A subscription's queue, and how much it takes."""

    queue: str
    max_backlog: int
    discard: str
    retention_ms: int
    #: When the subscription was made: a later one has another time. 0: ignored.
    since_ms: int = 0


class Event(Struct, frozen=True):
    """A published event."""

    id: str
    topic: str
    #: By the server's clock.
    at_ms: int
    #: Of its jobs, without its closing brace.
    body: bytes
    to: tuple[Recipient, ...]
    place: Place
    tracked: Tracked = NO_CONVERSATION
    log: Log = NO_LOG

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to deliver, and so an outbox message."""
        return bool(self.to or self.log.queue)

    def body_for(self, to: Recipient) -> bytes:
        """The job of one recipient; it ends with its deadline."""
        return self.body + (b',"x":%d}' % (self.at_ms + to.retention_ms) if to.retention_ms else b"}")


def letter_id(event: str) -> str:
    """The id of the outbox message that holds an event."""
    return event + ".event"


def terms(place: Place, tracked: Tracked, log: Log) -> str:
    """What the delivery of an event needs besides the fields that `bus/publish_event.lua` writes, as words."""
    words = (
        place.priority,
        place.weight,
        label(place.tenant),
        label(place.tier),
        label(tracked.conversation),
        tracked.ttl_ms,
        label(log.queue),
        log.keep_ms,
        log.most,
    )
    return " ".join(map(str, words))


def recipients(text: bytes) -> tuple[Recipient, ...]:
    """Read the recipients of an event."""
    words = text.decode(errors="replace").split(" ") if text else []
    rows = zip(*(words[n::5] for n in range(5)), strict=True)
    return tuple(Recipient(queue, int(most), discard, int(ms), int(since)) for queue, most, discard, ms, since in rows)


def event_of(text: bytes) -> Event:
    """Read an outbox message that holds an event; ValueError for any other."""
    _, head, rows, body = text.split(b"\n", 3)
    id, at, topic, priority, weight, *named = head.decode().split(" ")
    tenant, tier, conversation, known_ms, where, keep_ms, most = map(unquote, named)
    return Event(
        id,
        topic,
        int(at),
        body,
        recipients(rows),
        Place(int(priority), tenant, float(weight), tier),
        Tracked(conversation, int(known_ms)),
        Log(where, int(keep_ms), int(most)),
    )


def put_events(queue: QueueKeys, to: Recipient, events: Sequence[Event]) -> Call[list[int]]:
    """Store events in the queue of one recipient, at most TOGETHER: for each the outcome, such as STORED."""
    script = queue.script("bus/deliver_events")
    args: list[Argument] = [to.since_ms, to.max_backlog, to.discard, KEEP_MS]
    for one in events:
        place, tracked = one.place, one.tracked
        args += (one.id, place.priority, place.tenant, place.weight, place.tier, tracked.conversation, tracked.ttl_ms)
        args.append(one.body_for(to))
    return Call(args, list, script, queue.of(script), numbered=True, timed=True)


def deliver_events(keys_of: KeysOf, events: Iterable[Event]) -> Generator[Call[Any], Any, None]:
    """Deliver events to all their recipients, in calls that are bounded in rows and bytes, and to their logs."""
    by_recipient: dict[Recipient, list[Event]] = {}
    by_log: dict[Log, list[Logged]] = {}
    for one in events:
        for to in one.to:
            by_recipient.setdefault(to, []).append(one)
        if one.log.queue:
            by_log.setdefault(one.log, []).append(Logged(one.id, one.topic, one.at_ms, one.body + b"}"))
    for to, theirs in by_recipient.items():
        if (keys := _keys(keys_of, to.queue)) is not None:
            for some in cut(theirs):
                yield put_events(keys, to, some)
    for where, logged in by_log.items():
        if (keys := _keys(keys_of, where.queue)) is not None:
            for entries in cut(logged):
                yield log_events(keys, entries, keep_ms=where.keep_ms, most=where.most)


def _keys(keys_of: KeysOf, queue: str) -> QueueKeys | None:
    try:
        return keys_of(queue)
    except ConfigurationError:  # written by another program; the other recipients must get the event
        log.error("an event for %.200r is dropped: no queue can be called so", queue)
        return None


def cut(events: list[Sized]) -> Iterator[list[Sized]]:
    """Cut events into parts that fit in one call."""
    some: list[Sized] = []
    size = 0
    for one in events:
        if some and (len(some) >= TOGETHER or size + len(one.body) > CHUNK_BYTES):
            yield some
            some, size = [], 0
        some.append(one)
        size += len(one.body)
    if some:
        yield some


CARRIERS[EVENT] = Carrier(event_of, deliver_events)
