"""Replays over HTTP: dead letters retried as a tracked run, which continues after the request that started it.

The process that answers leads it. If that process dies, the run stays as it is, and any process can resume it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from msgspec import Meta, Struct

from relevo.dead.replay import Replay
from relevo.dead.replay_store import MOST
from relevo.dead.web.letters import Which, about, filters
from relevo.errors import RelevoError, message_of
from relevo.limits.web import Changed
from relevo.web.access import Role
from relevo.web.asked import Offset
from relevo.web.problems import conflict
from relevo.web.route import Desk, Did, Page, get, post

log = logging.getLogger("relevo.web")

START, RESUME = "dead.replay", "dead.replay_resume"

Lead = Callable[[Callable[[Replay], None]], Coroutine[Any, Any, Replay]]


class NewReplay(Which, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters, and how carefully."""

    all: bool = False
    rate: str | float | None = None
    #: One, then ten, then the rest, and no more if one of these eleven fails.
    canary: bool = False
    patience: Annotated[str, Meta(description="how long canaries may take")] = "30m"


class Patience(Struct, frozen=True, forbid_unknown_fields=True):
    """How carefully it continues."""

    patience: Annotated[str, Meta(description="how long canaries may take")] = "30m"


class Newest(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the replays."""

    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=MOST, description="at most so many")] = 50


async def _lead(desk: Desk, lead: Lead, deed: str, retried: int, details: dict[str, Any]) -> Replay:
    """Start leading a run, of which `retried` dead letters were retried before; returns its state after the first step.

    The audit entry is written when this process stops leading the run: only then is its count known.
    """
    first: asyncio.Future[Replay] = asyncio.get_running_loop().create_future()
    doing = desk.app.audit.doing(deed, who=desk.caller.name, via="http", later=desk.errands.go, **details)

    def seen(run: Replay) -> None:
        doing.tell(run.retried - retried, id=run.id)
        if not first.done():
            first.set_result(run)

    async def led() -> Replay:
        try:
            async with doing:
                return await lead(seen)
        except RelevoError as error:
            if first.done():  # else the request reports the error
                log.warning("replay %s, which continued after its answer: %s", first.result().id, message_of(error))
            raise

    leading = desk.errands.go(led())
    await asyncio.wait({leading, first}, return_when=asyncio.FIRST_COMPLETED)
    return first.result() if first.done() else leading.result()


@post("/dead/replays", START)
async def start(desk: Desk, body: NewReplay) -> Did[Replay]:
    """Retry dead letters as a tracked run, the oldest first: at a rate, behind canaries. It continues by itself."""
    wanted = await filters(desk, body)
    dead, who = desk.app.dead, desk.caller.name
    run = await _lead(
        desk,
        lambda seen: dead.areplay(
            all=body.all,
            rate=body.rate,
            canary=body.canary,
            patience=body.patience,
            who=who,
            watch=seen,
            **wanted,
        ),
        START,
        0,
        about(body),
    )
    return Did(answer=run, goes_on=True)


@get("/dead/replays", Role.OPERATOR)
async def list_newest(desk: Desk, query: Newest) -> Page[Replay]:
    """Replays of the last week, the most recently active first."""
    found = await desk.app.dead.aruns(limit=query.limit, offset=query.offset)
    return Page.of(found, query.offset, query.limit)


@get("/dead/replays/{id}", Role.OPERATOR)
async def show(desk: Desk, id: str) -> Replay:
    """The state of one replay."""
    return await desk.app.dead.arun(id)


@post("/dead/replays/{id}/stop", "dead.replay_stop")
async def stop(desk: Desk, id: str) -> Did[Changed]:
    """Ask the process that leads a replay to stop it after its next step."""
    if not await desk.app.dead.astop(id):
        raise conflict(f"no process leads replay {id}: there is nothing to stop")
    return Did(answer=Changed(True), count=1, about={"id": id})


@post("/dead/replays/{id}/resume", RESUME)
async def resume(desk: Desk, id: str, query: Patience) -> Did[Replay]:
    """Continue a replay that was stopped, or whose process died."""
    dead, who = desk.app.dead, desk.caller.name
    before = await dead.arun(id)
    run = await _lead(
        desk,
        lambda seen: dead.aresume(id, patience=query.patience, who=who, watch=seen),
        RESUME,
        before.retried,
        {"id": id},
    )
    return Did(answer=run, goes_on=True)


ROUTES = (start, list_newest, show, stop, resume)
