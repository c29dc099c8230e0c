"""Replays over HTTP: dead letters run again as a tracked run, which goes on after the request that began it.

The process that answers leads it. If that ends, the run is left as it stands, and anybody can resume it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from msgspec import Meta, Struct

from relevo.dead import Replay
from relevo.model.access import Role
from relevo.web.asked import Limit
from relevo.web.dead import Which, about, filters
from relevo.web.problems import conflict, invalid
from relevo.web.queues import Changed
from relevo.web.route import Desk, Did, get, post

Lead = Callable[[Callable[[Replay], None]], Coroutine[Any, Any, Replay]]


class NewReplay(Which, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which letters, and how carefully."""

    all: bool = False
    rate: str | float | None = None
    #: One, then ten, then the rest, and no more if one of these eleven fails.
    canary: bool = False
    patience: Annotated[str, Meta(description="how long canaries may take")] = "30m"


class Newest(Struct, frozen=True, forbid_unknown_fields=True):
    """How many."""

    limit: Limit = 50


async def _lead(desk: Desk, lead: Lead) -> Replay:
    """Begin to lead a run: how it stands after its first step."""
    first: asyncio.Future[Replay] = asyncio.get_running_loop().create_future()

    def seen(run: Replay) -> None:
        if not first.done():
            first.set_result(run)

    leading = desk.errands.go(lead(seen))
    await asyncio.wait({leading, first}, return_when=asyncio.FIRST_COMPLETED)
    return first.result() if first.done() else leading.result()


@post("/dead/replays", "dead.replay")
async def start(desk: Desk, body: NewReplay) -> Did[Replay]:
    """Run letters again as a tracked run, the oldest first: at a rate, behind canaries. It goes on by itself."""
    wanted = await filters(desk, body)
    if not body.all and not wanted:
        raise invalid('which dead letters? Say what they have in common, or "all": true')
    dead, who = desk.app.dead, desk.caller.name
    run = await _lead(
        desk,
        lambda seen: dead.areplay(
            rate=body.rate, canary=body.canary, patience=body.patience, who=who, watch=seen, **wanted
        ),
    )
    return Did(run, run.total, {**about(body), "id": run.id})


@get("/dead/replays", Role.OPERATOR)
async def list_newest(desk: Desk, query: Newest) -> list[Replay]:
    """Replays of the last week, the one that was heard of last first."""
    return await desk.app.dead.aruns(limit=query.limit)


@get("/dead/replays/{id}", Role.OPERATOR)
async def show(desk: Desk, id: str) -> Replay:
    """How one replay stands."""
    return await desk.app.dead.arun(id)


@post("/dead/replays/{id}/stop", "dead.replay_stop")
async def stop(desk: Desk, id: str) -> Did[Changed]:
    """Ask the process that leads a replay to stop it after its next step."""
    if not await desk.app.dead.astop(id):
        raise conflict(f"replay {id} is led by nobody: there is nothing to stop")
    return Did(Changed(True), 1, {"id": id})


@post("/dead/replays/{id}/resume", "dead.replay_resume")
async def resume(desk: Desk, id: str) -> Did[Replay]:
    """Go on with a replay that was stopped, or whose process died."""
    dead, who = desk.app.dead, desk.caller.name
    run = await _lead(desk, lambda seen: dead.aresume(id, who=who, watch=seen))
    return Did(run, 1, {"id": id})


ROUTES = (start, list_newest, show, stop, resume)
