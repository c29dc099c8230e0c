"""Dead letters over HTTP: look through them, run them again, forget them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relevo.dead import DeadRow
from relevo.handle import JobInfo
from relevo.model.access import Role
from relevo.model.job import State
from relevo.web.asked import Dry, Ids, Limit, Offset, OfQueue, QueueName, queue_in_use
from relevo.web.problems import Refused, invalid
from relevo.web.route import Desk, Did, Page, get, post
from relevo.web.shown import shown_job


class DeadPage(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the dead letters, newest first."""

    queue: QueueName = ""
    error: Annotated[str, Meta(max_length=200, description="only where the reason or the error holds this text")] = ""
    offset: Offset = 0
    limit: Limit = 50


class Which(Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters are meant: some by their ids, or all (of a queue)."""

    ids: Ids | None = None
    all: bool = False
    queue: QueueName = ""


class Retried(Struct, frozen=True):
    """How many run again."""

    retried: int


class Discarded(Struct, frozen=True):
    """How many were forgotten, or would be."""

    discarded: int
    dry_run: bool


async def _list(desk: Desk, query: DeadPage) -> Page[DeadRow]:
    if query.queue:
        await queue_in_use(desk, query.queue)
    rows = await desk.app.dead.alist(
        queue=query.queue or None, error=query.error or None, limit=query.limit, offset=query.offset
    )
    return Page.of(rows, query.offset, query.limit)


@get("/dead")
async def list_all(desk: Desk, query: DeadPage) -> Page[DeadRow]:
    """Dead letters, newest first; of one queue or of all, whose error holds a text."""
    return await _list(desk, query)


@get("/queue/dlq")
async def dlq(desk: Desk, query: DeadPage) -> Page[DeadRow]:
    """Dead letters, newest first: the same as `/dead`, under the name that other systems use."""
    return await _list(desk, query)


@get("/dead/{id}")
async def show(desk: Desk, id: str, query: OfQueue) -> JobInfo:
    """One dead letter with its whole story."""
    job = await desk.app.arun(desk.app.dead._find(id, query.queue or None))
    info = await job.ainfo()
    if info.state is not State.DEAD:
        raise Refused(404, "UnknownJob", f"job {id} is {info.state.value}, not a dead letter: see /jobs/{id}")
    return shown_job(desk.app, info, all=desk.sees_all)


async def _checked(desk: Desk, body: Which) -> tuple[list[str] | None, str | None]:
    if (body.ids is None) == (not body.all):
        raise invalid('name the dead letters by "ids", or say "all": true; not both')
    if body.queue:
        await queue_in_use(desk, body.queue)
    return body.ids, body.queue or None


def _about(body: Which) -> dict[str, object]:
    return {"queue": body.queue or None, "ids": body.ids and body.ids[:20], "all": body.all or None}


@post("/dead/retry", "dead.retry")
async def retry(desk: Desk, body: Which) -> Did[Retried]:
    """Run dead letters again. Each runs once however often this is asked."""
    ids, queue = await _checked(desk, body)
    count = await desk.app.dead.aretry(ids, queue=queue, all=body.all)
    return Did(Retried(count), count, _about(body))


@post("/dead/discard", "dead.discard", Role.ADMIN)
async def discard(desk: Desk, query: Dry, body: Which) -> Did[Discarded]:
    """Forget dead letters."""
    ids, queue = await _checked(desk, body)
    if query.dry_run:
        return Did(Discarded(await _how_many(desk, ids, queue), True), dry=True)
    count = await desk.app.dead.adiscard(ids, queue=queue, all=body.all)
    return Did(Discarded(count, False), count, _about(body))


async def _how_many(desk: Desk, ids: list[str] | None, queue: str | None) -> int:
    names = await desk.app.aqueues() if queue is None else [queue]
    if ids is None:
        return sum([(await desk.app.queue(name).astats()).dead for name in names])
    found = 0
    for id in ids:
        info = await (await desk.app.arun(desk.app.dead._find(id, queue))).ainfo()
        found += info.state is State.DEAD
    return found


ROUTES = (list_all, dlq, show, retry, discard)
