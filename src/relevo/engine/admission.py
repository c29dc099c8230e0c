"""Claimed jobs: whether one may run, and what becomes of one whose worker stopped reporting."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from relevo.engine.job import Attempt
from relevo.engine.job_store import read_claim, readable, story_of
from relevo.engine.outcome import CancelAsked, Happened, LeaseLost, Unrunnable, decide
from relevo.engine.settle import Held, settle
from relevo.engine.signed_bodies import verify_body
from relevo.engine.turn import Moved

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def refusal(engine: Engine, queue: str, held: Held, now_ms: int) -> Happened | None:
    """The outcome of a job that may not run because of its origin or its receiver; None: it may."""
    envelope = held.envelope
    assert envelope is not None
    signer = engine.keys_of(queue).signer
    if signer is not None and (error := verify_body(signer, held.id, held.body, envelope)):
        why = f"{error}. If you know who made it, `relevo dead retry {held.id} --sign` runs it all the same"
        return Unrunnable("bad_signature", Attempt("refused", held.worker, now_ms, now_ms, message=why[:2000]))
    return None if envelope.headers is None else engine.message_refusal(queue, held, now_ms)


def held_of(id: bytes, claim: bytes, body: bytes, story: bytes) -> Held:
    """A job as a turn hands it out."""
    holder = read_claim(claim)
    assert holder is not None
    return Held(
        id.decode(),
        holder.token,
        body,
        readable(body),
        story_of(story),
        holder.worker,
        holder.since_ms,
        holder.cancel_asked,
    )


def lease_ended(held: Held, now_ms: int) -> Happened:
    """What happened to a job whose worker stopped reporting."""
    lost = Attempt("lost", held.worker, held.since_ms, now_ms, message="its worker stopped reporting")
    return CancelAsked() if held.cancel_asked else LeaseLost(lost)


def recovered(engine: Engine, queue: str, held: Held, now_ms: int) -> Moved:
    """What becomes of a job whose worker stopped reporting."""
    policy, terms = engine.terms_of(held.envelope, queue)
    outcome = decide(held.story, lease_ended(held, now_ms), policy, now_ms, random.random())
    return settle(held, outcome, terms, now_ms)
