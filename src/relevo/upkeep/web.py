"""Upkeep over HTTP: what is in its state for too long, and what is no longer served or used."""

from __future__ import annotations

from functools import partial

from msgspec import Struct

from relevo.upkeep.purge import purgeable
from relevo.upkeep.report import Held, Purged, PurgeGroup, Uncertain, UpkeepReport
from relevo.web.access import Role
from relevo.web.asked import Dry, DryRun, QueueName
from relevo.web.problems import not_there
from relevo.web.route import Desk, Did, post

#: Entries of a purge that are listed one by one; the groups count all.
LISTED = 1_000


class Purge(Struct, frozen=True, forbid_unknown_fields=True):
    """What to purge, and whether it is a dry run."""

    dry_run: DryRun = True
    queue: QueueName = ""


class Upkeep(Struct, frozen=True, kw_only=True):
    """What a purge or a sweep did, or would do."""

    dry_run: bool
    count: int
    bytes: int
    #: By queue, state and reason.
    groups: list[PurgeGroup]
    #: One by one, the first thousand.
    purged: list[Purged]
    #: Of unknown age, or their existence could not be checked: counted, and left alone.
    unknown: list[Uncertain]
    #: Left alone for a reason: jobs that wait for the end of a pause or a breaker; unused queues that are not empty.
    held: list[Held]
    #: They changed between search and action, and were left alone.
    spared: int
    #: Queues and pools, or the bus, that another process was working on.
    skipped: list[str]
    #: Those with more to purge than one run acts on.
    unfinished: list[str]


def _shown(report: UpkeepReport) -> Upkeep:
    return Upkeep(
        dry_run=report.dry_run,
        count=report.count,
        bytes=report.bytes,
        groups=report.groups(),
        purged=list(report.purged[:LISTED]),
        unknown=list(report.unknown),
        held=list(report.held),
        spared=report.spared,
        skipped=list(report.skipped),
        unfinished=list(report.unfinished),
    )


@post("/queue/purge", "purge.run", Role.ADMIN)
async def purge(desk: Desk, query: Purge) -> Did[Upkeep]:
    """Find what is in its state for too long, and end, move or remove it; a dry run gives exactly the same list."""
    if query.queue:
        known = await desk.app.engine.arun(purgeable(desk.app.engine))
        if query.queue not in known:
            raise not_there("queue or pool in use", query.queue, known)
    details = {"queue": query.queue or None}
    watch = partial(desk.doing.tell, **details)
    found = await desk.app.apurge(dry_run=query.dry_run, queue=query.queue or None, watch=watch)
    return Did(answer=_shown(found), count=found.count, about=details, dry=found.dry_run)


@post("/orphans/sweep", "orphans.sweep", Role.ADMIN)
async def sweep(desk: Desk, query: Dry) -> Did[Upkeep]:
    """Find subscriptions and queues of the bus that are no longer served or used, and remove them, as workers do."""
    found = await desk.app.asweep(dry_run=query.dry_run)
    return Did(answer=_shown(found), count=found.count, about={}, dry=found.dry_run)


ROUTES = (purge, sweep)
