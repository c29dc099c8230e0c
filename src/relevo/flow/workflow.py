"""A workflow in the hands of whoever enqueued it: how it stands, what it gave, and what can be done with it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from relevo.errors import (
    JobCancelled,
    JobExpired,
    JobFailed,
    ResultNotKept,
    UnknownJob,
)
from relevo.flow.joining import join
from relevo.flow.steps import Step
from relevo.handle import Job
from relevo.model.durations import Duration, seconds
from relevo.model.job import Record, State
from relevo.store import flows, jobs
from relevo.store.carried import results
from relevo.store.edges import LACKING, Report
from relevo.store.plan import Call
from relevo.store.relay import REPORTS, hear

if TYPE_CHECKING:
    from relevo.app import Relevo

R = TypeVar("R")

#: Living members whose states are looked up for `info()`: one call each.
LOOKED_AT = 200


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


class Member(Struct, frozen=True):
    """One job of a workflow."""

    id: str
    queue: str
    task: str
    #: unknown: it lives, and nobody looked closer
    state: State
    #: it joined while the workflow ran
    joined: bool = False
    started_ms: int | None = None
    ended_ms: int | None = None
    reason: str = ""


class WorkflowInfo(Struct, frozen=True):
    """Everything known about a workflow, for people."""

    id: str
    queue: str
    state: State
    progress: WorkflowProgress
    began_ms: int
    ended_ms: int | None
    #: How its members stand to each other: a member's number, "3-9" side by side, {"chain": […]} or {"group": […]}.
    shape: Any
    members: tuple[Member, ...]
    #: kind ("on_success", …) and the job that is called
    callbacks: tuple[tuple[str, Member], ...] = ()


class Workflow(Generic[R]):
    """Jobs that belong together. Cheap to make, keeps nothing but its id.

    >>> flow = group(parse.s(page) for page in pages).then(total.s()).enqueue()   # doctest: +SKIP
    >>> flow.result(timeout=60)                                                   # doctest: +SKIP
    """

    __slots__ = ("_app", "id", "queue")

    def __init__(self, app: Relevo, id: str, queue: str) -> None:
        self._app = app
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
        """What it gave: the result of its last step, or the list of results of its last group.

        Waits until all its jobs have ended, at most `timeout`. Raises JobFailed, JobCancelled or JobExpired if it did
        not go well.
        """
        limit = None if timeout is None else seconds(timeout, what="timeout")
        record = self._app.client.wait(self._app.keys_of(self.queue), self.id, limit)
        return self._app.run(self._result(record))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` for async code."""
        limit = None if timeout is None else seconds(timeout, what="timeout")
        record = await self._app.client.await_end(self._app.keys_of(self.queue), self.id, limit)
        return await self._app.arun(self._result(record))

    def _result(self, record: Record) -> Generator[Call[Any], Any, R]:
        if record.state is not State.DONE:
            raise (yield from self._why(record.state))
        keys = self._app.keys_of(self.queue)
        plan: flows.Plan | None = yield flows.plan_of(keys, self.id)
        if plan is None:
            raise ResultNotKept(f"workflow {self.id} is done, but what it gave is not kept any more")
        raws = yield from results(keys, self.id)
        found = []
        for place, raw in enumerate(raws):
            if raw.startswith(LACKING):
                why = raw.removeprefix(LACKING).decode(errors="replace")
                raise ResultNotKept(f"workflow {self.id} is done, but not all of its result was kept: {why}")
            # those that joined later are of a task that only they know
            target = plan.target(plan.outputs[place]) if place < len(plan.outputs) else ""
            task = self._app.tasks.get(target)
            found.append(task.signature.decode_result(raw) if task else msgspec.json.decode(raw))
        return cast("R", found if plan.is_list else found[0])

    def _why(self, state: State) -> Generator[Call[Any], Any, Exception]:
        """The error that says which member is to blame."""
        flow: flows.Flow | None = yield flows.look_closely(self._app.keys_of(self.queue), self.id)
        blamed = self._blamed(flow, state)
        where = ""
        record: Record | None = None
        if blamed is not None:
            where = f": job {blamed.id} ({blamed.task}) is {blamed.state}"
            seen: jobs.Seen = yield jobs.look(self._app.keys_of(blamed.queue), blamed.id)
            record = seen.record
        text = f"workflow {self.id} is {state}{where}"
        if state is State.CANCELLED:
            return JobCancelled(text)
        if state is State.EXPIRED:
            return JobExpired(text)
        last = record.story.attempts[-1] if record and record.story.attempts else None
        if last is not None and last.error:
            text += f": {last.error}: {last.message}"
        reason = record.reason if record else ""
        error, trace = (last.error, last.traceback) if last else ("", "")
        return JobFailed(text, reason=reason, error=error, traceback=trace)

    def _blamed(self, flow: flows.Flow | None, state: State) -> Member | None:
        """The member that failed first in the way that the workflow did."""
        ended = [one for one in _members(flow) if one.state is state]
        return min(ended, key=lambda one: one.ended_ms or 0, default=None)

    # looking
    def status(self) -> State:
        """Where it is: `running` until its last job has ended, then done, dead, cancelled or expired."""
        return _state(self._app.run(self._look()))

    async def astatus(self) -> State:
        """`status` for async code."""
        return _state(await self._app.arun(self._look()))

    def progress(self) -> WorkflowProgress:
        """How many of its jobs have ended."""
        return _progress(self._known(self._app.run(self._look())))

    async def aprogress(self) -> WorkflowProgress:
        """`progress` for async code."""
        return _progress(self._known(await self._app.arun(self._look())))

    def info(self) -> WorkflowInfo:
        """Everything known about it and its jobs; UnknownJob if there is none."""
        return self._app.run(self._info())

    async def ainfo(self) -> WorkflowInfo:
        """`info` for async code."""
        return await self._app.arun(self._info())

    def _look(self) -> Call[flows.Flow | None]:
        return flows.look(self._app.keys_of(self.queue), self.id)

    def _known(self, flow: flows.Flow | None) -> flows.Flow:
        if flow is None:
            raise UnknownJob(f"no workflow {self.id} on {self.queue}: it never was, or its record has ended")
        return flow

    def _closely(self) -> Generator[Call[Any], Any, flows.Flow]:
        return self._known((yield flows.look_closely(self._app.keys_of(self.queue), self.id)))

    def _info(self) -> Generator[Call[Any], Any, WorkflowInfo]:
        flow = yield from self._closely()
        assert flow.plan is not None
        budget = LOOKED_AT
        members: list[Member] = []
        for one in _members(flow):
            # failed ones say why, living ones where they are; of those that are done there is no more to say
            if budget and one.state is not State.DONE:
                budget -= 1
                one = yield from self._seen(one)
            members.append(one)
        callbacks = []
        for kind, id, queue, task in flow.plan.callbacks:
            callbacks.append((kind, (yield from self._seen(Member(id, queue, task, State.UNKNOWN)))))
        return WorkflowInfo(
            self.id,
            self.queue,
            _state(flow),
            _progress(flow),
            flow.began_ms,
            flow.ended_ms,
            flow.plan.shape,
            tuple(members),
            tuple(callbacks),
        )

    def _seen(self, member: Member) -> Generator[Call[Any], Any, Member]:
        seen: jobs.Seen = yield jobs.look(self._app.keys_of(member.queue), member.id)
        record, claim = seen.record, seen.claim
        if seen.state is State.UNKNOWN:
            return member
        started = record.started_ms or None if record else claim.since_ms or None if claim else None
        return msgspec.structs.replace(
            member,
            state=seen.state,
            started_ms=started,
            ended_ms=record.ended_ms if record else None,
            reason=record.reason if record else "",
        )

    # acting
    def cancel(self) -> int:
        """Cancel all its jobs that have not ended; those that run are told to stop. How many there were."""
        return self._app.run(self._cancel())

    async def acancel(self) -> int:
        """`cancel` for async code."""
        return await self._app.arun(self._cancel())

    def _cancel(self) -> Generator[Call[Any], Any, int]:
        app = self._app
        flow = yield from self._closely()
        living = [one for one in _members(flow) if not one.state.has_ended]
        by_queue: dict[str, list[Member]] = {}
        for one in reversed(living):  # what comes last first: it must not start because what is before it ended
            by_queue.setdefault(one.queue, []).append(one)
        cancelled, gone = 0, list[Report]()
        for queue, members in by_queue.items():
            keys = app.keys_of(queue)
            for start in range(0, len(members), REPORTS):
                part = members[start : start + REPORTS]
                rows = [(one.id, app.failure_ms(None), "") for one in part]
                said, _ = yield jobs.cancel(keys, rows, app.settings.dead_max)
                cancelled += sum(word != "unknown" for word in said)
                for one, word in zip(part, said, strict=True):
                    if word == "unknown":
                        gone.append(Report(one.id, "", 0, ""))
        yield from app.relay(*by_queue)
        yield from self._lapse([report.child for report in gone])
        return cancelled

    def _lapse(self, ids: list[str]) -> Generator[Call[Any], Any, None]:
        """Members that are nowhere any more, after a loss of data say, are waited for no longer."""
        if not ids:
            return
        flow = yield from self._closely()
        where = {one.id: one for one in _members(flow)}
        lost = []
        for id in ids:
            if not where[id].state.has_ended:
                seen: jobs.Seen = yield jobs.look(self._app.keys_of(where[id].queue), id)
                if seen.state is State.UNKNOWN:
                    lost.append(Report(id, "", 0, ""))
        keys = self._app.keys_of(self.queue)
        for start in range(0, len(lost), REPORTS):
            part = [Report(self.id, one.child, 1, "lapsed", "n") for one in lost[start : start + REPORTS]]
            if (yield hear(keys, part, self._app.settings.dead_max)):
                yield from self._app.relay(self.queue)

    def add(self, *steps: Step[Any, Any]) -> list[Job[Any]]:
        """Let more jobs join, from inside a job of this workflow: `app.workflow().add(fetch.s(url), …)`.

        The workflow ends, and whatever waits for the job that calls this starts, only when they have ended, too.
        """
        return self._app.run(join(self._app, self.id, steps))

    async def aadd(self, *steps: Step[Any, Any]) -> list[Job[Any]]:
        """`add` for async code."""
        return await self._app.arun(join(self._app, self.id, steps))

    def retry(self) -> int:
        """Run the failed part again: jobs that died, expired or were cancelled; what waits for them waits again.

        What is done stays done. How many jobs run again.
        """
        return self._app.run(self._retry())

    async def aretry(self) -> int:
        """`retry` for async code."""
        return await self._app.arun(self._retry())

    def _retry(self) -> Generator[Call[Any], Any, int]:
        flow = yield from self._closely()
        revived = 0
        for one in _members(flow):
            if one.state in (State.DEAD, State.EXPIRED, State.CANCELLED):
                seen: jobs.Seen = yield jobs.look(self._app.keys_of(one.queue), one.id)
                # what was cancelled because of another one comes back with that one
                if seen.record is not None and seen.record.reason != "dependency_failed":
                    revived += yield from Job(self._app, one.id, one.queue)._retry()
        return revived


def _state(flow: flows.Flow | None) -> State:
    if flow is None:
        return State.UNKNOWN
    return State(flow.state) if flow.life == "closed" else State.RUNNING


def _progress(flow: flows.Flow) -> WorkflowProgress:
    done = flow.ends.get("done", 0)
    failed = sum(flow.ends.get(state, 0) for state in ("dead", "cancelled", "expired"))
    return WorkflowProgress(flow.open + done + failed, done, failed, flow.open)


def _members(flow: flows.Flow | None) -> Generator[Member, None, None]:
    if flow is None or flow.plan is None:
        return
    plan = flow.plan
    known = [(plan.id(i), plan.queue(i), plan.target(i), False) for i in range(len(plan))]
    known += [(id, queue, target, True) for id, (queue, target) in flow.joined.items()]
    for id, queue, target, joined in known:
        heard = flow.heard.get(id)
        if heard is None:
            yield Member(id, queue, target, State.UNKNOWN, joined)
        elif heard.state != "lapsed":
            yield Member(id, queue, target, State(heard.state), joined, ended_ms=heard.when_ms)
