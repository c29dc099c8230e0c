"""Pauses and limits over HTTP: of queues, tasks and tenants."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from relevo.audit.trail import of_control
from relevo.engine.pauses import Pause, Until
from relevo.limits.store import LimitInfo
from relevo.queues.known import Kind, not_known
from relevo.queues.queue import Queue
from relevo.web.asked import OfQueue, queue_in_use, time_of
from relevo.web.problems import Refused
from relevo.web.route import Desk, Did, Page, get, post

T = TypeVar("T")
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class Why(Struct, frozen=True, forbid_unknown_fields=True):
    """Why something is paused, and for how long."""

    reason: Annotated[str, Meta(max_length=500)] = ""
    #: A duration such as `2h`, or a time with its zone; without it, until it is resumed.
    until: Annotated[str, Meta(max_length=40)] | None = None

    @property
    def ends(self) -> Until:
        """As the Python API takes it."""
        return None if self.until is None else time_of("until", self.until)


Force = Annotated[bool, Meta(description="also a task or a tenant that nothing is known of yet")]


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """One tenant or one task; in routes of a queue, neither means all of it."""

    tenant: Name | None = None
    task: Name | None = None
    force: Force = False


class Paused(Why, frozen=True, forbid_unknown_fields=True):
    """What to pause, why, and for how long."""

    tenant: Name | None = None
    task: Name | None = None
    force: Force = False


class NewLimit(Part, frozen=True, forbid_unknown_fields=True):
    """The limit: how many jobs run at once, how fast they start (`"100/m"`)."""

    concurrency: int | None = None
    rate: str | float | None = None
    burst: int | None = None


class Changed(Struct, frozen=True):
    """Whether the request changed anything."""

    changed: bool


class Where(Struct, frozen=True):
    """The queues that were changed."""

    queues: list[str]


@post("/queues/{queue}/pause", "queue.pause")
async def pause(desk: Desk, queue: str, body: Paused) -> Did[Changed]:
    """Start no more jobs, of the queue or of one tenant or task, until the pause ends; running jobs continue."""
    found = await _queue(desk, queue, body)
    by = desk.caller.name
    changed = await found.apause(tenant=body.tenant, task=body.task, reason=body.reason, by=by, until=body.ends)
    return _did("pause", body, queue, Changed(changed), int(changed))


@post("/queues/{queue}/resume", "queue.resume")
async def resume(desk: Desk, queue: str, body: Part) -> Did[Changed]:
    """Start jobs again; idle workers are woken. A breaker of the task is closed."""
    changed = await (await _queue(desk, queue, body)).aresume(tenant=body.tenant, task=body.task)
    return _did("resume", body, queue, Changed(changed), int(changed))


@post("/pause", "task.pause")
async def pause_everywhere(desk: Desk, body: Paused) -> Did[Where]:
    """Start no more jobs of a task or a tenant, in all queues of the app that are in use."""
    await _refuse_unknown(desk, body)
    by = desk.caller.name
    queues = await desk.app.apause(tenant=body.tenant, task=body.task, reason=body.reason, by=by, until=body.ends)
    return _did("pause", body, None, Where(queues), len(queues))


@post("/resume", "task.resume")
async def resume_everywhere(desk: Desk, body: Part) -> Did[Where]:
    """Start jobs of a task or a tenant again, in all queues of the app; a breaker of the task is closed."""
    await _refuse_unknown(desk, body)
    queues = await desk.app.aresume(tenant=body.tenant, task=body.task)
    return _did("resume", body, None, Where(queues), len(queues))


def _did(verb: str, part: Part | Paused, queue: str | None, answer: T, count: int, **terms: Any) -> Did[T]:
    why: dict[str, Any] = {"reason": part.reason, "until": part.ends} if isinstance(part, Paused) else {}
    deed, details = of_control(verb, queue=queue, task=part.task, tenant=part.tenant, **why)
    return Did(answer=answer, count=count, about={**details, **terms}, deed=deed)


async def _queue(desk: Desk, name: str, part: Part | Paused) -> Queue:
    """The queue that is named, if it and the task or tenant in it exist."""
    found = await queue_in_use(desk, name)
    await _refuse_unknown(desk, part, name)
    return found


async def _refuse_unknown(desk: Desk, part: Part | Paused, queue: str | None = None) -> None:
    """Refuse a task or a tenant that nothing is known of: most often a typo."""
    named: tuple[tuple[Kind, str | None], ...] = (("task", part.task), ("tenant", part.tenant))
    for kind, name in named:
        if not name or part.force:
            continue
        if why := await desk.app.engine.arun(not_known(desk.app.engine, kind, name, queue)):
            hint = 'send "force": true if the name is right, and its first job is still to come'
            raise Refused(404, "NotFound", f"{why} ({hint})")


@get("/pauses")
async def pauses(desk: Desk, query: OfQueue) -> Page[Pause]:
    """What is paused, in one queue or in all: why, by whom and until when; open breakers, too."""
    return Page.whole(await ((await queue_in_use(desk, query.queue)).apauses() if query.queue else desk.app.apauses()))


@get("/queues/{queue}/limits")
async def limits(desk: Desk, queue: str) -> Page[LimitInfo]:
    """What is limited or paused (the queue, tasks and tenants), and the state of each limit."""
    return Page.whole(await (await queue_in_use(desk, queue)).alimits())


@post("/queues/{queue}/limits", "queue.limit")
async def limit(desk: Desk, queue: str, body: NewLimit) -> Did[list[LimitInfo]]:
    """Limit a tenant, a task or the queue. Replaces the previous limit, at once."""
    found = await _queue(desk, queue, body)
    terms: dict[str, Any] = {"concurrency": body.concurrency, "rate": body.rate, "burst": body.burst}
    changed = await found.alimit(body.tenant, task=body.task, **terms)
    return _did("limit", body, queue, await found.alimits(), int(changed), **terms)


@post("/queues/{queue}/limits/remove", "queue.unlimit")
async def unlimit(desk: Desk, queue: str, body: Part) -> Did[Changed]:
    """Remove a limit; pauses stay."""
    changed = await (await _queue(desk, queue, body)).aunlimit(body.tenant, task=body.task)
    return _did("unlimit", body, queue, Changed(changed), int(changed))


ROUTES = (pause, resume, pause_everywhere, resume_everywhere, pauses, limits, limit, unlimit)
