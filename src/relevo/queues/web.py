"""Queues over HTTP: their state, their jobs, clear."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from relevo.app import Relevo
from relevo.engine.job import State
from relevo.queues import store
from relevo.queues.queue import JobRow
from relevo.queues.searching import FoundJob, JobFilters, searching
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


class AnyJobs(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A page of jobs of all queues; all filters must fit."""

    queue: QueueName = ""
    state: Literal["", "running", "ready", "scheduled", "waiting", "dead", "done", "cancelled", "expired"] = ""
    task: Annotated[str, Meta(max_length=1000, description="the whole name")] = ""
    tenant: Annotated[str, Meta(max_length=200)] = ""
    tag: Annotated[str, Meta(max_length=200, description="one of its tags")] = ""
    text: Annotated[str, Meta(max_length=200, description="a part of its name or its task")] = ""
    limit: Limit = 50
    after: Annotated[str, Meta(max_length=1100, description="`next` of the page before")] = ""


class FoundJobs(Struct, frozen=True):
    """Some jobs, running ones first."""

    items: list[FoundJob]
    #: The `after` of the next page; None: this was the last. A page may be empty and not be the last.
    next: str | None


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
async def any_jobs(desk: Desk, query: AnyJobs) -> FoundJobs:
    """Jobs, running ones first: all, or those that fit. A page costs the same however many jobs there are."""
    await if_named(desk, query.queue)
    names = {name: getattr(query, name) for name in ("queue", "task", "tenant", "tag", "text")}
    wanted = JobFilters(state=State(query.state) if query.state else None, **names)
    page = await desk.app.engine.arun(searching(desk.app.engine, wanted, limit=query.limit, after=query.after))
    return FoundJobs(page.rows, page.after or None)


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
