"""Jobs over HTTP: look at one, read its logs, cancel it, run it again."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from msgspec import Meta, Struct

from relevo.engine.handle import Job, JobInfo
from relevo.engine.job import State
from relevo.errors import ResultTimeout, UnknownJob
from relevo.web.access import Role
from relevo.web.asked import OfQueue, QueueName, if_named
from relevo.web.enqueueing import own_job
from relevo.web.problems import Refused, conflict
from relevo.web.route import Desk, Did, get, post
from relevo.web.shown import shown_job, shown_text

#: Seconds that one request may wait for a job: proxies give up after a minute.
LONGEST_WAIT = 30


class OfJob(OfQueue, frozen=True, forbid_unknown_fields=True):
    """Which job is meant, and whether to wait."""

    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT, description="seconds to wait for its end")] = 0.0


class OfAttempt(Struct, frozen=True, forbid_unknown_fields=True):
    """Which attempt's logs are meant."""

    queue: QueueName = ""
    attempt: Annotated[int, Meta(ge=1, le=10**9, description="1 for the first run; without it, of all")] | None = None


class Logs(Struct, frozen=True):
    """What a job wrote."""

    id: str
    logs: str


class JobState(Struct, frozen=True):
    """Where a job is now."""

    id: str
    queue: str
    state: State
    #: Its worker was asked to stop it.
    cancel_asked: bool


async def find(desk: Desk, id: str, named: str) -> Job[Any]:
    """The job; the id of a workflow is refused with a hint."""
    queue = await if_named(desk, named)
    try:  # asked first: a workflow that has ended has a record as a job has
        await desk.app.aworkflow(id, queue=queue)
    except UnknownJob:
        return await desk.app.ajob(id, queue=queue)
    raise Refused(404, "UnknownJob", f"{id} is a workflow, not a job: see /workflows/{id}")


async def _state(job: Job[Any]) -> JobState:
    try:
        info = await job.ainfo()
    except UnknownJob:  # it has ended by now, and left no record
        return JobState(job.id, job.queue, State.UNKNOWN, False)
    return JobState(job.id, job.queue, info.state, info.cancel_asked)


@get("/jobs/{id}", producers=True)
async def show(desk: Desk, id: str, query: OfJob) -> JobInfo:
    """Everything known about a job. Without `queue`, all queues are asked for it. With `wait`, it is answered when the
    job has ended, or after that time as it is then. Producers see the jobs they enqueued.
    """
    is_producer = desk.caller.role is Role.PRODUCER
    job = await (own_job if is_producer else find)(desk, id, query.queue)
    if query.wait:
        with desk.waits.one_more(), suppress(ResultTimeout):
            await desk.app.engine.client.await_end(desk.app.engine.keys_of(job.queue), job.id, query.wait)
    return shown_job(desk.app, await job.ainfo(), all=desk.sees_all)


@get("/jobs/{id}/logs", Role.OPERATOR)
async def logs(desk: Desk, id: str, query: OfAttempt) -> Logs:
    """What a job wrote: stdout, stderr, logging, tracebacks. Credentials are hidden as far as their form shows them."""
    job = await find(desk, id, query.queue)
    return Logs(id, shown_text(desk.app, await job.alogs(query.attempt)))


@post("/jobs/{id}/cancel", "job.cancel")
async def cancel(desk: Desk, id: str, query: OfQueue) -> Did[JobState]:
    """Cancel a job: at once if it has not started, else its worker stops it."""
    job = await find(desk, id, query.queue)
    if not await job.acancel():
        raise conflict(f"job {id} has ended: there is nothing to cancel")
    return Did(answer=await _state(job), count=1, about={"id": id, "queue": job.queue})


@post("/jobs/{id}/retry", "job.retry")
async def retry(desk: Desk, id: str, query: OfQueue) -> Did[JobState]:
    """Run a dead, cancelled or expired job again, from the start or from its checkpoints."""
    job = await find(desk, id, query.queue)
    if not await job.aretry():
        raise conflict(f"job {id} cannot run again: only a dead, cancelled or expired one can")
    return Did(answer=await _state(job), count=1, about={"id": id, "queue": job.queue})


ROUTES = (show, logs, cancel, retry)
