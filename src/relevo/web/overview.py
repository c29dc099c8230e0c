"""Routes about the whole app: the caller, health, workers, the audit trail."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relevo.audit.trail import Deed
from relevo.engine.workers import WorkerInfo, roll
from relevo.health.status import Health
from relevo.web.access import Role
from relevo.web.asked import Limit, Offset, Time, time_of
from relevo.web.route import Desk, Page, get


class Me(Struct, frozen=True):
    """The caller, and the app."""

    name: str
    role: str
    app: str
    env: str


class Cached(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a cached report will do."""

    cached: Annotated[bool, Meta(description="the last report of a worker, if the setting `health` is on")] = False


class Workers(Struct, frozen=True):
    """Live workers, and ids of those that stopped reporting without a shutdown in the last 15 minutes."""

    workers: list[WorkerInfo]
    silent: list[str]


class Newest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of the audit trail."""

    offset: Offset = 0
    limit: Limit = 50
    since: Time = ""
    until: Time = ""
    who: Annotated[str, Meta(max_length=200, description="ana@host, or ana on any host, or the name of a token")] = ""
    what: Annotated[str, Meta(max_length=200, description="dead.retry, or dead for all done to dead letters")] = ""
    app: Annotated[str, Meta(max_length=200)] = ""


@get("/me")
async def me(desk: Desk) -> Me:
    """Your name and role, and the app."""
    return Me(desk.caller.name, desk.caller.role.label, desk.app.name, desk.app.settings.env)


@get("/queue/health")
async def health(desk: Desk, query: Cached) -> Health:
    """The health of the app and its causes: every queue, measured now."""
    return await desk.app.ahealth(cached=query.cached)


@get("/workers")
async def workers(desk: Desk) -> Workers:
    """The workers of the app."""
    now_ms = await desk.app.engine.arun(desk.app.engine.now_ms())
    alive, silent = await desk.app.engine.arun(roll(desk.app.engine.keys, now_ms))
    return Workers(alive, silent)


@get("/audit", Role.OPERATOR)
async def audit(desk: Desk, query: Newest) -> Page[Deed]:
    """What operators did, newest first, by command line and by HTTP."""
    since, until = time_of("since", query.since) or None, time_of("until", query.until) or None
    names = {"who": query.who or None, "what": query.what or None, "app": query.app or None}
    found = await desk.app.audit.alist(limit=query.limit, offset=query.offset, since=since, until=until, **names)
    return Page.of(found, query.offset, query.limit)


ROUTES = (me, health, workers, audit)
