"""The queue manager of a scheduler whose jobs are bare ids: `QueueManager`, as its callers know it.

    manager = QueueManager(app)
    manager.enqueue("job-17", "CRITICAL")
    while (job_id := manager.dequeue()) is not None:
        work_on(job_id)
        manager.markCompleted(job_id)

It hands out ids, the most urgent first; what a job is to do is kept elsewhere, under its id. Each method has its
camelCase name, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from relevo.app import Relevo
from relevo.compat.current import current_app
from relevo.engine.changing import TRIES, changing
from relevo.engine.handle import Job
from relevo.engine.job import State
from relevo.engine.job_store import Seen, holder, look
from relevo.engine.options import Priority
from relevo.engine.settle import Held
from relevo.errors import CannotChange, JobError, OptionError, UnknownJob
from relevo.queues.queue import Lease, Queue, is_worker_name
from relevo.queues.store import Listed, page, promote
from relevo.store.plan import Steps
from relevo.text.durations import Duration, seconds
from relevo.text.nearest import did_you_mean

__all__ = ["PRIORITY_SCORES", "QueueManager"]

T = TypeVar("T")

#: How far apart the levels are in `calculateScore`.
PRIORITY_SCORES: Mapping[str, int] = MappingProxyType(
    {"CRITICAL": 0, "HIGH": 1_000_000, "NORMAL": 2_000_000, "LOW": 3_000_000}
)
#: Milliseconds of a level: more than any time has, up to the year 2286.
_OF_LEVEL = 10_000_000
#: How long a taken job stays with its worker without a sign of life (`markProcessing` is one).
LEASE: Duration = "60s"


class QueueManager:
    """A queue of ids. A job that was dequeued belongs to its worker until it is completed, requeued or given up, or
    until its lease ends because no sign of life came: then another one gets it.

    The manager that dequeued a job settles it under its lease, so that it cannot end a job that another one has by
    then. Any other manager settles what its id stands for now.
    """

    def __init__(
        self, app: Relevo | None = None, *, queue: str = "jobs", worker: str | None = None, lease: Duration = LEASE
    ) -> None:
        self._app = app or current_app()
        self._engine = self._app.engine
        self._queue: Queue = self._app.queue(queue)
        self._task = self._app.task(name="scheduler.job", queue=queue)(_not_for_workers)
        self._lease = seconds(lease, what="lease")
        self._held: dict[str, Lease] = {}
        self.worker = _checked(worker or f"{socket.gethostname()}-{os.getpid()}")

    def calculate_score(self, priority: str | Priority, timestamp: datetime | None = None) -> int:
        """The place of a job that is enqueued then (now: by the server's clock), as a number: the smallest is first.

        Within a level the older is first; a level outweighs any age.
        """
        level = PRIORITY_SCORES[_name_of(priority)]
        ms = self._engine.run(self._engine.now_ms()) if timestamp is None else _ms(timestamp)
        return level * _OF_LEVEL + ms

    # in
    def enqueue(self, job_id: str, priority: str | Priority = "NORMAL") -> None:
        """Put a job in the queue. One that waits already, or is delayed, moves to this priority, and is due now."""
        level = _level(priority)
        self._put(job_id, level, lambda job: self._make_ready(job, level))

    def enqueue_delayed(self, job_id: str, scheduled_at: datetime, priority: str | Priority = "NORMAL") -> None:
        """Put a job in the queue that is due at a time, with a time zone. One that waits already gets this time."""
        level = _level(priority)
        due_ms = _ms(scheduled_at)

        def postpone(job: Job[Any]) -> None:
            delay_ms = due_ms - self._engine.run(self._engine.now_ms())
            job.change(priority=level, delay=max(0, delay_ms) / 1000)

        self._put(job_id, level, postpone, eta=scheduled_at)

    def _put(self, job_id: str, level: Priority, move: Callable[[Job[Any]], None], **when: Any) -> None:
        """Store the job, or move the one of this id. One that is being processed stays with its worker."""
        task = self._task.using(name=job_id, priority=level, **when)
        for _ in range(TRIES):
            job = task.enqueue()
            if job.created:
                return
            try:
                move(job)
                return
            except CannotChange as refused:
                if refused.code == "started":
                    return
            except UnknownJob:
                continue  # it has just ended
        raise CannotChange(f"{job_id} was not moved: others change it at the same time; try again", code="other")

    def _make_ready(self, job: Job[Any], level: Priority) -> None:
        if job.state() is State.SCHEDULED:
            job.change(priority=level, delay=0)
        else:
            job.change(priority=level)  # it keeps its place in a level that it has

    # out
    def dequeue(self) -> str | None:
        """Take the most urgent job that is due; None if there is none. No two managers get the same one."""
        for lease in self._queue.take(1, worker=self.worker, lease=self._lease):
            self._held[lease.name] = lease
            return lease.name
        return None

    def promote_delayed_jobs(self) -> int:
        """Move all jobs that are due, by the server's clock, to those that wait: how many. `dequeue` does so, too."""
        return self._engine.run(promote(self._queue._keys))

    # settling
    def mark_processing(self, job_id: str, worker_id: str | None = None) -> None:
        """Note which worker has the job, since now, and begin its lease anew. Any worker may take it over.

        LookupError: it is not being processed: it was not dequeued, or its lease has ended.
        """
        worker = _checked(worker_id or self.worker)
        lease = self._processed(job_id)
        if lease is not None:
            lease = self._engine.run(self._queue._claim(lease.id, worker, self._lease, token=str(lease.fence)))
        if lease is None:
            self._held.pop(job_id, None)
            raise LookupError(f"{job_id} is not being processed: it was not dequeued, or its lease has ended")
        self._held[job_id] = lease

    def mark_completed(self, job_id: str) -> bool:
        """It went well. False: it is not being processed, or its lease had ended and another worker does."""
        lease = self._processed(job_id)
        self._held.pop(job_id, None)
        return lease is not None and lease.done()

    def move_to_dlq(self, job_id: str, reason: str) -> bool:
        """Give it up, also if it still waits: a dead letter, with the reason and the time. False: as above."""
        lease = self._processed(job_id) or self._waiting(job_id)
        self._held.pop(job_id, None)
        return lease is not None and lease.bury(reason)

    def requeue(self, job_id: str, priority: str | Priority = "NORMAL", delay_ms: int = 0) -> bool:
        """Do it again after a delay, with this priority. False: its lease had ended and another worker has it.

        A job that is not being processed is put in the queue, as by `enqueueDelayed`.
        """
        level, lease = _level(priority), self._processed(job_id)
        self._held.pop(job_id, None)
        if lease is None:
            now_ms = self._engine.run(self._engine.now_ms())
            self.enqueue_delayed(job_id, _time(now_ms + delay_ms), priority)
            return True
        return self._engine.run(_retried(lease, delay_ms / 1000, level))

    def _processed(self, job_id: str) -> Lease | None:
        """The lease of a job that runs: ours, or that of the worker that has it."""
        return self._held.get(job_id) or self._find(job_id, State.RUNNING, self._lease_of)

    def _lease_of(self, seen: Seen) -> Lease | None:
        if seen.claim is None or seen.envelope is None:
            return None
        claim = seen.claim
        held = Held(
            seen.id, claim.token, seen.body, seen.envelope, seen.story, claim.worker, claim.since_ms, claim.cancel_asked
        )
        return Lease(self._queue, held, self._queue._lending(self._lease))

    def _waiting(self, job_id: str) -> Lease | None:
        """The lease of a job that waits, taken now."""

        def take(seen: Seen) -> Lease | None:
            return self._engine.run(self._queue._claim(seen.id, self.worker, self._lease))

        return self._find(job_id, State.READY, take)

    def _find(self, job_id: str, state: State, then: Callable[[Seen], T | None]) -> T | None:
        keys = self._queue._keys
        id = self._engine.run(holder(keys, job_id))
        seen: Seen | None = self._engine.run(look(keys, id)) if id else None
        return then(seen) if seen is not None and seen.state is state else None

    # looking
    def get_stats(self) -> dict[str, int]:
        """How many jobs are where, all counted in the same moment."""
        stats = self._queue.stats()
        return {
            "priority": stats.ready,
            "delayed": stats.scheduled,
            "processing": stats.running,
            "dlq": stats.dead,
        }

    def processing(self, *, offset: int = 0, limit: int = 1000) -> dict[str, dict[str, Any]]:
        """The jobs that are being processed: `{id: {"workerId": …, "startedAt": …}}`, those whose lease ends first."""
        rows: list[Listed] = self._engine.run(page(self._queue._keys, "running", offset, limit))
        return {
            row.envelope.name: {"workerId": row.claim.worker, "startedAt": row.claim.since_ms}
            for row in rows
            if row.envelope is not None and row.claim is not None
        }

    def dlq(self, *, offset: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """The jobs that were given up, the newest first: `{"jobId": …, "reason": …, "failedAt": …}`."""
        rows: list[Listed] = self._engine.run(page(self._queue._keys, "dead", offset, limit))
        return [
            {
                "jobId": row.envelope.name,
                "reason": row.record.reason,
                "failedAt": _time(row.record.ended_ms).isoformat(),
            }
            for row in rows
            if row.envelope is not None and row.record is not None
        ]

    # the names of the original
    calculateScore = calculate_score  # noqa: N815
    enqueueDelayed = enqueue_delayed  # noqa: N815
    promoteDelayedJobs = promote_delayed_jobs  # noqa: N815
    markProcessing = mark_processing  # noqa: N815
    markCompleted = mark_completed  # noqa: N815
    moveToDLQ = move_to_dlq  # noqa: N815
    getStats = get_stats  # noqa: N815


def _not_for_workers() -> None:
    """The jobs of a manager are taken by managers; a relevo worker of this app would find this function."""
    raise NotImplementedError("jobs of the scheduler are dequeued, not run by a worker")


def _retried(lease: Lease, delay: float, level: Priority) -> Steps[bool]:
    """Settle it as one to be done again: its place is that of the new priority at once."""
    envelope, queue = lease._envelope, lease._queue
    held = msgspec.structs.replace(lease._held, envelope=msgspec.structs.replace(envelope, priority=int(level)))
    is_ours: bool = yield from queue._settle(held, lease._again(delay, ""), lease._limits, b"")
    new = {"priority": int(level)} | ({} if delay else {"delay": 0})  # what is tried again is due after 1 ms at least
    if is_ours and (envelope.priority != level or not delay):
        with suppress(JobError):  # another one has taken it by now
            yield from changing(queue._engine, queue.name, lease.id, None, None, new)
    return is_ours


def _name_of(priority: str | Priority) -> str:
    name = priority.name if isinstance(priority, Priority) else priority
    if name not in PRIORITY_SCORES:
        near = did_you_mean(str(name), PRIORITY_SCORES)
        raise OptionError(f"priority: one of {', '.join(PRIORITY_SCORES)} is needed, found {priority!r:.80}{near}")
    return name


def _level(priority: str | Priority) -> Priority:
    return Priority[_name_of(priority)]


def _checked(worker: str) -> str:
    if not is_worker_name(worker):
        raise OptionError(f"worker: ASCII text without spaces, 200 characters at most, is needed, found {worker!r:.80}")
    return worker


def _ms(time: datetime) -> int:
    if time.tzinfo is None:
        raise OptionError(f"{time!r} has no time zone; use datetime.now(UTC) or add tzinfo")
    return int(time.timestamp() * 1000)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
