"""Workflows over HTTP: the newest, one of them, cancel it, run its failed part again."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from relevo.engine.job import State
from relevo.errors import UnknownJob
from relevo.web.asked import Limit, Offset, OfQueue, QueueName, if_named
from relevo.web.problems import Refused, conflict
from relevo.web.route import Desk, Did, Page, get, post
from relevo.workflows.workflow import Workflow, WorkflowInfo, WorkflowRow, recent


class Newest(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the workflows, of a queue or of all."""

    queue: QueueName = ""
    offset: Offset = 0
    limit: Limit = 20


class WorkflowState(Struct, frozen=True):
    """Where a workflow is now, and how many of its jobs were changed."""

    id: str
    state: State
    jobs: int


async def _find(desk: Desk, id: str, named: str) -> Workflow[Any]:
    queue = await if_named(desk, named)
    try:
        return await desk.app.aworkflow(id, queue=queue)
    except UnknownJob as unknown:
        try:
            await desk.app.ajob(id, queue=queue)
        except UnknownJob:
            raise unknown from None
        raise Refused(404, "UnknownJob", f"{id} is a job, not a workflow: see /jobs/{id}") from None


@get("/workflows")
async def list_newest(desk: Desk, query: Newest) -> Page[WorkflowRow]:
    """The newest workflows that still exist, newest first."""
    queue = await if_named(desk, query.queue)
    found = await desk.app.engine.arun(recent(desk.app.engine, query.limit, queue, query.offset))
    return Page.of(found, query.offset, query.limit)


@get("/workflows/{id}")
async def show(desk: Desk, id: str, query: OfQueue) -> WorkflowInfo:
    """Everything known about a workflow and its jobs."""
    return await (await _find(desk, id, query.queue)).ainfo()


@post("/workflows/{id}/cancel", "workflow.cancel")
async def cancel(desk: Desk, id: str, query: OfQueue) -> Did[WorkflowState]:
    """Cancel all its jobs that have not ended; running ones are asked to stop."""
    flow = await _find(desk, id, query.queue)
    count = await flow.acancel()
    if not count:
        raise conflict(f"workflow {id} has ended: there is nothing to cancel")
    return Did(answer=WorkflowState(id, await flow.astate(), count), count=count, about={"id": id, "queue": flow.queue})


@post("/workflows/{id}/retry", "workflow.retry")
async def retry(desk: Desk, id: str, query: OfQueue) -> Did[WorkflowState]:
    """Run its failed part again: jobs that died, expired or were cancelled, and what waits for them."""
    flow = await _find(desk, id, query.queue)
    count = await flow.aretry()
    if not count:
        raise conflict(f"workflow {id} has nothing to run again: only dead, cancelled or expired jobs can")
    return Did(answer=WorkflowState(id, await flow.astate(), count), count=count, about={"id": id, "queue": flow.queue})


ROUTES = (list_newest, show, cancel, retry)
