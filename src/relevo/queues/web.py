"""Queues over HTTP: their state, their jobs, clear."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from relevo.app import Relevo
from relevo.queues import store
from relevo.queues.listing import JobPage as AnyPage
from relevo.queues.listing import listing
from relevo.queues.queue import JobRow
from relevo.queues.store import QueueStats
from relevo.store.plan import Ahead, Steps
from relevo.web.access import Role
from relevo.web.asked import Dry, Limit, Offset, QueueName, if_named, queue_in_use
from relevo.web.route import Desk, Did, Page, get, post


class QueuePage(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the list of queues."""

    offset: Offset = 0
    limit: Limit = 100


class JobPage(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the jobs in one state."""

    state: Literal["ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired"] = "ready"
    offset: Offset = 0
    limit: Limit = 50


class AnyJobs(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of jobs: of one queue or of all, in one state or in any."""

    queue: QueueName = ""
    state: Literal["", "running", "ready", "scheduled", "waiting", "dead", "cancelled", "expired", "done"] = ""
    limit: Limit = 50
    after: Annotated[str, Meta(max_length=1100, description="`next` of the page before")] = ""


class Cleared(Struct, frozen=True):
    """What was removed, or would be."""

    queue: str
    removed: int
    dry_run: bool


@get("/queues")
async def list_all(desk: Desk, query: QueuePage) -> Page[QueueStats]:
    """All queues in use, by name, each with the number of jobs in each state."""
    names = (await desk.app.aqueues())[query.offset : query.offset + query.limit]
    return Page.of(await desk.app.engine.arun(_stats(desk.app, names)), query.offset, query.limit)


def _stats(app: Relevo, names: list[str]) -> Steps[list[QueueStats]]:
    found: list[QueueStats] = yield Ahead(store.count(app.engine.keys_of(name), name) for name in names)
    return found


@get("/queues/{queue}")
async def show(desk: Desk, queue: str) -> QueueStats:
    """The state of a queue, from one consistent snapshot."""
    return await (await queue_in_use(desk, queue)).astats()


@get("/queues/{queue}/jobs")
async def jobs(desk: Desk, queue: str, query: JobPage) -> Page[JobRow]:
    """Jobs in one state: waiting jobs in the order they will run, ended ones newest first."""
    found = await queue_in_use(desk, queue)
    rows = await found.ajobs(query.state, offset=query.offset, limit=query.limit)
    return Page.of(rows, query.offset, query.limit)


@get("/jobs")
async def any_jobs(desk: Desk, query: AnyJobs) -> AnyPage:
    """Jobs, running ones first: of all queues or one. Jobs move between two pages: one may repeat or miss some."""
    queue = await if_named(desk, query.queue)
    plan = listing(desk.app.engine, queue=queue, state=query.state or None, limit=query.limit, after=query.after)
    return await desk.app.engine.arun(plan)


@post("/queues/{queue}/clear", "queue.clear", Role.ADMIN)
async def clear(desk: Desk, queue: str, query: Dry) -> Did[Cleared]:
    """Remove all jobs that have not started; running jobs continue."""
    found = await queue_in_use(desk, queue)
    if query.dry_run:
        stats = await found.astats()
        return Did(answer=Cleared(queue, stats.living - stats.running, True), dry=True)
    removed = await found.aclear()
    return Did(answer=Cleared(queue, removed, False), count=removed, about={"queue": queue})


ROUTES = (list_all, jobs, any_jobs, show, clear)
