"""Enqueueing over HTTP: a producer needs a token, but no access to Redis.

It can name only tasks that the code of the app registers. Each job has the token's name as a tag, so that a producer
can read the jobs it enqueued, and no others.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from msgspec import Meta, Raw, Struct, field

from relevo.engine.handle import Job
from relevo.engine.job import PRIORITY_MAX
from relevo.engine.task import Task
from relevo.errors import PayloadError, UnknownJob
from relevo.web.access import Caller
from relevo.web.asked import time_of
from relevo.web.problems import Refused, invalid, not_there, refusal_of
from relevo.web.route import Created, Desk, create

#: How long an Idempotency-Key refers to its job: longer than a client retries.
KEY_KEPT = "24h"
#: Maximum of jobs in one request; more would delay other clients.
BATCH = 100

#: Positional and keyword arguments, as the task takes them.
Call = tuple[tuple[Any, ...], dict[str, Any]]
Seconds = Annotated[float, Meta(ge=0)] | Annotated[str, Meta(max_length=40)]
Name = Annotated[str, Meta(max_length=128)]
_encode = msgspec.json.encode


class Arguments(Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of one call."""

    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}


class NewJob(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call of a task, and when and how it runs; `jobs` instead of `args` and `kwargs`: several calls."""

    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}
    jobs: Annotated[list[Arguments], Meta(min_length=1, max_length=BATCH)] | None = None
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] | None = None
    delay: Seconds | None = None
    eta: Annotated[str, Meta(max_length=40, description="a time with its zone")] | None = None
    expires: Seconds | None = None
    tenant: Annotated[str, Meta(max_length=200)] | None = None
    name: Name | None = None
    unique: bool | Seconds | None = None


class Keyed(Struct, frozen=True):
    """A request that may be repeated."""

    key: Annotated[
        str,
        Meta(
            pattern="^[!-~]{1,128}$",
            description=f"a text of your own for this request; sent again within {KEY_KEPT}, it makes no second job",
        ),
    ] = field(name="Idempotency-Key", default="")


class Enqueued(Struct, frozen=True, omit_defaults=True):
    """A job, or several."""

    queue: str
    #: False: a job of the same name or key was there already, and it is this one.
    created: bool
    id: str = ""
    jobs: list[Enqueued] = []


@create("/tasks/{task}/jobs")
async def enqueue(desk: Desk, task: str, headers: Keyed, body: NewJob) -> Created[Enqueued]:
    """Enqueue a job of a task, or up to a hundred. The arguments must fit the task's signature.

    201: it is stored, and Location says where to look at it. 200: it was there already, by its name, its uniqueness or
    the Idempotency-Key. After 503 or no answer at all send the same again, with the same key: it makes no second job.
    """
    found = _task(desk, task)
    _check(headers.key, body)
    chosen = found.using(tags=(*found.options.tags, _tag(desk.caller)), **_options(headers.key, body))
    if body.jobs is None:
        call = _read(chosen, Arguments(body.args, body.kwargs))
        job = await _enqueue(chosen, call, headers.key, _name(desk.caller, task, headers.key, body, call))
        location = f"{desk.base}/jobs/{job.id}?queue={quote(job.queue, safe='')}"
        return Created(_shown(job), location, job.created)
    calls = [_read(chosen, one, f"jobs[{index}].") for index, one in enumerate(body.jobs)]
    if headers.key or body.unique:
        names = [_name(desk.caller, task, headers.key, body, call, index) for index, call in enumerate(calls)]
        jobs = [await _enqueue(chosen, call, headers.key, name) for call, name in zip(calls, names, strict=True)]
    else:
        jobs = await chosen.aenqueue_many(calls)
    is_new = any(job.created for job in jobs)
    return Created(Enqueued(chosen.options.queue, is_new, jobs=list(map(_shown, jobs))), is_new=is_new)


async def own_job(desk: Desk, id: str, queue: str) -> Job[Any]:
    """The job, if the caller enqueued it; another producer's job is answered like a missing one."""
    queues = {task.options.queue for task in desk.app.tasks.values()}
    for name in sorted(queues & {queue} if queue else queues):
        try:
            job = await desk.app.ajob(id, queue=name)
            info = await job.ainfo()
        except UnknownJob:
            continue
        if _tag(desk.caller) in (info.tags or ()):
            return job
    message = f"{desk.caller.name} enqueued no job {id!r:.60}, or its record has ended"
    raise Refused(404, "UnknownJob", message)


def _task(desk: Desk, name: str) -> Task[Any, Any]:
    """The task; one that the producer may not enqueue is refused whether it exists or not."""
    if not desk.caller.may_enqueue(name):
        allowed = " ".join(desk.caller.tasks)
        message = f"{desk.caller.name} may enqueue {allowed}, and not {name!r:.80}"
        raise Refused(403, "Forbidden", message, who=desk.caller.name)
    tasks = desk.app.tasks
    if not tasks:
        where = "start it with MODULE:APP instead of --name"
        raise Refused(404, "NotFound", f"no task of app {desk.app.name!r} is known to this process: {where}")
    if name not in tasks:
        raise not_there("task", name, filter(desk.caller.may_enqueue, tasks))
    return tasks[name]


def _options(key: str, body: NewJob) -> dict[str, Any]:
    """The given options, for `.using(…)`. A name is held for `unique`, or as long as an Idempotency-Key is kept."""
    found = {
        "priority": body.priority,
        "delay": body.delay,
        "eta": None if body.eta is None else time_of("eta", body.eta),
        "expires": body.expires,
        "tenant": body.tenant,
        "unique": KEY_KEPT if key else body.unique or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _check(key: str, body: NewJob) -> None:
    """Refuse contradictory options."""
    if body.jobs is not None:
        if body.args or body.kwargs:
            raise invalid("jobs: each has its own args and kwargs; leave out those beside it", argument="jobs")
        if body.name is not None:
            raise invalid("name: a name is that of one job; for several use an Idempotency-Key", argument="name")
    if key and (body.name is not None or body.unique):
        at_fault = "unique" if body.name is None else "name"
        raise invalid(f"{at_fault}: an Idempotency-Key is the job's name; leave out one of them", argument=at_fault)


def _name(caller: Caller, task: str, key: str, body: NewJob, call: Call, index: int = 0) -> str:
    """The unique name of the job; '': none, or as its task defines.

    It begins with the producer's name, so that producers cannot block each other.
    """
    if key:
        return f"{_tag(caller)}:key:{key}:{index}"
    if body.name is not None:
        return f"{_tag(caller)}:name:{body.name}"
    return f"{_tag(caller)}:call:{task}:{hashlib.sha256(_encode(call)).hexdigest()[:24]}" if body.unique else ""


def _read(task: Task[Any, Any], given: Arguments, place: str = "") -> Call:
    """The arguments, checked against the task; `place`: their position in the request."""
    try:
        return task.signature.decode_given(_encode(given.args), _encode(given.kwargs))
    except PayloadError as error:
        refused = refusal_of(error)
        message = f"{place.removesuffix('.')}: {error}" if place else str(error)
        raise Refused(refused.status, refused.error, message, argument=f"{place}{error.argument}") from None


async def _enqueue(task: Task[Any, Any], call: Call, key: str, name: str) -> Job[Any]:
    """Enqueue one call, or return the job that holds its name."""
    args, kwargs = call
    job = await (task.using(name=name) if name else task).aenqueue(*args, **kwargs)
    if key and not job.created and not await _is_same(job, task, call):
        raise Refused(422, "Invalid", f"the Idempotency-Key was used for another request: it made the job {job.id}")
    return job


async def _is_same(job: Job[Any], task: Task[Any, Any], call: Call) -> bool:
    """Whether a job belongs to this call, as far as known: a done job keeps no large arguments."""
    try:
        info = await job.ainfo()
    except UnknownJob:  # its record has ended, and its name is still held
        return True
    args, kwargs = msgspec.json.decode(_encode(call))
    return info.task == task.target and info.args in (None, args) and info.kwargs in (None, kwargs)


def _tag(caller: Caller) -> str:
    """The tag of jobs that this producer enqueued, also the prefix of their names."""
    return f"http:{caller.name}"


def _shown(job: Job[Any]) -> Enqueued:
    return Enqueued(job.queue, job.created, job.id)


ROUTES = (enqueue,)
