"""Queues over HTTP: how they stand, what is in them, pause, limits, clear."""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from relevo.app import Relevo
from relevo.model.access import Role
from relevo.queue import JobRow
from relevo.store import queues as store
from relevo.store.limits import GroupLimit
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


class OfGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole queue, or one group (tenant) in it."""

    group: Group | None = None


class NewLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """What a group may do: how many of its jobs run at once, how fast they start (`"100/m"`)."""

    group: Group
    concurrency: int | None = None
    rate: str | float | None = None
    burst: int | None = None


class NoLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """The group whose limit is taken away."""

    group: Group


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
async def pause(desk: Desk, queue: str, body: OfGroup) -> Did[Changed]:
    """Hand out no more jobs, of the queue or of one group; what runs goes on."""
    changed = await (await queue_in_use(desk, queue)).apause(group=body.group)
    return Did(Changed(changed), int(changed), {"queue": queue, "group": body.group})


@post("/queues/{queue}/resume", "queue.resume")
async def resume(desk: Desk, queue: str, body: OfGroup) -> Did[Changed]:
    """Hand out jobs again; idle workers are woken."""
    changed = await (await queue_in_use(desk, queue)).aresume(group=body.group)
    return Did(Changed(changed), int(changed), {"queue": queue, "group": body.group})


@get("/queues/{queue}/limits")
async def limits(desk: Desk, queue: str) -> list[GroupLimit]:
    """The groups that have a limit or are paused, and how each of them stands."""
    return await (await queue_in_use(desk, queue)).alimits()


@post("/queues/{queue}/limits", "queue.limit")
async def limit(desk: Desk, queue: str, body: NewLimit) -> Did[list[GroupLimit]]:
    """Limit a group. Takes the place of what was said of it before, and counts at once, for what is queued too."""
    found = await queue_in_use(desk, queue)
    await found.alimit(body.group, concurrency=body.concurrency, rate=body.rate, burst=body.burst)
    said = {"concurrency": body.concurrency, "rate": body.rate, "burst": body.burst}
    return Did(await found.alimits(), 1, {"queue": queue, "group": body.group, **said})


@post("/queues/{queue}/limits/remove", "queue.unlimit")
async def unlimit(desk: Desk, queue: str, body: NoLimit) -> Did[Changed]:
    """Take the limit of a group away; if it is paused, it stays so."""
    changed = await (await queue_in_use(desk, queue)).aunlimit(body.group)
    return Did(Changed(changed), int(changed), {"queue": queue, "group": body.group})


@post("/queues/{queue}/clear", "queue.clear", Role.ADMIN)
async def clear(desk: Desk, queue: str, query: Dry) -> Did[Cleared]:
    """Remove all jobs that have not started; what runs goes on."""
    found = await queue_in_use(desk, queue)
    if query.dry_run:
        stats = await found.astats()
        return Did(Cleared(queue, stats.living - stats.running, True), dry=True)
    removed = await found.aclear()
    return Did(Cleared(queue, removed, False), removed, {"queue": queue})


ROUTES = (list_all, jobs, show, pause, resume, limits, limit, unlimit, clear)
