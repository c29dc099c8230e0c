"""Traces one operation through all services: what was handled, and what still waits or runs."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relevo.bus.conversations import listing
from relevo.bus.span import Span, timeline
from relevo.bus.span_store import spans_of
from relevo.engine.ids import looks_like_id, made_ms
from relevo.engine.job import State
from relevo.engine.job_store import Seen, look, readable
from relevo.engine.lists import bus_queues
from relevo.errors import OptionError
from relevo.queues.store import Listed, page
from relevo.store.plan import Ahead, Call

#: Messages of each queue and state that are looked at.
FRONT = 100

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def tracing(engine: Engine, id: str) -> Generator[Call[Any] | Ahead[Any], Any, list[Span]]:
    """All that is known of an operation, oldest first; of handled messages, the newest `trace_max`."""
    if not id or not str(id).isprintable():
        raise OptionError(f"the id of an operation, a conversation or a message is needed, found {id!r:.80}")
    found: list[Span] = yield from spans_of(engine.bus_keys, id)
    known = {(span.queue, span.id) for span in found if span.outcome not in ("retry", "back")}
    alive = yield from _of_conversation(engine, id)
    if looks_like_id(id):
        alive += yield from _of_message(engine, id)
    alive += yield from _waiting(engine, id)
    for span in alive:
        if (span.queue, span.id) not in known:
            known.add((span.queue, span.id))
            found.append(span)
    return [span for _, span in timeline(found)]


def _of_conversation(engine: Engine, conversation: str) -> Generator[Call[Any] | Ahead[Any], Any, list[Span]]:
    made = yield from listing(engine, conversation)
    living = [one for one in made if not one.state.has_ended]
    seen: list[Seen] = yield Ahead(look(engine.keys_of(one.queue), one.id) for one in living)
    return [span for one, there in zip(living, seen, strict=True) if (span := _span(one.queue, there)) is not None]


def _of_message(engine: Engine, id: str) -> Generator[Call[Any] | Ahead[Any], Any, list[Span]]:
    names = yield from bus_queues(engine)
    seen: list[Seen] = yield Ahead(look(engine.keys_of(name), id) for name in names)
    return [span for name, there in zip(names, seen, strict=True) if (span := _span(name, there)) is not None]


def _waiting(engine: Engine, id: str) -> Generator[Call[Any] | Ahead[Any], Any, list[Span]]:
    """Messages of an operation at the front of a queue, where it is stuck if it is. There is no index of the others."""
    names = yield from bus_queues(engine)
    places = [(name, state) for name in names for state in ("ready", "running", "scheduled", "waiting")]
    pages: list[list[Listed]] = yield Ahead(page(engine.keys_of(name), state, 0, FRONT) for name, state in places)
    found = []
    for (name, _), rows in zip(places, pages, strict=True):
        for one in rows:
            seen = Seen(one.id, one.state, one.envelope, one.body, claim=one.claim)
            span = _span(name, seen)
            if span is not None and span.belongs_to(id):
                found.append(span)
    return found


def _span(queue: str, seen: Seen) -> Span | None:
    if seen.state is State.UNKNOWN:
        return None
    envelope = seen.envelope or readable(seen.body)
    if envelope is None or envelope.headers is None:
        return None
    headers, record, claim = envelope.headers, seen.record, seen.claim
    return Span(
        id=seen.id,
        type=envelope.target,
        queue=queue,
        intent=headers.intent,
        source=headers.source,
        worker=record.worker if record else claim.worker if claim and seen.state is State.RUNNING else "",
        tenant=envelope.tenant,
        conversation=headers.conversation,
        correlation=headers.correlation or seen.id,
        causation=headers.causation,
        attempt=len(seen.story.attempts) + 1,
        sent_ms=made_ms(seen.id),
        started_ms=record.started_ms if record else claim.since_ms if claim and seen.state is State.RUNNING else 0,
        ended_ms=record.ended_ms if record else 0,
        outcome=seen.state.value,
        error=record.reason if record else "",
    )
