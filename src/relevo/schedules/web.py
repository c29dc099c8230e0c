"""Schedules over HTTP: list, look, pause, resume, run now, change, remove."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from relevo.audit.trail import of_control
from relevo.limits.web import Changed, Why
from relevo.schedules.handle import ScheduleInfo
from relevo.schedules.store import RUNS_MAX
from relevo.web.access import Role
from relevo.web.asked import Dry
from relevo.web.route import Desk, Did, Page, get, post
from relevo.web.shown import shown_schedule


class Last(Struct, frozen=True, forbid_unknown_fields=True):
    """How many entries."""

    limit: Annotated[int, Meta(ge=1, le=RUNS_MAX, description="at most so many")] = 20


class Ran(Struct, frozen=True):
    """One entry of a schedule's history."""

    #: The tick; 0 for a run that a user requested.
    tick_ms: int
    at_ms: int
    #: The job it queued; of a skipped tick, the job that was still there.
    job: str
    #: fired, skipped (the previous job was still unfinished), or "dropped 7" (missed, and not caught up)
    what: str


class Queued(Struct, frozen=True):
    """A job that was made."""

    id: str
    queue: str


class Edit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to change; fields left out stay unchanged."""

    cron: str | UnsetType = UNSET
    every: str | float | UnsetType = UNSET
    tz: str | UnsetType = UNSET
    overlap: str | UnsetType = UNSET
    missed: str | UnsetType = UNSET
    missed_limit: int | UnsetType = UNSET
    jitter: str | float | UnsetType = UNSET


class Removed(Struct, frozen=True):
    """Names of the schedules that were removed, or would be."""

    removed: list[str]
    dry_run: bool
    #: A decorator or the settings name it: it comes back with the next worker.
    comes_back: bool = False


@get("/schedules")
async def list_all(desk: Desk) -> Page[ScheduleInfo]:
    """All schedules, by name."""
    found = await desk.app.schedules.alist()
    return Page.whole([shown_schedule(desk.app, info, all=desk.sees_all) for info in found])


@get("/schedules/{name}")
async def show(desk: Desk, name: str) -> ScheduleInfo:
    """Everything known about a schedule."""
    return shown_schedule(desk.app, await desk.app.schedules.get(name).ainfo(), all=desk.sees_all)


@get("/schedules/{name}/history")
async def history(desk: Desk, name: str, query: Last) -> Page[Ran]:
    """Recent events of a schedule, newest first: ticks that fired, were skipped or dropped."""
    found = await desk.app.schedules.get(name).ahistory(query.limit)
    return Page.whole([Ran(one.tick_ms, one.at_ms, one.job, one.what) for one in found])


@post("/schedules/{name}/pause", "schedule.pause")
async def pause(desk: Desk, name: str, body: Why) -> Did[Changed]:
    """Fire no more ticks, until the pause expires or is lifted."""
    schedule = desk.app.schedules.get(name)
    changed = await schedule.apause(reason=body.reason, by=desk.caller.name, until=body.ends)
    deed, details = of_control("pause", schedule=name, reason=body.reason, until=body.ends)
    return Did(answer=Changed(changed), count=int(changed), about=details, deed=deed)


@post("/schedules/{name}/resume", "schedule.resume")
async def resume(desk: Desk, name: str) -> Did[Changed]:
    """Continue with the next tick; ticks missed during the pause are not caught up."""
    changed = await desk.app.schedules.get(name).aresume()
    deed, details = of_control("resume", schedule=name)
    return Did(answer=Changed(changed), count=int(changed), about=details, deed=deed)


@post("/schedules/{name}/run", "schedule.run")
async def run(desk: Desk, name: str) -> Did[Queued]:
    """Queue one job of it now. Its ticks stay as they are."""
    job = await desk.app.schedules.get(name).arun_now()
    return Did(answer=Queued(job.id, job.queue), count=1, about={"name": name, "id": job.id})


@post("/schedules/{name}/edit", "schedule.edit")
async def edit(desk: Desk, name: str, body: Edit) -> Did[ScheduleInfo]:
    """Change when it fires. The change stands until the code that made the schedule changes."""
    changes = {field: value for field, value in msgspec.structs.asdict(body).items() if value is not UNSET}
    info = await desk.app.schedules.get(name).aedit(**changes)
    return Did(answer=shown_schedule(desk.app, info, all=desk.sees_all), count=1, about={"name": name, **changes})


@post("/schedules/{name}/remove", "schedule.remove", Role.ADMIN)
async def remove(desk: Desk, name: str, query: Dry) -> Did[Removed]:
    """Remove a schedule and its history; jobs that it queued stay."""
    schedule = desk.app.schedules.get(name)
    info = await schedule.ainfo()
    if not query.dry_run:
        await schedule.aremove()
    result = Removed([name], query.dry_run, info.origin != "call" and not info.stale)
    return Did(answer=result, count=1, about={"name": name}, dry=query.dry_run)


@post("/schedules/remove_stale", "schedule.remove_stale", Role.ADMIN)
async def remove_stale(desk: Desk, query: Dry) -> Did[Removed]:
    """Remove schedules that a decorator or the settings once named and no longer do."""
    schedules = desk.app.schedules
    if query.dry_run:
        removed = [info.name for info in await schedules.alist() if info.stale]
    else:
        removed = await schedules.aremove_stale()
    return Did(
        answer=Removed(removed, query.dry_run), count=len(removed), about={"names": removed[:20]}, dry=query.dry_run
    )


ROUTES = (list_all, remove_stale, history, show, pause, resume, run, edit, remove)
