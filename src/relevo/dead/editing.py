"""Runs a dead letter with other arguments, as a new job that refers to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from relevo.dead import store as letters
from relevo.dead.choosing import checked, named
from relevo.dead.resigning import signed_copy
from relevo.engine.handle import Job
from relevo.engine.job import Envelope, Proof, write
from relevo.engine.revival import refusal
from relevo.engine.signed_bodies import verify_body
from relevo.errors import JobError, OptionError, PayloadError, PayloadTooLarge, UnknownJob
from relevo.store.plan import Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def editing(engine: Engine, id: str, args: Any, kwargs: Any, queue: str | None) -> Steps[Job[Any]]:
    """Queue the new job; arguments that are not given stay as they were."""
    if args is None and kwargs is None:
        raise OptionError("edit: give args=[…], kwargs={…} or both; `retry` runs the letter as it is")
    found = yield from named(engine, checked([id]), queue)
    if not found:
        raise UnknownJob(f"{id} is no dead letter: it never was one, it has expired, or it was retried or edited")
    if len(found) > 1:
        where = ", ".join(letter.queue for letter in found)
        raise OptionError(f"{id} is a dead letter in several queues ({where}): pass queue=")
    letter = found[0]
    old = letter.envelope
    if letter.pool is not None:
        raise JobError(f"{id} is an entity of a pool, which has no arguments: retry it, and update its metadata")
    if old is None:
        raise JobError(refusal(id, "its body is unreadable"))
    if old.flow:
        raise JobError(
            f"job {id} belongs to the workflow {old.flow[:20]}, whose other jobs wait for this very one: it cannot be "
            "replaced. Retry it as it is, or make the workflow anew"
        )
    if old.takes == "claim" and kwargs is None:
        raise OptionError(f"edit: the data of {id} is large and stands beside it: give kwargs={{…}} as a whole")
    if old.takes not in ("", "claim") and args is None:
        raise OptionError(f"edit: the first argument of {id} stands beside it: give args=[…] as a whole")
    signer = engine.keys_of(letter.queue).signer
    if signer is not None and (error := verify_body(signer, id, bytes(letter.record.body), old)):
        raise JobError(f"job {id} cannot be edited, since its maker is unknown: {error}")
    new = _changed(engine, letter.queue, old, args, kwargs)
    if signer is not None and old.headers is not None and old.headers.intent == "event":
        new = msgspec.structs.replace(new, proof=Proof(made_ms=(yield from engine.now_ms())))
    new_id = engine.new_id()
    new = msgspec.structs.replace(new, origin=id)
    body = write(new) if signer is None else signed_copy(signer, new_id, new)
    code: int = yield letters.replace(engine.keys_of(letter.queue), id, new_id, new, body)
    if code < 0:
        raise JobError(f"job {id} cannot be replaced: other jobs wait for this very one. Retry it as it is")
    if not code:
        raise UnknownJob(f"{id} is no dead letter any more: it was just retried, edited or discarded")
    task = engine.task_for(letter.queue, new.target)
    return Job(engine, new_id, letter.queue, decode=task.signature.decode_result if task else None)


def _changed(engine: Engine, queue: str, old: Envelope, args: Any, kwargs: Any) -> Envelope:
    """The envelope with other arguments, which fit the task's signature, if this app knows the task."""
    if args is not None and not isinstance(args, list | tuple):
        raise OptionError(f"edit: args is a list of arguments, found {args!r:.80}")
    if kwargs is not None and not (isinstance(kwargs, dict) and all(isinstance(name, str) for name in kwargs)):
        raise OptionError(f"edit: kwargs is a dict of arguments by name, found {kwargs!r:.80}")
    raw_args = bytes(old.args) if args is None else _encoded(list(args))
    raw_kwargs = bytes(old.kwargs) if kwargs is None else _encoded(kwargs)
    size, limit = len(raw_args) + len(raw_kwargs), engine.settings.max_payload
    if size > limit:
        raise PayloadTooLarge(f"{old.target}: arguments", size, limit)
    task = engine.task_for(queue, old.target)
    if task is not None:
        task.signature.decode(raw_args, raw_kwargs)  # raises PayloadError that names what does not fit
    # Its time to start may be over, its inputs stay with the letter, and its signature was one of the old body.
    return msgspec.structs.replace(
        old, args=Raw(raw_args), kwargs=Raw(raw_kwargs), takes="", expires_ms=None, proof=None, signature=""
    )


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"edit: the arguments cannot be written as JSON: {error}") from error
