"""Finds jobs by id alone: in the queues of the app, else in those of other services on the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relevo.engine import job_store as jobs
from relevo.engine.handle import Job
from relevo.engine.ids import looks_like_id
from relevo.engine.job import State
from relevo.engine.lists import listed_queues, others
from relevo.errors import ServerRefused, UnknownJob
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Queues that are searched in one batch.
TOGETHER = 100


def job(engine: Engine, id: str, queue: str | None) -> Steps[Job[Any]]:
    """The job with that id; UnknownJob if there is none."""
    name, seen = yield from found(engine, "job", id, queue, jobs.look, lambda seen: seen.state is not State.UNKNOWN)
    known = seen.envelope or jobs.readable(seen.body)
    target = known.target if known else seen.record.target if seen.record else ""
    task = engine.task_for(name, target)
    return Job(engine, id, name, decode=task.signature.decode_result if task else None)


def found(
    engine: Engine,
    what: str,
    id: str,
    queue: str | None,
    look: Callable[[QueueKeys, str], Call[Any]],
    is_it: Callable[[Any], bool],
) -> Steps[tuple[str, Any]]:
    if not looks_like_id(id):
        raise UnknownJob(f"{id!r:.60} is not the id of a {what}: those have 20 letters and digits")
    names = yield from listed_queues(engine, queue)
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        answers: list[Any] = yield Ahead(look(engine.keys_of(name), id) for name in some)
        for name, seen in zip(some, answers, strict=True):
            if is_it(seen):
                return name, seen
    if queue is not None:
        raise UnknownJob(f"no {what} {id} on {queue}: it never was, or its record has ended")
    rest, hidden = (yield from others(engine, names)), 0
    for name in rest:  # one by one: any of them may be refused
        try:
            seen = yield look(engine.keys_of(name), id)
        except ServerRefused:
            hidden += 1
            continue
        if is_it(seen):
            return name, seen
    unseen = f", and {hidden} more are out of reach for the user in the URL" if hidden else ""
    where = f"on any of {len(names) + len(rest) - hidden} queues{unseen}"
    raise UnknownJob(f"no {what} {id} {where}: it never was, or its record has ended")
