"""The table of all routes."""

from __future__ import annotations

from typing import Any

from relevo.bus import web as bus
from relevo.dead.web import export as moving
from relevo.dead.web import letters as dead
from relevo.dead.web import replays
from relevo.engine import web as jobs
from relevo.limits import web as controls
from relevo.pools import web as pools
from relevo.queues import web as queues
from relevo.schedules import web as schedules
from relevo.upkeep import web as upkeep
from relevo.web import enqueueing, overview
from relevo.web.openapi import document
from relevo.web.route import Desk, get
from relevo.workflows import web as workflows


@get("/openapi.json")
async def openapi(desk: Desk) -> dict[str, Any]:
    """This document."""
    return document(ROUTES, base=desk.base, app=desk.app.name)


ROUTES = (
    *queues.ROUTES,
    *controls.ROUTES,
    *jobs.ROUTES,
    *enqueueing.ROUTES,
    *dead.ROUTES,
    *moving.ROUTES,
    *replays.ROUTES,
    *schedules.ROUTES,
    *workflows.ROUTES,
    *bus.ROUTES,
    *overview.ROUTES,
    *upkeep.ROUTES,
    *pools.ROUTES,
    openapi,
)
