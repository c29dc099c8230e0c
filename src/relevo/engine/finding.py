"""Finds jobs and workflows by id alone: in the queues of the app, else in those of other services on the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relevo.engine import job_store as jobs
from relevo.engine.context import current_job
from relevo.engine.handle import Job
from relevo.engine.ids import LENGTH, looks_like_id
from relevo.engine.job import State
from relevo.errors import ServerRefused, UnknownJob
from relevo.queues.lists import others
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps
from relevo.workflows import store as flows
from relevo.workflows.workflow import Workflow

if TYPE_CHECKING:
    from relevo.app import Relevo

#: Queues that are searched in one batch.
TOGETHER = 100


def job(app: Relevo, id: str, queue: str | None) -> Steps[Job[Any]]:
    """The job with that id; UnknownJob if there is none."""
    name, seen = yield from _found(app, "job", id, queue, jobs.look, lambda seen: seen.state is not State.UNKNOWN)
    known = seen.envelope or jobs.readable(seen.body)
    target = known.target if known else seen.record.target if seen.record else ""
    task = app.task_for(name, target)
    return Job(app, id, name, decode=task.signature.decode_result if task else None)


def workflow(app: Relevo, id: str, queue: str | None) -> Steps[Workflow[Any]]:
    """The workflow with that id; UnknownJob if there is none."""
    name, _ = yield from _found(app, "workflow", id, queue, flows.look, lambda seen: seen is not None)
    return Workflow(app, id, name)


def own_workflow(app: Relevo) -> Workflow[Any]:
    """The workflow of the running job."""
    me = current_job()
    if not me.flow:
        raise UnknownJob(f"job {me.id} belongs to no workflow")
    return Workflow(app, me.flow[:LENGTH], me.flow[LENGTH:])


def _found(
    app: Relevo,
    what: str,
    id: str,
    queue: str | None,
    look: Callable[[QueueKeys, str], Call[Any]],
    is_it: Callable[[Any], bool],
) -> Steps[tuple[str, Any]]:
    if not looks_like_id(id):
        raise UnknownJob(f"{id!r:.60} is not the id of a {what}: those have 20 letters and digits")
    names = yield from app.listed_queues(queue)
    for start in range(0, len(names), TOGETHER):
        some = names[start : start + TOGETHER]
        answers: list[Any] = yield Ahead(look(app.keys_of(name), id) for name in some)
        for name, seen in zip(some, answers, strict=True):
            if is_it(seen):
                return name, seen
    if queue is not None:
        raise UnknownJob(f"no {what} {id} on {queue}: it never was, or its record has ended")
    rest, hidden = (yield from others(app, names)), 0
    for name in rest:  # one by one: any of them may be refused
        try:
            seen = yield look(app.keys_of(name), id)
        except ServerRefused:
            hidden += 1
            continue
        if is_it(seen):
            return name, seen
    unseen = f", and {hidden} more are out of reach for the user in the URL" if hidden else ""
    where = f"on any of {len(names) + len(rest) - hidden} queues{unseen}"
    raise UnknownJob(f"no {what} {id} {where}: it never was, or its record has ended")
