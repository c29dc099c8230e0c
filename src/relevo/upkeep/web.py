"""The purge over HTTP: jobs and entities that are in their state for too long."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from relevo.upkeep.purge import purgeable
from relevo.upkeep.report import Held, Purged, PurgeGroup, Uncertain
from relevo.web.access import Role
from relevo.web.asked import DryRun, QueueName
from relevo.web.problems import not_there
from relevo.web.route import Desk, Did, post

#: Entries of a purge that are listed one by one; the groups count all.
LISTED = 1_000


class Purge(Struct, frozen=True, forbid_unknown_fields=True):
    """What to purge, and whether it is a dry run."""

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
    #: Of unknown age, or their existence could not be checked: counted, and left alone.
    unknown: list[Uncertain]
    #: Jobs that only wait for the end of a pause or a breaker: counted, and left alone.
    held: list[Held]
    #: They changed during the purge, and were left alone.
    spared: int
    #: Queues and pools that another process was purging.
    skipped: list[str]
    #: Those with more to purge than one run acts on.
    unfinished: list[str]


@post("/queue/purge", "purge.run", Role.ADMIN)
async def purge(desk: Desk, query: Purge) -> Did[Purging]:
    """Find what is in its state for too long, and end, move or remove it; a dry run gives exactly the same list."""
    if query.queue:
        known = await desk.app.engine.arun(purgeable(desk.app.engine))
        if query.queue not in known:
            raise not_there("queue or pool in use", query.queue, known)
    details = {"queue": query.queue or None}
    watch = partial(desk.doing.tell, **details)
    found = await desk.app.apurge(dry_run=query.dry_run, queue=query.queue or None, watch=watch)
    report = Purging(
        found.dry_run,
        found.count,
        found.bytes,
        found.groups(),
        list(found.purged[:LISTED]),
        list(found.unknown),
        list(found.held),
        found.spared,
        list(found.skipped),
        list(found.unfinished),
    )
    return Did(report, found.count, details, found.dry_run)


ROUTES = (purge,)
