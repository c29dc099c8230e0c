"""The table of all routes."""

from __future__ import annotations

from typing import Any

from relevo.web import (
    bus,
    controls,
    dead,
    enqueueing,
    jobs,
    moving,
    overview,
    pools,
    queues,
    replays,
    schedules,
    upkeep,
    workflows,
)
from relevo.web.openapi import document
from relevo.web.route import Desk, get


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
