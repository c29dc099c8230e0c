"""Runs ended jobs again: the one plan behind `job.retry()`, `app.dead.retry()`, replays and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from relevo.engine import job_store as jobs
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Jobs revived before the first answer is read: some milliseconds of the server's time.
AT_ONCE = 20


class Ended(Struct, frozen=True):
    """An ended job that is to run again, as it was read."""

    queue: str
    id: str
    body: bytes
    ended_ms: int
    #: Only if it is still the dead letter of that time.
    died_ms: int | None = None


class Revival(Struct, frozen=True):
    """What became of it: neither a number nor a refusal if it runs again already, or has gone."""

    #: The number under which its dependents are notified of the revival; 0: it was not revived.
    number: int = 0
    #: Why the job cannot run again; '': it can.
    refusal: str = ""


def reviving(engine: Engine, some: Sequence[Ended]) -> Steps[list[Revival]]:
    """Put jobs back in their queues, from the start or from their checkpoints; returns what became of each."""
    calls = {one: call for one in some if (call := _revive(engine, one)) is not None}
    answers: list[tuple[int, int]] = yield Ahead(iter(calls.values()), AT_ONCE)
    answer_of = dict(zip(calls, answers, strict=True))
    posted = {one.queue for one, (code, _) in answer_of.items() if code == jobs.REVIVED_AND_POSTED}
    if posted:
        yield from engine.relay(*sorted(posted))
    return [_revival(one, answer_of.get(one)) for one in some]


def _revive(engine: Engine, one: Ended) -> Call[tuple[int, int]] | None:
    envelope = jobs.readable(one.body)
    if envelope is None:
        return None
    return jobs.revive(engine.keys_of(one.queue), one.id, envelope, one.body, one.ended_ms, died_ms=one.died_ms)


def _revival(one: Ended, answer: tuple[int, int] | None) -> Revival:
    if answer is None:
        return Revival(refusal=refusal(one.id, "its body is unreadable"))
    code, number = answer
    if code < 0:
        parent = "a job that it depends on has failed. Retry that one (or its whole workflow), and this one comes back"
        return Revival(refusal=refusal(one.id, f"{parent} with it"))
    return Revival(number if code else 0)


def refusal(id: str, why: str) -> str:
    """Why an ended job cannot run again."""
    return f"job {id} cannot run again: {why}"
