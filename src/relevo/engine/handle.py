"""A job as its producer sees it: its state, result and logs; cancel and retry."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar, Unpack, cast

import msgspec
from msgspec import Raw, Struct

from relevo.engine import carried
from relevo.engine import job_store as jobs
from relevo.engine.changing import changing
from relevo.engine.fingerprint import is_permanent
from relevo.engine.following import blocking, events_of_job
from relevo.engine.ids import LENGTH, made_ms
from relevo.engine.job import Attempt, Envelope, Record, State
from relevo.engine.job_events import JobEvent, publish
from relevo.engine.message import Message
from relevo.engine.revival import Ended, reviving
from relevo.engine.signed_ends import verify_record
from relevo.engine.waits import wait_for
from relevo.errors import (
    BadSignature,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    OptionError,
    ResultNotKept,
    UnknownJob,
)
from relevo.store.plan import Call, Steps
from relevo.text.durations import Duration, seconds
from relevo.text.names import is_pool_name

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

R = TypeVar("R")


class Progress(Struct, frozen=True):
    """How far a job says it is."""

    fraction: float
    message: str = ""


class JobInfo(Struct, frozen=True, kw_only=True):
    """Everything known about a job, for people."""

    id: str
    state: State
    task: str
    queue: str
    #: As plain JSON values; None where they are not known: a done job keeps arguments of up to 4 KiB. Of an entity of a
    #: pool that was given up: what is known of it.
    args: Any
    kwargs: Any
    #: None, here and below: not known, since the body cannot be read or was not kept.
    priority: int | None
    enqueued_ms: int
    name: str | None = None
    tenant: str | None = None
    tags: tuple[str, ...] | None = None
    #: What middleware gave it.
    headers: dict[str, str] | None = None
    due_ms: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    worker: str = ""
    reason: str = ""
    cancel_asked: bool = False
    attempts: tuple[Attempt, ...] = ()
    progress: Progress | None = None
    result: Any = None
    #: Of a waiting job: how many jobs it still waits for.
    waits_for: int = 0
    #: The workflow it belongs to, if any.
    workflow: str | None = None
    #: Of one that failed: the state it came from, which others died alike, whether it would fail again as it is, and
    #: the version of relevo that wrote it down.
    came_from: str = ""
    fingerprint: str = ""
    permanent: bool = False
    version: str = ""
    #: The dead letter whose place it took, with other arguments; and of a letter, the job that took its place.
    origin: str = ""
    replaced_by: str = ""
    #: Of a message of the bus: the operation it belongs to, the message that caused it, who sent it, and its
    #: conversation and session.
    correlation_id: str = ""
    causation_id: str = ""
    source: str = ""
    conversation_id: str = ""
    session: str = ""
    #: Why a job that workers refused does not start: "no live worker knows task 'remind'". It is given up at `due_ms`.
    held_up: str = ""


class GivenUp(Protocol):
    """An entity of a pool, as its dead letter holds it."""

    @property
    def entity(self) -> str:
        """Its id."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Its metadata."""


class Changes(TypedDict, total=False):
    """Options of `job.change`."""

    priority: int
    delay: Duration


class Job(Generic[R]):
    """One request to run a task. Cheap to make, keeps nothing but its id.

    >>> job = charge.enqueue(7, cents=990)  # doctest: +SKIP
    >>> job.result(timeout=10)              # doctest: +SKIP
    """

    __slots__ = ("_decode", "_ended", "_engine", "created", "id", "queue")

    def __init__(
        self,
        engine: Engine,
        id: str,
        queue: str,
        decode: Callable[[bytes], Any] | None = None,
        created: bool = True,
    ) -> None:
        self._engine = engine
        self._decode = decode
        #: Its record, where `as_completed` has brought it.
        self._ended: Record | None = None
        self.id = id
        self.queue = queue
        #: False when a living job of the same name was found instead.
        self.created = created

    def __repr__(self) -> str:
        return f"<Job {self.id} on {self.queue}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and (self.id, self.queue) == (other.id, other.queue)

    def __hash__(self) -> int:
        return hash((self.id, self.queue))

    # result
    def result(self, timeout: Duration | None = None) -> R:
        """What the task returned. Waits, woken by the end of the job, at most `timeout`.

        Raises JobFailed, JobCancelled or JobExpired if it ended so, ResultTimeout if it has not ended.
        """
        limit = None if timeout is None else seconds(timeout, what="timeout")
        if self._ended is not None:
            return self._outcome(self._ended)
        return self._outcome(wait_for(self._engine, self.queue, self.id, limit, twin="await job.aresult()"))

    async def aresult(self, timeout: Duration | None = None) -> R:
        """`result` for async code."""
        limit = None if timeout is None else seconds(timeout, what="timeout")
        if self._ended is not None:
            return self._outcome(self._ended)
        return self._outcome(await self._engine.client.await_end(self._engine.keys_of(self.queue), self.id, limit))

    def _outcome(self, record: Record) -> R:
        signer = self._engine.keys_of(self.queue).signer
        if signer is not None and (error := verify_record(signer, self.id, record)):
            why = f" ({record.reason})" if record.reason else ""
            raise BadSignature(
                f"job {self.id} is recorded as {record.state}{why}, but its record is not trusted: {error}"
            )
        match record.state:
            case State.DONE:
                raw = bytes(record.result)
                if not raw:
                    why = record.not_kept or "the task's result_ttl is 0"
                    raise ResultNotKept(f"job {self.id} is done, but its result was not kept: {why}")
                return cast("R", self._decode(raw) if self._decode else msgspec.json.decode(raw))
            case State.CANCELLED:
                raise JobCancelled(f"job {self.id} was cancelled: {record.reason}")
            case State.EXPIRED:
                raise JobExpired(f"job {self.id} expired before it could start")
            case _:
                last = record.story.last
                text = f"job {self.id} ({record.target}) is dead: {record.reason}"
                if last.error:
                    text += f": {last.words}"
                raise JobFailed(text, reason=record.reason, error=last.error, traceback=last.traceback)

    # looking
    def _look(self) -> Call[jobs.Seen]:
        return jobs.look(self._engine.keys_of(self.queue), self.id)

    def state(self) -> State:
        """Where the job is now; `unknown` if there is none."""
        return self._engine.run(self._look()).state

    async def astate(self) -> State:
        """`state` for async code."""
        return (await self._engine.arun(self._look())).state

    def info(self) -> JobInfo:
        """Everything known about the job; UnknownJob if there is none."""
        return self._engine.run(self._info())

    async def ainfo(self) -> JobInfo:
        """`info` for async code."""
        return await self._engine.arun(self._info())

    def logs(self, attempt: int | None = None) -> str:
        """What the job wrote (stdout, stderr, logging, traceback), of one attempt or of all."""
        return _logs(self._engine.run(self._look()), attempt)

    async def alogs(self, attempt: int | None = None) -> str:
        """`logs` for async code."""
        return _logs(await self._engine.arun(self._look()), attempt)

    def progress(self) -> Progress | None:
        """The progress that the job last reported; None if it has reported none."""
        return _progress(self._engine.run(self._look()))

    async def aprogress(self) -> Progress | None:
        """`progress` for async code."""
        return _progress(await self._engine.arun(self._look()))

    def events(self) -> AsyncGenerator[JobEvent, None]:
        """What happens to the job until it has ended: started, progress, logs, retried, ended. Nothing is polled.

        It begins with the latest progress, if there is any. The last event is that of the end.

        >>> async for event in job.events():                 # doctest: +SKIP
        ...     print(event.kind, event.fraction, event.state)
        """
        return events_of_job(self._engine, self.queue, self.id)

    def watch(self) -> Iterator[JobEvent]:
        """`events` for scripts: blocks until the next one."""
        return blocking(self._engine, self.events)

    def change(
        self, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[Changes]
    ) -> None:
        """Change the job, if it has not started, in one step: `priority=`, `delay=` (from now), `args=`, `kwargs=`.

        Raises CannotChange if it has started or ended. New arguments replace all old ones, checked like those of
        `enqueue`; a job that waits for its retry keeps those it ran with.

        >>> job.change(priority=10, delay="5m")     # doctest: +SKIP
        """
        self._engine.run(changing(self._engine, self.queue, self.id, args, kwargs, dict(options)))

    async def achange(
        self, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Unpack[Changes]
    ) -> None:
        """`change` for async code."""
        await self._engine.arun(changing(self._engine, self.queue, self.id, args, kwargs, dict(options)))

    def _info(self) -> Generator[Call[Any], Any, JobInfo]:
        seen: jobs.Seen = yield self._look()
        if seen.state is State.UNKNOWN:
            raise UnknownJob(f"no job {self.id} on {self.queue}: it never was, or its record has ended")
        known = seen.envelope or jobs.readable(seen.body)
        if known is not None and known.takes == "claim":  # a message whose data is too large to stand in its body
            data = yield carried.claimed(self._engine.keys_of(self.queue), self.id)
            known = msgspec.structs.replace(known, kwargs=Raw(data or b"null"))
        is_entity = seen.record is not None and is_pool_name(self.queue)
        given_up = self._engine.entity_of(seen.id, seen.record) if seen.record and is_entity else None
        return _info(seen, self.queue, known, given_up)

    # acting
    def cancel(self) -> bool:
        """Cancel: at once if the job has not started, else its worker stops it.

        False if the job has ended already. A request survives the death of the worker.
        """
        return self._engine.run(self._cancel())

    async def acancel(self) -> bool:
        """`cancel` for async code."""
        return await self._engine.arun(self._cancel())

    def _cancel(self) -> Generator[Call[Any], Any, bool]:
        engine = self._engine
        seen: jobs.Seen = yield self._look()
        if seen.state is State.UNKNOWN:
            raise UnknownJob(f"no job {self.id} on {self.queue}: it never was, or its record has ended")
        if seen.state.has_ended:
            return False
        row = (self.id, engine.failure_ms(seen.envelope), seen.envelope.name if seen.envelope else "")
        answers, posted = yield jobs.cancel(engine.keys_of(self.queue), [row], engine.settings.dead_max)
        if posted:
            yield from engine.relay(self.queue)
        if answers[0] == "cancelled":  # no worker has it, so none publishes its end
            yield publish(engine.keys_of(self.queue), [self._cancelled(seen)])
        return bool(answers[0] != "unknown")

    def _cancelled(self, seen: jobs.Seen) -> JobEvent:
        task = seen.envelope.target if seen.envelope else ""
        return JobEvent(kind="ended", job=self.id, queue=self.queue, task=task, state=State.CANCELLED)

    def retry(self) -> bool:
        """Run a dead, cancelled or expired job again, from the start or from its checkpoints.

        False if it was retried just now. What was cancelled because this one failed waits for it again.
        """
        return self._engine.run(self._retry()) > 0

    async def aretry(self) -> bool:
        """`retry` for async code."""
        return await self._engine.arun(self._retry()) > 0

    def _retry(self) -> Steps[int]:
        """The number under which its dependents are notified of its revival; 0: there was none."""
        self._ended = None
        seen: jobs.Seen = yield self._look()
        if seen.state is State.UNKNOWN:
            raise UnknownJob(f"no job {self.id} on {self.queue}: it never was, or its record has ended")
        if seen.record is None or seen.state is State.DONE:
            return 0
        if is_pool_name(self.queue):
            raise JobError(
                f"{self.id} is an entity of a pool, no job: app.dead.retry([id]), or `relevo dead retry {self.id}`, "
                "brings it back"
            )
        (revival,) = yield from reviving(self._engine, [Ended(self.queue, self.id, seen.body, seen.record.ended_ms)])
        if revival.refusal:
            raise JobError(revival.refusal)
        return revival.number


def _info(seen: jobs.Seen, queue: str, known: Envelope | None, given_up: GivenUp | None) -> JobInfo:
    record, claim = seen.record, seen.claim
    envelope = known or Envelope(record.target if record else "")
    is_known = known is not None
    result = msgspec.json.decode(record.result) if record and bytes(record.result) else None
    return JobInfo(
        id=seen.id,
        state=seen.state,
        task=envelope.target,
        queue=queue,
        args=msgspec.json.decode(envelope.args) if known else None,
        kwargs=msgspec.json.decode(envelope.kwargs) if known else given_up and given_up.metadata,
        priority=envelope.priority if is_known else None,
        enqueued_ms=made_ms(seen.id),
        name=given_up.entity if given_up else envelope.name if is_known else None,
        tenant=envelope.tenant if is_known else None,
        tags=envelope.tags if is_known else None,
        headers=envelope.job_headers or {} if is_known else None,
        due_ms=seen.due_ms if seen.state is State.SCHEDULED else None,
        started_ms=record.started_ms or None if record else claim.since_ms if claim else None,
        ended_ms=record.ended_ms if record else None,
        worker=record.worker if record else claim.worker if claim and seen.state is State.RUNNING else "",
        reason=record.reason if record else "",
        cancel_asked=bool(claim and claim.cancel_asked),
        attempts=seen.story.attempts,
        progress=_progress(seen),
        result=result,
        waits_for=seen.open,
        workflow=envelope.flow[:LENGTH] if is_known else None,
        came_from=record.queue_from if record else "",
        fingerprint=record.fingerprint if record else "",
        permanent=seen.state is State.DEAD and record is not None and is_permanent(record.reason),
        version=record.version if record else "",
        origin=envelope.origin,
        replaced_by=record.replaced_by if record else "",
        held_up=_held_up(seen, envelope.target),
        **_belongings(seen.id, envelope),
    )


def _held_up(seen: jobs.Seen, task: str) -> str:
    """Why it waits for a worker of another release; '': it does not."""
    if seen.takers is None:
        return ""
    return "waits for a worker that takes it" if seen.takers else f"no live worker knows task {task!r}"


def _belongings(id: str, envelope: Envelope) -> dict[str, str]:
    """To what a message belongs."""
    if envelope.headers is None:
        return {}
    message = Message(
        id=id, type=envelope.target, attempt=1, tenant=envelope.tenant, deadline_ms=None, headers=envelope.headers
    )
    return {
        "correlation_id": message.correlation_id,
        "causation_id": message.causation_id,
        "source": message.source,
        "conversation_id": message.conversation_id,
        "session": message.session,
    }


def _is_count(given: Any) -> bool:
    return isinstance(given, int) and given >= 1


def _logs(seen: jobs.Seen, attempt: int | None) -> str:
    if attempt is not None and not _is_count(attempt):
        raise OptionError(f"attempt: 1 for the first run, 2 for the second, … is needed, found {attempt!r:.80}")
    if seen.state is State.UNKNOWN and not seen.notes:
        raise UnknownJob(f"no job {seen.id}: it never was, or its record has ended")
    texts = {int(name[4:]): text for name, text in seen.notes.items() if name.startswith("log:")}
    for number, ended in enumerate(seen.story.attempts, 1):  # how it ended stands in its story, and only there
        if end := ended.traceback or (f"{ended.words}\n" if ended.error else ""):
            texts[number] = texts.get(number, "") + end
    if attempt is not None:
        return texts.get(attempt, "")
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "".join(f"--- attempt {number} ---\n{texts[number]}" for number in sorted(texts))


def _progress(seen: jobs.Seen) -> Progress | None:
    text = seen.notes.get("progress")
    return msgspec.json.decode(text, type=Progress) if text else None
