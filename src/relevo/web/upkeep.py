"""The purge over HTTP: what is in its state for too long."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from relevo.model.access import Role
from relevo.purging import Held, Purged, PurgeGroup, Uncertain, purgeable
from relevo.web.asked import DryRun, QueueName
from relevo.web.problems import not_there
from relevo.web.route import Desk, Did, post

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
    #: Of unknown age, or nobody says whether they exist: counted, and left alone.
    unknown: list[Uncertain]
    #: Jobs that only wait for the end of a pause or a breaker: counted, and left alone.
    held: list[Held]
    #: Something happened to them meanwhile.
    spared: int
    #: Queues and pools that somebody else was purging.
    skipped: list[str]
    #: Those with more of it than one run acts on.
    unfinished: list[str]


@post("/queue/purge", "purge.run", Role.ADMIN)
async def purge(desk: Desk, query: Purge) -> Did[Purging]:
    """Find what is in its state for too long, and end, move or remove it; a dry run gives exactly the same list."""
    if query.queue:
        known = await desk.app.arun(purgeable(desk.app))
        if query.queue not in known:
            raise not_there("queue or pool in use", query.queue, known)
    said = {"queue": query.queue or None}
    watch = partial(desk.doing.tell, **said)
    found = await desk.app.apurge(dry_run=query.dry_run, queue=query.queue or None, watch=watch)
    told = Purging(
        found.dry_run,
        found.count,
        found.bytes,
        found.groups(),
        list(found.purged[:TOLD]),
        list(found.unknown),
        list(found.held),
        found.spared,
        list(found.skipped),
        list(found.unfinished),
    )
    return Did(told, found.count, said, found.dry_run)


ROUTES = (purge,)
