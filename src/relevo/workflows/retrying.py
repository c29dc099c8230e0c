"""Runs failed members of a workflow again, many in each round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from relevo.engine import job_store as jobs
from relevo.engine.outbox import REPORTS
from relevo.engine.revival import AT_ONCE, Ended, reviving
from relevo.engine.whereabouts import PART, of_ended, of_living
from relevo.errors import JobError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: The reason of a job that was cancelled because of its parent; it is revived with the parent.
CAUSED = "dependency_failed"


class Failed(Struct, frozen=True):
    """A member that is dead, expired or cancelled, as its workflow has it."""

    id: str
    queue: str


def refuse_dropped(engine: Engine, workflow: str, members: Sequence[Failed]) -> Steps[None]:
    """Raise if some of them can never run again, before any of them does: the workflow could not be done."""
    dropped = 0
    for keys, ids in _parts(engine, members):
        dropped += yield from _dropped(keys, ids)
    if dropped and (yield from _any_would_run(engine, members)):
        raise JobError(
            f"workflow {workflow} cannot run again as a whole: {dropped:,} of its {len(members):,} failed jobs are no "
            f"longer kept. A queue keeps dead_max ({engine.settings.dead_max:,}) of each kind, for failure_ttl: set "
            "both for your largest workflow. This one can be enqueued anew, or its jobs retried one by one"
        )


def _parts(engine: Engine, members: Sequence[Failed]) -> Iterator[tuple[QueueKeys, list[str]]]:
    for queue in dict.fromkeys(one.queue for one in members):
        ids = [one.id for one in members if one.queue == queue]
        for start in range(0, len(ids), PART):
            yield engine.keys_of(queue), ids[start : start + PART]


def _dropped(queue: QueueKeys, ids: Sequence[str]) -> Steps[int]:
    """How many of them have neither a record nor a life."""
    kept: int = yield Call([b"EXISTS", *(queue.own("ended", id) for id in ids)], int)
    if kept == len(ids):
        return 0
    recorded = yield from of_ended(queue, ids)
    others = [id for id in ids if id not in recorded]
    return len(others) - len((yield from of_living(queue, others)))  # another call may have revived some


def _any_would_run(engine: Engine, members: Sequence[Failed]) -> Steps[bool]:
    """Whether one of them would run if it were retried, and not only when its parent does."""
    for keys, ids in _parts(engine, members):
        recorded = yield from of_ended(keys, ids)
        if any(one.reason != CAUSED for one in recorded.values()):
            return True
    return False


def revive_members(engine: Engine, members: Sequence[Failed]) -> Steps[list[tuple[str, int]]]:
    """Run them again, parents before the jobs that wait for them; those revived, with the number of the revival."""
    revived: list[tuple[str, int]] = []
    for start in range(0, len(members), REPORTS):
        revived += yield from _revive_part(engine, members[start : start + REPORTS])
    return revived


def _revive_part(engine: Engine, members: Sequence[Failed]) -> Steps[list[tuple[str, int]]]:
    looks = (jobs.look(engine.keys_of(one.queue), one.id) for one in members)
    seen: list[jobs.Seen] = yield Ahead(looks, AT_ONCE)
    ended = [
        Ended(one.queue, one.id, each.body, each.record.ended_ms)
        for one, each in zip(members, seen, strict=True)
        if each.record is not None and each.record.reason != CAUSED
    ]
    revivals = yield from reviving(engine, ended)
    revived = [(one.id, each.number) for one, each in zip(ended, revivals, strict=True) if each.number]
    for one in (one for one, each in zip(ended, revivals, strict=True) if each.refusal):
        (again,) = yield from reviving(engine, [one])  # its parent, which was refused or failed then, runs by now
        if again.number:
            revived.append((one.id, again.number))
    return revived
