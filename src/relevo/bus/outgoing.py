"""From a call to a message: its id, queue, headers and body."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from relevo.bus.bus import Bus
from relevo.bus.conversation_store import enlist
from relevo.bus.data import encoded_object
from relevo.bus.headers import Sending, headers_of
from relevo.bus.message_store import Name, Place, Tracked
from relevo.bus.naming import context_of, parts_of, queue_of
from relevo.engine.context import running
from relevo.engine.job import Envelope, Proof, write
from relevo.engine.message import Headers, Intent
from relevo.engine.signed_bodies import digest_of
from relevo.errors import OptionError, RequestTimeout
from relevo.middleware.headers import encoded as encoded_headers
from relevo.store.plan import Call
from relevo.text.durations import Duration, seconds
from relevo.text.names import Address
from relevo.text.nearest import did_you_mean

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Ten minutes: the same idempotency key means the same message for so long.
HOLD_MS = 600_000


class Outgoing(Struct, frozen=True, kw_only=True):
    """A message that is ready to be sent."""

    id: str
    type: str
    queue: str
    headers: Headers
    place: Place
    #: Its data as JSON.
    data: bytes
    #: Seconds until it is no longer worth starting; None: no limit.
    timeout: float | None
    name: Name
    #: Options of the job that its sender chose: retries, how long its result is kept, …
    chosen: dict[str, Any]
    delay_ms: int = 0
    #: The body up to its data, where that is known before.
    head: bytes = b""

    def is_claimed(self, engine: Engine) -> bool:
        """Whether its data is too large to travel inside."""
        return len(self.data) > engine.settings.claim_check

    def body(self, engine: Engine, headers: Headers | None = None, deadline_ms: int | None = None) -> bytes:
        """Its body without the closing brace; with its deadline and a signature, if this app signs."""
        text = self._text(engine, headers)
        signer = engine.keys_of(self.queue).signer
        if signer is None:
            return text
        if deadline_ms is not None:
            text += b',"x":%d' % deadline_ms
        return text + signer.signature_field(self.headers.intent, self.id, text, service=self.headers.source)

    def _text(self, engine: Engine, headers: Headers | None) -> bytes:
        is_claimed = self.is_claimed(engine)
        if self.head and not is_claimed:
            return self.head + self.data
        head = write(
            Envelope(
                self.type,
                takes="claim" if is_claimed else "",
                later_ms=self.delay_ms or None,
                headers=self.headers if headers is None else headers,
                proof=Proof(data=digest_of(self.data)) if is_claimed and engine.keyring else None,
                **self.place.chosen,
                **self.chosen,
            )
        )[:-1]
        return head if is_claimed else head + b',"k":' + self.data

    def template(self, engine: Engine) -> bytes:
        """The body up to its data, for other messages like this one, which has none."""
        return self._text(engine, None).removesuffix(b"{}")

    def timed(self, engine: Engine, timeout: float | None) -> Generator[Call[Any], Any, tuple[int | None, int]]:
        """Its deadline, for its body, or how many ms it has from when it is stored, for the server to set it.

        One of the two: a deadline that is signed must be known before the call.
        """
        left_ms = 0 if timeout is None else max(1, round(timeout * 1000))
        if not engine.keyring or not left_ms:
            return None, left_ms
        return (yield from engine.about_now_ms()) + left_ms + self.delay_ms, 0


def outgoing(
    engine: Engine,
    source: str,
    type: str,
    data: Any,
    options: Sending,
    *,
    intent: Intent,
    timeout: float | None = None,
    **chosen: Any,
) -> Outgoing:
    """A message from a service to an action, with all that it inherits."""
    service, _ = parts_of(type)
    queue = queue_of(service, context_of(options.at), "actions")
    raw = encoded_object(data, what=type, limit=engine.settings.max_payload)
    tenant, headers = inherited(engine, source, options, intent)
    if carried := carried_by(options, type):
        chosen["job_headers"] = carried
    id = engine.new_id()
    name = Name()
    if options.idempotency_key:
        owner = ":".join(quote(part, safe="") for part in (source, tenant, options.idempotency_key))
        # The result of a request is kept for repeated requests; a failed one left none, and runs again.
        name = Name(f"{type}:{owner}", HOLD_MS, intent == "request")
    return Outgoing(
        id=id,
        type=type,
        queue=queue,
        headers=headers,
        place=place_of(engine, options, tenant, headers.tier),
        data=raw,
        timeout=timeout,
        name=name,
        chosen=chosen,
        delay_ms=round(seconds(options.delay, what="delay") * 1000) if options.delay else 0,
    )


def like_the_last(engine: Engine, source: str, type: str, data: Any, timeout: float) -> Outgoing:
    """A request without options or inherited headers: only its id and data differ from the last one of its type."""
    parts_of(type)  # refuses an invalid type
    known = engine.part(Bus).templates.get((source, type))
    instance = engine.part(Bus).instance
    address = responses(engine.settings.prefix, engine.settings.env, source, instance)
    if known is None or known.headers.reply_to != address:
        plain = outgoing(engine, source, type, {}, Sending(), intent="request", passes=True, retries=0)
        plain = msgspec.structs.replace(plain, headers=with_reply_to(plain.headers, address))
        known = msgspec.structs.replace(plain, head=plain.template(engine))
        if len(engine.part(Bus).templates) > 1000:  # types come from the program, but may be made from input
            engine.part(Bus).templates.clear()
        engine.part(Bus).templates[source, type] = known
    raw = encoded_object(data, what=type, limit=engine.settings.max_payload)
    return Outgoing(
        id=engine.new_id(),
        type=type,
        queue=known.queue,
        headers=known.headers,
        place=known.place,
        data=raw,
        timeout=timeout,
        name=known.name,
        chosen=known.chosen,
        delay_ms=0,
        head=known.head,
    )


@lru_cache(maxsize=256)
def responses(prefix: str, env: str, service: str, instance: str) -> str:
    """The address of a process' inbox, which gets all answers to its requests."""
    return str(Address(prefix, env, service, (), "responses", (instance,)))


def inherited(engine: Engine, source: str, options: Sending, intent: Intent) -> tuple[str, Headers]:
    """The tenant and headers of a message: its own options, else those of the message being handled."""
    job = running.get()
    instance = job.worker if job is not None else engine.part(Bus).instance
    parent = job.message if job is not None else None
    tenant, headers = headers_of(options, parent, intent=intent, source=source, instance=instance)
    if engine.telemetry is not None and options.traceparent is None:
        traceparent, tracestate = engine.telemetry.here()
        if traceparent:  # the span in which it is sent, not that of the message being handled
            headers = msgspec.structs.replace(headers, traceparent=traceparent, tracestate=tracestate)
    return tenant, headers


def carried_by(options: Sending, type: str) -> dict[str, str] | None:
    """The headers that a message has from middleware, else from the job that sends it."""
    carried = options._carried
    if carried is None:
        job = running.get()
        return None if job is None else job._headers
    if carried:
        encoded_headers(carried, what=type)
    return carried or None


def place_of(engine: Engine, options: Sending, tenant: str, tier: str) -> Place:
    """The place of a message of this tenant: the tier is its share."""
    tiers = engine.settings.tiers
    if options.tier and options.tier not in tiers:
        raise OptionError(f"tier: none of {', '.join(tiers)}, found {tier!r}{did_you_mean(tier, tiers)}")
    # An inherited tier may be unknown here: the sender has other settings, or the tier was renamed.
    return Place(options.priority, tenant, tiers.get(tier, 1.0), tier)


def tracked_by(engine: Engine, headers: Headers) -> Tracked:
    """The conversation on whose behalf a message with these headers is made."""
    return (
        Tracked(headers.conversation, round(engine.settings.conversation_ttl * 1000))
        if headers.conversation
        else Tracked()
    )


def track(engine: Engine, tracked: Tracked, *queues: str) -> Generator[Call[Any], Any, None]:
    """Note the queues in which a conversation makes jobs, before they are made, to find them without a search.

    A lost note loses nothing: each queue lists what it holds of a conversation.
    """
    if tracked.conversation and queues:
        yield enlist(engine.bus_keys.own("made", tracked.conversation), queues, tracked.ttl_ms)


def time_left(timeout: Duration, type: str) -> float:
    """Seconds for a request: its timeout, but no more than is left of the request that is being handled."""
    limit = seconds(timeout, what="timeout")
    if limit <= 0:
        raise OptionError(f"timeout: more than 0 seconds is needed, found {timeout!r:.80}")
    job = running.get()
    if job is None or not job.deadline_at:
        return limit
    left = job.deadline_at - time.monotonic()
    if left <= 0:
        raise RequestTimeout(f"{type} was not sent: the time of the request {job.id} that asks for it is up")
    return min(limit, left)


def with_reply_to(headers: Headers, address: str, callback: str = "") -> Headers:
    """The same headers with the address of the reply."""
    return msgspec.structs.replace(headers, reply_to=address, callback=callback)
