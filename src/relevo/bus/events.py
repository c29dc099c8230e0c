"""Events: published by one service, and handled once by every service that subscribed.

A subscription has a queue of its own. Workers register the subscriptions of their code when they start, and renew them
while they live. Publishing stores the event once and then delivers it to every queue; if the publisher dies in between,
any worker continues.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from relevo.bus.data import encoded_object
from relevo.bus.delivery_store import Event, Recipient, cut, put_events
from relevo.bus.event_store import deliver_event, publish
from relevo.bus.headers import Sending
from relevo.bus.history_store import NO_LOG, Log, Logged, LogPage, read_log
from relevo.bus.message_store import Place
from relevo.bus.naming import queue_of
from relevo.bus.outgoing import carried_by, inherited, place_of, track, tracked_by
from relevo.bus.subscription_store import Discard, Subscription
from relevo.engine.job import Envelope, Proof, write
from relevo.engine.job_store import readable
from relevo.engine.offers_store import SERVE_MS
from relevo.engine.signed_bodies import verify_body
from relevo.engine.topics import check_pattern, check_topic
from relevo.errors import OptionError
from relevo.store.plan import Call
from relevo.text.durations import Duration, seconds

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task

log = logging.getLogger("relevo.bus")

#: Least time after which a subscription may be removed: workers renew it every ten seconds.
LEAST_INACTIVE_MS = 60_000


class Subscribed(Struct, frozen=True, kw_only=True):
    """A subscription of a service of this app, and the handler of its events."""

    service: str
    pattern: str
    queue: str
    broadcast: bool
    max_backlog: int
    discard: Discard
    retention_ms: int
    inactive_ms: int
    task: Task[..., Any] | None = None

    @classmethod
    def of(
        cls,
        service: str,
        pattern: str,
        *,
        broadcast: bool,
        max_backlog: int,
        discard: str,
        retention: Duration,
        inactive_after: Duration,
    ) -> Subscribed:
        """A subscription from the options of `@svc.on(…)`, checked."""
        if broadcast not in (True, False) or not isinstance(broadcast, bool):
            raise OptionError(f"broadcast: True or False is needed, found {broadcast!r:.80}")
        if discard not in ("old", "new"):
            raise OptionError(f"discard: 'old' or 'new' is needed, found {discard!r:.80}")
        if not _is_count(max_backlog):
            raise OptionError(f"max_backlog: a whole number from 1 to a billion is needed, found {max_backlog!r:.80}")
        return cls(
            service=service,
            pattern=check_pattern(pattern),
            queue=queue_of(service, (), "notifications", pattern),
            broadcast=broadcast,
            max_backlog=max_backlog,
            discard="old" if discard == "old" else "new",
            retention_ms=_ms(retention, "retention"),
            inactive_ms=_inactive_ms(inactive_after),
        )

    def queue_for(self, worker: str) -> str:
        """The queue that a worker reads: one for all workers of the service, or of a broadcast, one for each."""
        return queue_of(self.service, (worker,), "notifications", self.pattern) if self.broadcast else self.queue

    def registered(self, worker: str) -> Subscription:
        """As the bus stores it."""
        return Subscription(
            pattern=self.pattern,
            service=self.service,
            queue=self.queue_for(worker),
            max_backlog=self.max_backlog,
            discard=self.discard,
            retention_ms=self.retention_ms,
            inactive_ms=self.inactive_ms,
            lease_ms=SERVE_MS if self.broadcast else 0,
        )


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 1_000_000_000


def _ms(given: Duration, what: str) -> int:
    found = round(seconds(given, what=what) * 1000)
    if found < 1:
        raise OptionError(f"{what}: more than 0 seconds is needed, found {given!r:.80}")
    return found


def _inactive_ms(given: Duration) -> int:
    found = _ms(given, "inactive_after")
    if found < LEAST_INACTIVE_MS:
        raise OptionError(f"inactive_after: at least a minute is needed, found {given!r:.80}")
    return found


def log_of(service: str, keep: Duration | None) -> Log:
    """The log that keeps a service's events for catch-up; NO_LOG without `keep_events`."""
    return NO_LOG if keep is None else Log(queue_of(service, (), "notifications"), _ms(keep, "keep_events"))


def publishing(
    engine: Engine, service: str, topic: str, data: Any, options: Sending, kept: Log
) -> Generator[Call[Any], Any, Event]:
    """Publish an event of a service: it is stored, and will be delivered even if this process dies."""
    if not isinstance(topic, str):
        raise OptionError(f"topic: text such as 'document_processed' is needed, found {topic!r:.80}")
    type = check_topic(f"{service}.{topic}")
    if options.at is not None or options.delay is not None or options.idempotency_key is not None:
        raise OptionError("at, delay and idempotency_key are for messages to one service; an event has none of them")
    raw = encoded_object(data, what=type, limit=engine.settings.max_payload)
    tenant, headers = inherited(engine, service, options, "event")
    place = place_of(engine, options, tenant, headers.tier)
    id, tracked = engine.new_id(), tracked_by(engine, headers)
    signer = engine.keys_of(queue_of(service, (), "actions")).signer
    proof = None if signer is None else Proof(made_ms=(yield from engine.about_now_ms()))
    envelope = Envelope(type, headers=headers, proof=proof, job_headers=carried_by(options, type), **place.chosen)
    body = write(envelope)[:-1] + b',"k":' + raw
    if signer is not None:
        body += signer.signature_field("event", id, body, service=service, topic=type)
    event: Event = yield publish(engine.bus_keys, type, id, body, place, tracked=tracked, log=kept)
    return event


def delivering(engine: Engine, event: Event) -> Generator[Call[Any], Any, None]:
    """Deliver an event that was published to its subscriptions. If this fails, a worker does it."""
    yield from track(engine, event.tracked, *(to.queue for to in event.to))
    yield from deliver_event(engine.bus_keys, engine.keys_of, event)


def catching_up(engine: Engine, subscribed: Subscribed, since: Duration | datetime) -> Generator[Call[Any], Any, int]:
    """Store the events of a log since a time in a subscription's queue, as new events. Returns how many."""
    service = subscribed.pattern.partition(".")[0]
    if subscribed.broadcast:
        raise OptionError("catch_up: events of a broadcast are not repeated, since its queues end with their processes")
    if service in ("*", ">"):
        raise OptionError(f"catch_up: {subscribed.pattern!r} names no service, and each log belongs to one")
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise OptionError(f"since: {since!r} has no time zone; use datetime.now(UTC) or add tzinfo")
        since_ms = int(since.timestamp() * 1000) if since.year >= 1970 else 0
    else:
        since_ms = (yield from engine.now_ms()) - _ms(since, "since")
    now_ms = yield from engine.now_ms()
    keys = engine.keys_of(queue_of(service, (), "notifications"))
    to = Recipient(subscribed.queue, subscribed.max_backlog, subscribed.discard, subscribed.retention_ms)
    yield from engine.list_queue(subscribed.queue)
    seen: set[str] = set()
    after, stored = "", 0
    while True:
        page: LogPage = yield read_log(keys, since_ms=max(0, since_ms), pattern=subscribed.pattern, after=after)
        unseen = [one for one in page.events if one.id not in seen]
        fresh = [event for one in unseen if (event := _again(engine, one, now_ms, to)) is not None]
        for event in fresh:
            yield from track(engine, event.tracked, to.queue)
        seen.update(one.id for one in page.events)
        for some in cut(fresh):
            stored += sum(code > 0 for code in (yield put_events(engine.keys_of(to.queue), to, some)))
        if not page.after:
            return stored
        after = page.after


def _again(engine: Engine, logged: Logged, now_ms: int, to: Recipient) -> Event | None:
    """A logged event as a new one with the same headers, so that it is handled although the first one was."""
    signer = engine.keys_of(to.queue).signer
    envelope = readable(logged.body)
    if envelope is None or envelope.headers is None:
        log.error("%s: skipped an entry of the log that is no event: %.100r", logged.topic, logged.body)
        return None
    if signer is not None and (error := verify_body(signer, logged.id, logged.body, envelope)):
        log.error("%s: skipped event %s of the log: %s", logged.topic, logged.id, error)
        return None
    id = engine.new_id()
    place = Place(envelope.priority, envelope.tenant, envelope.weight)
    proof = None if signer is None else Proof(made_ms=now_ms)
    plain = msgspec.structs.replace(envelope, kwargs=Envelope("").kwargs, proof=proof, signature="")
    body = write(plain)[:-1] + b',"k":' + bytes(envelope.kwargs)
    if signer is not None:
        # Signed by the subscriber, which need not have the publisher's key.
        body += signer.signature_field("copy", id, body)
    return Event(id, logged.topic, now_ms, body, (to,), place, tracked_by(engine, envelope.headers))
