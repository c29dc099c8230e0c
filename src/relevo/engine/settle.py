"""From a decision to what the turn script applies: the only place where a job's record is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from relevo.engine.fingerprint import error_line, fingerprint
from relevo.engine.job import NO_JSON, Attempt, Envelope, Record, State, Story, read_envelope, write
from relevo.engine.outcome import End, Finish, GiveBack, Outcome, Reroute, TryAgain
from relevo.engine.signed_bodies import verify_body
from relevo.engine.signed_ends import signed_record
from relevo.engine.turn import Moved
from relevo.signing import Signer
from relevo.text.names import is_bus_name
from relevo.version import __version__


class Failure(Struct, frozen=True, omit_defaults=True):
    """What an `on_failure` handler is given: the job, and why it was given up."""

    job: str
    task: str
    queue: str
    reason: str
    error: str = ""
    message: str = ""
    traceback: str = ""
    #: What the job was called with, as JSON values: a list, and a dict.
    args: Any = []
    kwargs: Any = {}
    attempts: tuple[Attempt, ...] = ()
    name: str = ""
    tags: tuple[str, ...] = ()


class Held(Struct, frozen=True, gc=False):
    """A job that a worker holds."""

    id: str
    token: int
    body: bytes
    #: None: the body cannot be read.
    envelope: Envelope | None
    story: Story = Story()
    #: Its worker, and since when it holds the job.
    worker: str = ""
    since_ms: int = 0
    cancel_asked: bool = False


class Terms(Struct, frozen=True):
    """What is kept of a job that ends."""

    queue: str
    result_ttl_ms: int
    failure_ttl_ms: int
    on_failure: str | None = None
    #: Id for the job of the handler, if there is one.
    follow_id: str = ""
    #: It is a request: its outcome goes to the caller and is not kept.
    is_asked: bool = False
    #: The answer is kept for a moment if no process received it. Not in a cluster, where a server counts only its own
    #: subscribers.
    is_spared: bool = True
    #: The caller may see the traceback.
    shows_traceback: bool = False
    #: Signs what became of the job, and the handler's job.
    signer: Signer | None = None


#: Bytes of a body that the record of a done job keeps whole; of a larger one it keeps all but the arguments. A record
#: lives for `result_ttl` beside thousands of others, and people look at arguments, not at megabytes.
BODY_KEPT = 4096
_NOT_KEPT = Raw(b"null")


def kept_body(held: Held) -> bytes:
    """The body as the record of a done job keeps it. Arguments that are not kept are null there."""
    if len(held.body) <= BODY_KEPT or held.envelope is None:
        return held.body
    # Not held.envelope: what the job took from its parents is among the arguments there.
    envelope = msgspec.structs.replace(read_envelope(held.body), args=_NOT_KEPT, kwargs=_NOT_KEPT, job_headers=None)
    return write(envelope)


def done_record(held: Held, now_ms: int, result: bytes, not_kept: str = "", *, keeps_body: bool = True) -> Record:
    """The record of a job that went well. The purge reads its target at its beginning."""
    assert held.envelope is not None
    return Record(
        State.DONE,
        held.envelope.target,
        started_ms=held.since_ms,
        ended_ms=now_ms,
        worker=held.worker,
        runs=len(held.story.attempts) + 1,
        result=Raw(result) if result else NO_JSON,
        not_kept=not_kept,
        story=held.story,
        body=Raw(kept_body(held)) if keeps_body else NO_JSON,
    )


def ended_record(held: Held, outcome: End, now_ms: int, queue_from: str = "running") -> Record:
    """The record of a job that was given up, cancelled or came too late. It keeps the body, to run it again."""
    envelope = held.envelope
    record = Record(
        outcome.state,
        envelope.target if envelope else "",
        queue_from=queue_from,
        reason=outcome.reason,
        started_ms=held.since_ms,
        ended_ms=now_ms,
        worker=held.worker,
        runs=len(outcome.story.attempts),
        story=outcome.story,
        body=Raw(held.body) if envelope else NO_JSON,
        unreadable=b"" if envelope else held.body,
    )
    return of_dead(record, envelope) if outcome.state is State.DEAD else record


def of_dead(record: Record, envelope: Envelope | None) -> Record:
    """The record of a dead letter, with the head by which it is found and grouped."""
    last = record.story.last
    return msgspec.structs.replace(
        record,
        fingerprint=fingerprint(record.reason, last),
        error=error_line(last),
        tenant=envelope.tenant if envelope else "",
        version=__version__,
    )


def settle(
    held: Held,
    outcome: Outcome,
    terms: Terms,
    now_ms: int,
    result: bytes = b"",
    not_kept: str = "",
    queue_from: str = "running",
) -> Moved:
    """The row that makes a decision true. `queue_from`: the state that a job is in that ends."""
    envelope = held.envelope or Envelope("")

    def moved(verb: str, ms: int, text: bytes) -> Moved:
        return Moved(
            held.id, held.token, verb, envelope.priority, envelope.tenant, envelope.weight, ms, text, envelope.name
        )

    match outcome:
        case Finish():
            spared = spared_ms(envelope, now_ms) if terms.is_spared else 0
            ttl = spared if terms.is_asked and terms.result_ttl_ms <= 0 else terms.result_ttl_ms
            done = done_record(held, now_ms, result, not_kept, keeps_body=ttl > 0)
            return moved("done", ttl, _told(held, done, terms))
        case TryAgain(delay, story):
            return moved("retry", max(1, round(delay * 1000)), write(story))
        case GiveBack(story):
            return moved("back", 0, b"" if story is None else write(story))
        case Reroute(wait, story, target, otherwise):
            ms = max(1, round(wait * 1000))
            if envelope.expires_ms is not None:
                ms = max(1, min(ms, envelope.expires_ms - now_ms + 1))
            row = moved("reroute" if otherwise is None else "offer", ms, write(story))
            return msgspec.structs.replace(row, name=_line(target, story.refused_by, is_final=otherwise is not None))
        case End(reason="bad_reply_to" | "bad_signature") if is_bus_name(terms.queue):
            return moved("mute", terms.failure_ttl_ms, write(ended_record(held, outcome, now_ms)))
        case End() if terms.is_asked and held.envelope is not None:
            answer = _fault_record(outcome, held, now_ms, shows_traceback=terms.shows_traceback)
            spared = spared_ms(envelope, now_ms) if terms.is_spared else 0
            return moved(outcome.state.value, spared, _told(held, answer, terms))
        case End():
            record = _told(held, ended_record(held, outcome, now_ms, queue_from), terms)
            row = moved(outcome.state.value, terms.failure_ttl_ms, record)
            if outcome.state is State.DEAD and terms.on_failure and held.envelope is not None and _is_ours(held, terms):
                body = _handler_body(held, outcome, terms)
                return msgspec.structs.replace(
                    row,
                    follow_id=terms.follow_id,
                    follow_priority=envelope.priority,
                    follow_body=body if terms.signer is None else terms.signer.signed("job", terms.follow_id, body),
                )
            return row


def _line(target: str, refused_by: Sequence[str], *, is_final: bool) -> str:
    """The line of a job that is rerouted, as engine/lua/include/rerouted.lua spells it."""
    return f"{target}\n{'!' if is_final else ''}{','.join(refused_by) or '-'}"


def _told(held: Held, record: Record, terms: Terms) -> bytes:
    """The record as it is stored, and sent to its waiters; signed, where ends are."""
    if held.envelope is None:
        return write(record)
    is_message = held.envelope.headers is not None
    if record.state is not State.DONE and (terms.shows_traceback if is_message else terms.signer is not None):
        record = msgspec.structs.replace(record, shows_traceback=True)
    if terms.signer is not None and _is_ours(held, terms):
        record = signed_record(terms.signer, held.id, record)
    return write(record)


def _is_ours(held: Held, terms: Terms) -> bool:
    """Whether the end of a job may be signed: a forged job must not end under our signature.

    Checked here although workers check before a job runs: many jobs end without a run.
    """
    if terms.signer is None or held.envelope is None:
        return terms.signer is None
    return not verify_body(terms.signer, held.id, held.body, held.envelope)


def spared_ms(envelope: Envelope, now_ms: int) -> int:
    """How long the answer to a request is kept if no process received it, below zero as engine/turn.lua wants it.

    The caller may have lost its connection for a moment; it does not wait beyond its deadline.
    """
    return -min(60_000, max(1_000, (envelope.expires_ms or 0) - now_ms))


def _fault_record(outcome: End, held: Held, now_ms: int, *, shows_traceback: bool) -> Record:
    """The reply to a request that failed: the last attempt and the reason, without the body, which the caller has."""
    last = outcome.story.attempts[-1:]
    if not shows_traceback:
        last = tuple(msgspec.structs.replace(attempt, traceback="") for attempt in last)
    assert held.envelope is not None
    return Record(
        outcome.state, held.envelope.target, reason=outcome.reason, ended_ms=now_ms, story=Story(attempts=last)
    )


def _handler_body(held: Held, outcome: End, terms: Terms) -> bytes:
    assert held.envelope is not None
    last = outcome.story.last
    failure = Failure(
        job=held.id,
        task=held.envelope.target,
        queue=terms.queue,
        reason=outcome.reason,
        error=last.error,
        message=last.message,
        traceback=last.traceback,
        args=held.envelope.args,
        kwargs=held.envelope.kwargs,
        attempts=outcome.story.attempts,
        name=held.envelope.name,
        tags=held.envelope.tags,
    )
    return write(
        Envelope(
            terms.on_failure or "",
            Raw(b"[" + write(failure) + b"]"),
            priority=held.envelope.priority,
            job_headers=held.envelope.job_headers,
        )
    )
