"""What concerns the app as a whole over HTTP: who asks, its workers, what operators did."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relevo.audit.trail import Deed
from relevo.engine.workers import WorkerInfo, roll
from relevo.health.status import Health
from relevo.web.access import Role
from relevo.web.asked import Limit, Time, time_of
from relevo.web.route import Desk, get


class Me(Struct, frozen=True):
    """Who asks, and what about."""

    name: str
    role: str
    app: str
    env: str


class Cached(Struct, frozen=True, forbid_unknown_fields=True):
    """How fresh it must be."""

    cached: Annotated[bool, Meta(description="what a worker found last, if the setting `health` is on")] = False


class Workers(Struct, frozen=True):
    """Workers that live, and ids of those that fell silent without a goodbye in the last 15 minutes."""

    workers: list[WorkerInfo]
    silent: list[str]


class Newest(Struct, frozen=True, forbid_unknown_fields=True):
    """How many, of which time, by whom, of which kind, and done to which app."""

    limit: Limit = 50
    since: Time = ""
    until: Time = ""
    who: Annotated[str, Meta(max_length=200, description="ana@host, or ana on any host, or the name of a token")] = ""
    what: Annotated[str, Meta(max_length=200, description="dead.retry, or dead for all done to dead letters")] = ""
    app: Annotated[str, Meta(max_length=200)] = ""


@get("/me")
async def me(desk: Desk) -> Me:
    """Who you are here, and which app this is."""
    return Me(desk.caller.name, desk.caller.role.label, desk.app.name, desk.app.settings.env)


@get("/queue/health")
async def health(desk: Desk, query: Cached) -> Health:
    """Whether all is well with the app, and why not: every queue, looked at now."""
    return await desk.app.ahealth(cached=query.cached)


@get("/workers")
async def workers(desk: Desk) -> Workers:
    """The workers of the app."""
    now_ms = await desk.app.engine.arun(desk.app.engine.now_ms())
    alive, silent = await desk.app.engine.arun(roll(desk.app.engine.keys, now_ms))
    return Workers(alive, silent)


@get("/audit", Role.OPERATOR)
async def audit(desk: Desk, query: Newest) -> list[Deed]:
    """What operators did, newest first, by command line and by HTTP."""
    since, until = time_of("since", query.since) or None, time_of("until", query.until) or None
    names = {"who": query.who or None, "what": query.what or None, "app": query.app or None}
    return await desk.app.audit.alist(limit=query.limit, since=since, until=until, **names)


ROUTES = (me, health, workers, audit)
