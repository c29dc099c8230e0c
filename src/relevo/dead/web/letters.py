"""Dead letters over HTTP: list, group, retry, edit, discard, restore."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from relevo.dead.choosing import chosen, named
from relevo.dead.error_groups import ErrorGroup
from relevo.dead.paging import DeadRow
from relevo.dead.wanted import Filters
from relevo.engine.handle import JobInfo
from relevo.engine.job import State
from relevo.pools.pool import Pools
from relevo.schedules.web import Queued
from relevo.text.masking import HIDDEN
from relevo.upkeep.rules import POOL_RULES
from relevo.web.access import Role
from relevo.web.asked import (
    DryRun,
    Ids,
    Limit,
    Offset,
    OfQueue,
    QueueName,
    Time,
    if_named,
    queues_in_use,
    refuse_hidden,
    time_of,
)
from relevo.web.problems import Refused
from relevo.web.route import Desk, Did, get, post
from relevo.web.route import Page as Listed
from relevo.web.shown import shown_job

Part = Annotated[str, Meta(max_length=200)]
#: A dry run of discarding counts at most so many dead letters.
COUNTED = 1000


class Which(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What dead letters have in common; all conditions must hold."""

    queue: QueueName = ""
    task: Annotated[str, Meta(max_length=1000, description="the whole name")] = ""
    error: Annotated[str, Meta(max_length=200, description="a part of the reason or the error")] = ""
    reason: Part = ""
    came_from: Annotated[str, Meta(max_length=200, description="the state: running, ready, …")] = ""
    tenant: Part = ""
    text: Annotated[str, Meta(max_length=200, description="a part of anything in it; for operators")] = ""
    since: Time = ""
    until: Time = ""
    error_group: Annotated[str, Meta(max_length=64, description="a fingerprint, as /dead/error-groups returns it")] = ""
    permanent: bool | None = None


class Page(Which, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which of them, and how many."""

    limit: Limit = 50
    after: Annotated[str, Meta(max_length=200, description="`next` of the page before")] = ""


class OfGroups(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the error groups: of which queue, permanent or not."""

    queue: QueueName = ""
    permanent: bool | None = None
    offset: Offset = 0
    limit: Limit = 50


class Chosen(Which, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Some by their ids, those that fit, or all."""

    ids: Ids | None = None
    all: bool = False
    limit: Annotated[int, Meta(ge=1, description="at most so many, the oldest first")] | None = None


class Discard(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to discard, and whether that can be undone."""

    dry_run: DryRun = True
    undo: Annotated[bool, Meta(description="false: gone at once, to make room on the server")] = True


class Edit(Struct, frozen=True, forbid_unknown_fields=True):
    """New arguments; those left out stay unchanged."""

    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class Letters(Struct, frozen=True):
    """Some dead letters, newest first."""

    items: list[DeadRow]
    #: The `after` of the next page; None: this was the last. A page may be empty and not be the last.
    next: str | None


class Retried(Struct, frozen=True):
    """How many were retried."""

    retried: int


class Discarded(Struct, frozen=True):
    """How many were discarded, or would be; a dry run counts at most 1,000."""

    discarded: int
    dry_run: bool


class Restored(Struct, frozen=True):
    """How many were restored."""

    restored: int


async def filters(desk: Desk, which: Which) -> Filters:
    """The filters of a request, as the Python API takes them."""
    if which.text and not desk.sees_all:
        # Else a caller could guess hidden text, character by character.
        raise Refused(403, "Forbidden", "text looks into arguments and tracebacks: that needs the role operator")
    await if_named(desk, which.queue)
    given = {name: getattr(which, name) for name in Which.__struct_fields__}
    found: dict[str, Any] = {name: value for name, value in given.items() if value not in ("", None)}
    for name in ("since", "until"):
        if name in found:
            found[name] = time_of(name, found[name])
    return cast("Filters", found)


def about(which: Which) -> dict[str, Any]:
    """What the audit trail records of a request; no text of dead letters, which may be hidden elsewhere."""
    nothing, names = type(which)(), which.__struct_fields__
    given = {name: value for name in names if (value := getattr(which, name)) != getattr(nothing, name)}
    if "text" in given:
        given["text"] = HIDDEN
    return {**given, "ids": given["ids"][:20]} if "ids" in given else given


async def _page(desk: Desk, query: Page) -> Letters:
    found = await desk.app.dead.apage(limit=query.limit, after=query.after, **await filters(desk, query))
    return Letters(found.rows, found.after or None)


@get("/dead")
async def list_all(desk: Desk, query: Page) -> Letters:
    """Dead letters, newest first: all, or those that fit."""
    return await _page(desk, query)


@get("/queue/dlq")
async def dlq(desk: Desk, query: Page) -> Letters:
    """Dead letters, newest first: the same as `/dead`, under the name that other systems use.

    VMPooler has a list for each state, so `queue` may also be a state: the dead letters that came from it.
    """
    declared = (state for pool in desk.app.engine.part(Pools).declared.values() for state in pool.states)
    is_state = not query.came_from and query.queue in {*State, *POOL_RULES, *declared}
    if is_state and query.queue not in await queues_in_use(desk):
        query = msgspec.structs.replace(query, queue="", came_from=query.queue)
    return await _page(desk, query)


@get("/dead/error-groups")
async def error_groups(desk: Desk, query: OfGroups) -> Listed[ErrorGroup]:
    """Error groups, the largest first: dead letters of the same error, on the same path through the code."""
    queue = await if_named(desk, query.queue)
    found = await desk.app.dead.aerror_groups(queue, permanent=query.permanent, limit=query.limit, offset=query.offset)
    return Listed.of(found, query.offset, query.limit)


@get("/dead/{id}")
async def show(desk: Desk, id: str, query: OfQueue) -> JobInfo:
    """One dead letter with its whole history."""
    info = await desk.app.dead.ashow(id, queue=await if_named(desk, query.queue))
    if info.state is not State.DEAD:
        raise Refused(404, "UnknownJob", f"job {id} is {info.state.value}, not a dead letter: see /jobs/{id}")
    return shown_job(desk.app, info, all=desk.sees_all)


@post("/dead/retry", "dead.retry")
async def retry(desk: Desk, body: Chosen) -> Did[Retried]:
    """Retry dead letters: some, those that fit, or all. Each runs once, however often this is requested."""
    wanted, details = await filters(desk, body), about(body)
    watch = partial(desk.doing.tell, **details)
    count = await desk.app.dead.aretry(body.ids, all=body.all, limit=body.limit, watch=watch, **wanted)
    return Did(answer=Retried(count), count=count, about=details)


@post("/dead/discard", "dead.discard", Role.ADMIN)
async def discard(desk: Desk, query: Discard, body: Chosen) -> Did[Discarded]:
    """Discard dead letters: some, those that fit, or all. They can be restored for ten minutes."""
    wanted = await filters(desk, body)
    if query.dry_run:
        return Did(answer=Discarded(await _how_many(desk, body, wanted), True), dry=True)
    details = {**about(body), "undo": None if query.undo else False}
    watch = partial(desk.doing.tell, **details)
    count = await desk.app.dead.adiscard(
        body.ids, all=body.all, limit=body.limit, undo=query.undo, watch=watch, **wanted
    )
    return Did(answer=Discarded(count, False), count=count, about=details)


async def _how_many(desk: Desk, body: Chosen, wanted: Filters) -> int:
    picked, _ = await desk.app.engine.arun(chosen(desk.app.engine, body.ids, body.all, wanted))
    if picked is not None:
        return len(await desk.app.engine.arun(named(desk.app.engine, picked, body.queue or None)))
    return len(await desk.app.dead.alist(limit=min(body.limit or COUNTED, COUNTED), **wanted))


@post("/dead/restore", "dead.restore")
async def restore(desk: Desk, body: Chosen) -> Did[Restored]:
    """Restore dead letters that were discarded in the last ten minutes: some, those that fit, or all."""
    wanted, details = await filters(desk, body), about(body)
    watch = partial(desk.doing.tell, **details)
    count = await desk.app.dead.arestore(body.ids, all=body.all, limit=body.limit, watch=watch, **wanted)
    return Did(answer=Restored(count), count=count, about=details)


@post("/dead/{id}/edit", "dead.edit")
async def edit(desk: Desk, id: str, query: OfQueue, body: Edit) -> Did[Queued]:
    """Run a dead letter with other arguments, as a new job that refers to it."""
    queue = await if_named(desk, query.queue)
    refuse_hidden(body.args, body.kwargs)
    job = await desk.app.dead.aedit(id, args=body.args, kwargs=body.kwargs, queue=queue)
    changed = [name for name in ("args", "kwargs") if getattr(body, name) is not None]
    return Did(
        answer=Queued(job.id, job.queue),
        count=1,
        about={"id": id, "queue": job.queue, "job": job.id, "changed": changed},
    )


ROUTES = (list_all, dlq, error_groups, show, retry, discard, restore, edit)
