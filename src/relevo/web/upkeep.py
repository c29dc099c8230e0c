"""The purge and the pools over HTTP: what is in its state for too long, and entities that are no jobs."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from relevo.errors import OptionError
from relevo.model.access import Role
from relevo.model.masking import masked
from relevo.pools import Entity, Pool
from relevo.purging import Purged, PurgeGroup, Uncertain
from relevo.web.asked import DryRun, Limit, Offset, QueueName
from relevo.web.problems import not_there
from relevo.web.route import Desk, Did, Page, get, post

#: Entries of a purge that are told one by one; the groups count all.
TOLD = 1_000


class Purge(Struct, frozen=True, forbid_unknown_fields=True):
    """What to purge, and whether to."""

    dry_run: DryRun = True
    queue: QueueName = ""


class Purging(Struct, frozen=True):
    """What a purge did, or would do."""

    dry_run: bool
    count: int
    bytes: int
    #: By queue, state and reason.
    groups: list[PurgeGroup]
    #: One by one, the first thousand.
    purged: list[Purged]
    #: Of unknown age: counted, and left alone.
    unknown: list[Uncertain]
    #: Something happened to them meanwhile.
    spared: int
    #: Queues and pools that somebody else was purging.
    skipped: list[str]
    #: Those with more of it than one run acts on.
    unfinished: list[str]


class PoolInfo(Struct, frozen=True):
    """A pool, and how many entities are in which state."""

    name: str
    #: Its name among the queues, under which its dead letters are.
    queue: str
    counts: dict[str, int]


class InState(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the entities in one state."""

    state: Annotated[str, Meta(min_length=1, max_length=50)] = "pending"
    offset: Offset = 0
    limit: Limit = 50


@post("/queue/purge", "purge.run", Role.ADMIN)
async def purge(desk: Desk, query: Purge) -> Did[Purging]:
    """Find what is in its state for too long, and end, move or remove it; a dry run gives exactly the same list."""
    if query.queue and query.queue not in (known := [*await desk.app.aqueues(), *await desk.app.apools()]):
        raise not_there("queue or pool in use", query.queue, known)
    found = await desk.app.apurge(dry_run=query.dry_run, queue=query.queue or None)
    told = Purging(
        found.dry_run,
        found.count,
        found.bytes,
        found.groups(),
        list(found.purged[:TOLD]),
        list(found.unknown),
        found.spared,
        list(found.skipped),
        list(found.unfinished),
    )
    return Did(told, found.count, {"queue": query.queue or None}, found.dry_run)


@get("/pools")
async def pools(desk: Desk) -> list[PoolInfo]:
    """All pools, with how many entities are in which state."""
    found = [desk.app.pool(name) for name in await desk.app.apools()]
    return [PoolInfo(pool.name, pool.queue, await pool.acounts()) for pool in found]


@get("/pools/{pool}/items")
async def items(desk: Desk, pool: str, query: InState) -> Page[Entity]:
    """Entities in one state of a pool, those that are there longest first."""
    found = await _in_use(desk, pool)
    try:
        rows = await found.aitems(query.state, limit=query.limit, offset=query.offset)
    except OptionError as error:
        raise not_there("state", query.state, list(await found.acounts())) from error
    marked = desk.app.settings.mask
    shown = [msgspec.structs.replace(row, metadata=masked(row.metadata, marked)) for row in rows]
    return Page.of(shown, query.offset, query.limit)


async def _in_use(desk: Desk, name: str) -> Pool:
    known = await desk.app.apools()
    if name not in known:
        raise not_there("pool in use", name, known)
    return desk.app.pool(name)


ROUTES = (purge, pools, items)
