"""Queues over HTTP: how they stand, what is in them, pause, limits, clear."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from relevo.app import Relevo
from relevo.model.access import Role
from relevo.model.pauses import Pause
from relevo.queue import JobRow
from relevo.store import queues as store
from relevo.store.limits import LimitInfo
from relevo.store.plan import Ahead, Call
from relevo.store.queues import QueueStats
from relevo.web.asked import Dry, Limit, Offset, queue_in_use
from relevo.web.route import Desk, Did, Page, get, post

Group = Annotated[str, Meta(min_length=1, max_length=200)]


class QueuePage(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the list of queues."""

    offset: Offset = 0
    limit: Limit = 100


class JobPage(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the jobs in one state."""

    state: Literal["ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired"] = "ready"
    offset: Offset = 0
    limit: Limit = 50


class Why(Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is paused, and for how long."""

    reason: Annotated[str, Meta(max_length=500)] = ""
    #: A duration such as `2h`; without it, until somebody resumes it.
    until: Annotated[str, Meta(max_length=40)] | None = None


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole queue, or one group (tenant) or one task in it."""

    group: Group | None = None
    task: Group | None = None


class Paused(Why, frozen=True, forbid_unknown_fields=True):
    """What to pause, why, and for how long."""

    group: Group | None = None
    task: Group | None = None


class NewLimit(Part, frozen=True, forbid_unknown_fields=True):
    """What it may do: how many jobs run at once, how fast they start (`"100/m"`)."""

    concurrency: int | None = None
    rate: str | float | None = None
    burst: int | None = None


class Changed(Struct, frozen=True):
    """Whether something is other than before."""

    changed: bool


class Cleared(Struct, frozen=True):
    """What was removed, or would be."""

    queue: str
    removed: int
    dry_run: bool


@get("/queues")
async def list_all(desk: Desk, query: QueuePage) -> Page[QueueStats]:
    """All queues in use, by name, each with how many jobs are where."""
    names = (await desk.app.aqueues())[query.offset : query.offset + query.limit]
    return Page.of(await desk.app.arun(_stats(desk.app, names)), query.offset, query.limit)


def _stats(app: Relevo, names: list[str]) -> Generator[Call[Any] | Ahead[Any], Any, list[QueueStats]]:
    found: list[QueueStats] = yield Ahead(store.count(app.keys_of(name), name) for name in names)
    return found


@get("/queues/{queue}")
async def show(desk: Desk, queue: str) -> QueueStats:
    """How a queue stands, from one snapshot whose numbers add up."""
    return await (await queue_in_use(desk, queue)).astats()


@get("/queues/{queue}/jobs")
async def jobs(desk: Desk, queue: str, query: JobPage) -> Page[JobRow]:
    """Jobs in one state: those that wait in the order they will run, ended ones newest first."""
    found = await queue_in_use(desk, queue)
    rows = await found.ajobs(query.state, offset=query.offset, limit=query.limit)
    return Page.of(rows, query.offset, query.limit)


@post("/queues/{queue}/pause", "queue.pause")
async def pause(desk: Desk, queue: str, body: Paused) -> Did[Changed]:
    """Hand out no more jobs, of the queue or of one group or task, until an end if it has one; what runs goes on."""
    found = await queue_in_use(desk, queue)
    changed = await found.apause(
        group=body.group, task=body.task, reason=body.reason, by=desk.caller.name, until=body.until
    )
    said = {"reason": body.reason or None, "until": body.until}
    return Did(Changed(changed), int(changed), {"queue": queue, "group": body.group, "task": body.task, **said})


@post("/queues/{queue}/resume", "queue.resume")
async def resume(desk: Desk, queue: str, body: Part) -> Did[Changed]:
    """Hand out jobs again; idle workers are woken. A breaker of the task is closed."""
    changed = await (await queue_in_use(desk, queue)).aresume(group=body.group, task=body.task)
    return Did(Changed(changed), int(changed), {"queue": queue, "group": body.group, "task": body.task})


@get("/pauses")
async def pauses(desk: Desk) -> list[Pause]:
    """What is paused in any queue, why, by whom and until when; open breakers, too."""
    return await desk.app.apauses()


@get("/queues/{queue}/limits")
async def limits(desk: Desk, queue: str) -> list[LimitInfo]:
    """What has a limit or is paused, the queue, tasks and groups, and how each of them stands."""
    return await (await queue_in_use(desk, queue)).alimits()


@post("/queues/{queue}/limits", "queue.limit")
async def limit(desk: Desk, queue: str, body: NewLimit) -> Did[list[LimitInfo]]:
    """Limit a group, a task or the queue. Takes the place of what was said before, and counts at once."""
    found = await queue_in_use(desk, queue)
    await found.alimit(body.group, task=body.task, concurrency=body.concurrency, rate=body.rate, burst=body.burst)
    said = {"concurrency": body.concurrency, "rate": body.rate, "burst": body.burst}
    return Did(await found.alimits(), 1, {"queue": queue, "group": body.group, "task": body.task, **said})


@post("/queues/{queue}/limits/remove", "queue.unlimit")
async def unlimit(desk: Desk, queue: str, body: Part) -> Did[Changed]:
    """Take a limit away; what is paused stays so."""
    changed = await (await queue_in_use(desk, queue)).aunlimit(body.group, task=body.task)
    return Did(Changed(changed), int(changed), {"queue": queue, "group": body.group, "task": body.task})


@post("/queues/{queue}/clear", "queue.clear", Role.ADMIN)
async def clear(desk: Desk, queue: str, query: Dry) -> Did[Cleared]:
    """Remove all jobs that have not started; what runs goes on."""
    found = await queue_in_use(desk, queue)
    if query.dry_run:
        stats = await found.astats()
        return Did(Cleared(queue, stats.living - stats.running, True), dry=True)
    removed = await found.aclear()
    return Did(Cleared(queue, removed, False), removed, {"queue": queue})


ROUTES = (list_all, jobs, show, pause, resume, pauses, limits, limit, unlimit, clear)
