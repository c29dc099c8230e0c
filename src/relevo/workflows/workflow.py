"""The handle of a workflow: its state, its result, and how to cancel, extend or retry it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from relevo.engine import job_store as jobs
from relevo.engine.carried import InputLacking, results
from relevo.engine.edges import Report
from relevo.engine.enqueuing import athrough, through
from relevo.engine.handle import Job
from relevo.engine.job import Attempt, Record, State
from relevo.engine.lists import listed_queues
from relevo.engine.outbox import REPORTS, notify_all
from relevo.engine.waits import wait_for
from relevo.engine.whereabouts import Whereabouts, of_done, of_ended, of_living
from relevo.errors import (
    BadSignature,
    JobCancelled,
    JobExpired,
    JobFailed,
    ResultNotKept,
    UnknownJob,
)
from relevo.store.plan import Call, Steps
from relevo.telemetry import making
from relevo.text.durations import Duration, seconds
from relevo.workflows import store as flows
from relevo.workflows.enqueuing import calls_of, changed
from relevo.workflows.joining import join
from relevo.workflows.retrying import Failed, refuse_dropped, revive_members
from relevo.workflows.steps import Step

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

R = TypeVar("R")

#: Records that `info()` reads: of failed members, of those done first, of those done last. All live members are read.
RECORDS = 100


class WorkflowProgress(Struct, frozen=True):
    """How far a workflow is, in members."""

    total: int
    done: int
    #: dead, cancelled or expired
    failed: int
    #: not ended
    open: int

    @property
    def fraction(self) -> float:
        """From 0 to 1, counting every member that has ended."""
        return 1.0 if not self.total else (self.total - self.open) / self.total


class Member(Struct, frozen=True, kw_only=True):
    """One job of a workflow."""

    id: str
    queue: str
    task: str
    #: unknown: there is no trace of it
    state: State
    #: it joined while the workflow ran
    joined: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    #: Of those that failed: why, and the error of the last attempt.
    reason: str = ""
    error: str = ""


class WorkflowRow(Struct, frozen=True, kw_only=True):
    """A workflow in a listing."""

    id: str
    queue: str
    state: State
    progress: WorkflowProgress
    began_ms: int
    ended_ms: int | None


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """Everything known about a workflow, for people."""

    id: str
    queue: str
    state: State
    progress: WorkflowProgress
    began_ms: int
    ended_ms: int | None
    #: The order of its members: a member's number, "3-9" side by side, {"chain": […]} or {"group": […]}.
    shape: Any
    members: tuple[Member, ...]
    #: kind ("on_success", …) and the job that is called
    callbacks: tuple[tuple[str, Member], ...] = ()


class Workflow(Generic[R]):
    """Jobs that belong together. Cheap to make, keeps nothing but its id.

    >>> flow = group(parse.s(page) for page in pages).then(total.s()).enqueue()   # doctest: +SKIP
    >>> flow.result(timeout=60)                                                   # doctest: +SKIP
    """

    __slots__ = ("_ended", "_engine", "created", "id", "queue")

    def __init__(self, engine: Engine, id: str, queue: str, *, created: bool = True) -> None:
        self._engine = engine
        #: False if a workflow of the same name was found.
        self.created = created
        #: Its record, if `as_completed` has read it.
        self._ended: Record | None = None
        self.id = id
        #: where it is kept
        self.queue = queue

    def __repr__(self) -> str:
        return f"<Workflow {self.id} on {self.queue}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workflow) and (self.id, self.queue) == (other.id, other.queue)

    def __hash__(self) -> int:
        return hash((self.id, self.queue))

    # result
    def result(self, timeout: Duration | None = None) -> R:
        """The result of its last step, or the list of results of its last group.

        Waits until all its jobs have ended, at most `timeout`. Raises JobFailed, JobCancelled or JobExpired if it
        failed.
        """
        limit = None if timeout is None else seconds(timeout, what="timeout")
        record = self._ended or wait_for(
            self._engine, self.queue, self.id, limit, twin="await workflow.aresult()", members=self._unfinished
        )
        return self._engine.run(self._result(record))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` for async code."""
        limit = None if timeout is None else seconds(timeout, what="timeout")
        keys = self._engine.keys_of(self.queue)
        record = self._ended or await self._engine.client.await_end(keys, self.id, limit)
        return await self._engine.arun(self._result(record))

    def _unfinished(self) -> Steps[list[tuple[str, str]]]:
        """Queue and id of its members that have not ended, as far as it knows."""
        flow: flows.Flow | None = yield flows.look_closely(self._engine.keys_of(self.queue), self.id)
        return [(one.queue, one.id) for one in _members(flow) if one.state is State.UNKNOWN]

    def _result(self, record: Record) -> Generator[Call[Any], Any, R]:
        if record.state is not State.DONE:
            raise (yield from self._why(record.state))
        keys = self._engine.keys_of(self.queue)
        kept: tuple[flows.Plan, str] | None = yield flows.plan_of(keys, self.id)
        if kept is None:
            raise ResultNotKept(f"workflow {self.id} is done, but its result is no longer kept")
        plan, error = kept
        if error:
            raise BadSignature(f"workflow {self.id}: of its plan: {error}")
        outputs = [(plan.id(i), self._engine.keys_of(plan.queue(i)).place) for i in plan.outputs]
        try:
            raws = yield from results(keys, self.id, lambda parents: parents == outputs)
        except InputLacking as lacking:
            if lacking.reason == "bad_signature":
                raise BadSignature(f"workflow {self.id}: of its result: {lacking}") from None
            raise ResultNotKept(f"workflow {self.id} is done, but not all of its result was kept: {lacking}") from None
        found = []
        for place, raw in enumerate(raws):
            # members that joined later are not in the plan, so their task is unknown
            target = plan.target(plan.outputs[place]) if place < len(plan.outputs) else ""
            task = self._engine.tasks.get(target)
            found.append(task.signature.decode_result(raw) if task else msgspec.json.decode(raw))
        return cast("R", found if plan.is_list else found[0])

    def _why(self, state: State) -> Generator[Call[Any], Any, Exception]:
        """The error, which names the member that failed first."""
        flow: flows.Flow | None = yield flows.look_closely(self._engine.keys_of(self.queue), self.id)
        blamed = self._blamed(flow, state)
        where = ""
        record: Record | None = None
        if blamed is not None:
            where = f": job {blamed.id} ({blamed.task}) is {blamed.state}"
            seen: jobs.Seen = yield jobs.look(self._engine.keys_of(blamed.queue), blamed.id)
            record = seen.record
        keys = self._engine.keys_of(self.queue)
        if keys.signer is not None:
            error = yield from flows.verify_failure(self._engine.keys_of, keys, self.id, state)
            if error:
                return BadSignature(f"workflow {self.id} appears {state}{where}, without proof: {error}")
        text = f"workflow {self.id} is {state}{where}"
        if state is State.CANCELLED:
            return JobCancelled(text)
        if state is State.EXPIRED:
            return JobExpired(text)
        last = record.story.last if record else Attempt("")
        if last.error:
            text += f": {last.words}"
        return JobFailed(text, reason=record.reason if record else "", error=last.error, traceback=last.traceback)

    def _blamed(self, flow: flows.Flow | None, state: State) -> Member | None:
        """The member that failed first in the way that the workflow did."""
        ended = [one for one in _members(flow) if one.state is state]
        return min(ended, key=lambda one: one.ended_ms or 0, default=None)

    # looking
    def state(self) -> State:
        """`running` until its last job has ended, then done, dead, cancelled or expired."""
        return _state(self._engine.run(self._look()))

    async def astate(self) -> State:
        """`state` for async code."""
        return _state(await self._engine.arun(self._look()))

    def progress(self) -> WorkflowProgress:
        """How many of its jobs have ended."""
        return _progress(self._known(self._engine.run(self._look())))

    async def aprogress(self) -> WorkflowProgress:
        """`progress` for async code."""
        return _progress(self._known(await self._engine.arun(self._look())))

    def info(self) -> WorkflowInfo:
        """Everything known about it and its jobs; UnknownJob if there is none."""
        return self._engine.run(self._info())

    async def ainfo(self) -> WorkflowInfo:
        """`info` for async code."""
        return await self._engine.arun(self._info())

    def _look(self) -> Call[flows.Flow | None]:
        return flows.look(self._engine.keys_of(self.queue), self.id)

    def _known(self, flow: flows.Flow | None) -> flows.Flow:
        if flow is None:
            raise UnknownJob(f"no workflow {self.id} on {self.queue}: it never was, or its record has ended")
        return flow

    def _closely(self) -> Generator[Call[Any], Any, flows.Flow]:
        return self._known((yield flows.look_closely(self._engine.keys_of(self.queue), self.id)))

    def _info(self) -> Steps[WorkflowInfo]:
        flow = yield from self._closely()
        assert flow.plan is not None
        members = list(_members(flow, lapsed=True))  # all: the shape counts them
        kinds = [kind for kind, *_ in flow.plan.callbacks]
        called = [
            Member(id=id, queue=queue, task=task, state=State.UNKNOWN) for _, id, queue, task in flow.plan.callbacks
        ]
        seen = yield from self._seen(called + members)
        callbacks = zip(kinds, seen[: len(kinds)], strict=True)
        members = seen[len(kinds) :]
        return WorkflowInfo(
            id=self.id,
            queue=self.queue,
            state=_state(flow),
            progress=_progress(flow),
            began_ms=flow.began_ms,
            ended_ms=flow.ended_ms,
            shape=flow.plan.shape,
            members=tuple(members),
            callbacks=tuple(callbacks),
        )

    def _seen(self, members: list[Member]) -> Steps[list[Member]]:
        """The same members with what their own queues know of them."""
        found: dict[str, Whereabouts] = {}
        living = [one for one in members if not one.state.has_ended]
        for queue, ids in _by_queue(living).items():
            found |= yield from of_living(self._engine.keys_of(queue), ids)
        # records of failed members have the reason, those of done members only the times
        others = [one for one in members if one.id not in found and one.state is not State.DONE]
        for queue, ids in _by_queue(others[:RECORDS]).items():
            found |= yield from of_ended(self._engine.keys_of(queue), ids)
        done = [one for one in members if one.state is State.DONE]
        for queue, ids in _by_queue(done[:RECORDS] + done[RECORDS:][-RECORDS:]).items():
            found |= yield from of_done(self._engine.keys_of(queue), ids)
        return [
            msgspec.structs.replace(one, **msgspec.structs.asdict(found[one.id])) if one.id in found else one
            for one in members
        ]

    # acting
    def cancel(self) -> int:
        """Cancel all its jobs that have not ended; running ones are asked to stop. Returns how many there were."""
        return self._engine.run(self._cancel())

    async def acancel(self) -> int:
        """`cancel` for async code."""
        return await self._engine.arun(self._cancel())

    def _cancel(self) -> Steps[int]:
        engine = self._engine
        flow = yield from self._closely()
        cancelled, lost = 0, list[Member]()
        # The last members first, so that none starts because its parent was cancelled.
        living = [one for one in _members(flow) if not one.state.has_ended][::-1]
        for start in range(0, len(living), REPORTS):
            part = living[start : start + REPORTS]
            for queue, ids in _by_queue(part).items():
                rows = [(id, engine.failure_ms(None), "") for id in ids]
                outcomes, _ = yield jobs.cancel(engine.keys_of(queue), rows, engine.settings.dead_max)
                unknown = {id for id, word in zip(ids, outcomes, strict=True) if word == "unknown"}
                cancelled += len(ids) - len(unknown)
                lost += [one for one in part if one.id in unknown]
        yield from engine.relay(*_by_queue(living))
        if lost:
            yield from self._give_up(lost)
        return cancelled

    def _give_up(self, lost: list[Member]) -> Steps[None]:
        """Stop waiting for members of which nothing is left, such as after a loss of data."""
        heard = (yield from self._closely()).heard
        for queue, ids in _by_queue([one for one in lost if one.id not in heard]).items():
            recorded = yield from of_ended(self._engine.keys_of(queue), ids)
            gone = [Report(self.id, id, 1, "lapsed", "n") for id in ids if id not in recorded]
            yield from notify_all(self._engine.keys_of(self.queue), gone, self._engine.settings.dead_max)
        yield from self._engine.relay(self.queue)

    def add(self, *steps: Step[Any, Any]) -> list[Job[Any]]:
        """Let more jobs join, from inside a job of this workflow: `app.workflow().add(fetch.s(url), …)`.

        The workflow ends, and whatever waits for the job that calls this starts, only when they have ended, too.
        """
        if not self._engine.middleware:
            return self._add(steps)
        calls = calls_of(steps)
        return list(through(self._engine, calls, lambda: self._add(changed(steps, calls))))

    def _add(self, steps: Sequence[Step[Any, Any]]) -> list[Job[Any]]:
        with self._adding(steps):
            return self._engine.run(join(self._engine, self.id, steps))

    async def aadd(self, *steps: Step[Any, Any]) -> list[Job[Any]]:
        """`add` for async code."""
        if not self._engine.middleware:
            return await self._aadd(steps)
        calls = calls_of(steps)
        return list(await athrough(self._engine, calls, lambda: self._aadd(changed(steps, calls))))

    async def _aadd(self, steps: Sequence[Step[Any, Any]]) -> list[Job[Any]]:
        with self._adding(steps):
            return await self._engine.arun(join(self._engine, self.id, steps))

    def _adding(self, steps: Sequence[Step[Any, Any]]) -> AbstractContextManager[object]:
        about = {"messaging.batch.message_count": len(steps), "relevo.workflow": self.id}
        return making(self._engine.telemetry, "enqueue", self.queue, **about)

    def retry(self) -> int:
        """Run the failed part again: dead, expired and cancelled jobs; jobs that depend on them wait again.

        Finished jobs are not repeated. Returns how many jobs run again. Raises JobError, and runs none, if some of them
        can never run again because more have failed than are kept (`dead_max`, `failure_ttl`).
        """
        return self._engine.run(self._retry())

    async def aretry(self) -> int:
        """`retry` for async code."""
        return await self._engine.arun(self._retry())

    def _retry(self) -> Steps[int]:
        self._ended = None
        flow = yield from self._closely()
        states = (State.DEAD, State.EXPIRED, State.CANCELLED)
        failed = [Failed(one.id, one.queue) for one in _members(flow) if one.state in states]
        yield from refuse_dropped(self._engine, self.id, failed)
        numbers = yield from revive_members(self._engine, failed)
        revived = [Report(self.id, id, number, "revived", "n") for id, number in numbers]
        # An outbox message reports it, too, but the caller may wait for the result before that is delivered.
        if (yield from notify_all(self._engine.keys_of(self.queue), revived, self._engine.settings.dead_max)):
            yield from self._engine.relay(self.queue)
        return len(revived)


def _state(flow: flows.Flow | None) -> State:
    if flow is None:
        return State.UNKNOWN
    return State(flow.state) if flow.life == "closed" else State.RUNNING


def _progress(flow: flows.Flow) -> WorkflowProgress:
    done = flow.ends.get("done", 0)
    failed = sum(flow.ends.get(state, 0) for state in ("dead", "cancelled", "expired"))
    return WorkflowProgress(flow.open + done + failed, done, failed, flow.open)


def _by_queue(members: list[Member]) -> dict[str, list[str]]:
    ids: dict[str, list[str]] = {}
    for one in members:
        ids.setdefault(one.queue, []).append(one.id)
    return ids


def _members(flow: flows.Flow | None, *, lapsed: bool = False) -> Generator[Member, None, None]:
    if flow is None or flow.plan is None:
        return
    plan = flow.plan
    known = [(plan.id(i), plan.queue(i), plan.target(i), False) for i in range(len(plan))]
    known += [(id, queue, target, True) for id, (queue, target) in sorted(flow.joined.items())]  # ids grow with time
    for id, queue, target, joined in known:
        heard = flow.heard.get(id)
        if heard is None:
            yield Member(id=id, queue=queue, task=target, state=State.UNKNOWN, joined=joined)
        elif heard.state != "excused":
            yield Member(
                id=id, queue=queue, task=target, state=State(heard.state), joined=joined, ended_ms=heard.when_ms
            )
        elif lapsed and not joined:
            yield Member(id=id, queue=queue, task=target, state=State.UNKNOWN, joined=joined, reason="never came to be")


def recent(engine: Engine, limit: int, queue: str | None = None, offset: int = 0) -> Steps[list[WorkflowRow]]:
    """The newest workflows that are still there, newest first: of a queue, or of all."""
    names = yield from listed_queues(engine, queue)
    rows: list[WorkflowRow] = []
    for name in names:
        for id, flow in (yield from flows.listed(engine.keys_of(name), offset + limit)):
            rows.append(
                WorkflowRow(
                    id=id,
                    queue=name,
                    state=_state(flow),
                    progress=_progress(flow),
                    began_ms=flow.began_ms,
                    ended_ms=flow.ended_ms,
                )
            )
    rows.sort(key=lambda row: (row.began_ms, row.id), reverse=True)
    return rows[offset : offset + limit]
