"""A queue manager for jobs that are bare ids, with a loop of your own instead of relevo's worker.

Run it to see it work: python examples/scheduler/queue_manager.py
"""

from __future__ import annotations

import os
import socket
import time
from datetime import UTC, datetime, timedelta

from relevo import Lease, Priority, Relevo

#: Seconds that a taken job stays ours without a sign of life (`mark_processing` is one).
LEASE = 60.0


class QueueManager:
    """Hands out job ids, the most urgent first. What a job is to do is kept elsewhere, under its id.

    A job that was dequeued belongs to this manager until it is completed, requeued or moved to the dead letters, or
    until the lease ends because the manager fell silent: then another manager gets it.
    """

    def __init__(self, app: Relevo, *, queue: str = "jobs", worker: str | None = None, lease: float = LEASE) -> None:
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}"
        self._app = app
        self._queue = app.queue(queue)
        self._task = app.task(name="scheduler.job", queue=queue)(_nobody_calls_this)
        self._lease = lease
        self._held: dict[str, Lease] = {}

    def enqueue(self, job_id: str, priority: str = "NORMAL") -> None:
        """Put a job in the queue. An id that is in it already, waiting or being processed, is not added twice."""
        self._task.using(name=job_id, priority=Priority[priority]).enqueue()

    def enqueue_delayed(self, job_id: str, scheduled_at: datetime, priority: str = "NORMAL") -> None:
        """Put a job in the queue that is due at a time, with a time zone."""
        self._task.using(name=job_id, priority=Priority[priority], eta=scheduled_at).enqueue()

    def dequeue(self) -> str | None:
        """Take the most urgent job that is due; None if there is none. No two managers get the same one."""
        for lease in self._queue.take(1, worker=self.worker, lease=self._lease):
            self._held[lease.name] = lease
            return lease.name
        return None

    def promote_delayed_jobs(self) -> int:
        """Move the jobs that are due to those that wait: how many. Not needed, since `dequeue` does so itself."""
        now_ms = time.time() * 1000
        due = sum((row.due_ms or 0) <= now_ms for row in self._queue.jobs("scheduled", limit=1000))
        if due:  # taking moves what is due; what was taken goes back to its place
            for lease in self._queue.take(1, worker=self.worker, lease=self._lease):
                lease.give_back()
        return due

    def mark_processing(self, job_id: str, worker_id: str | None = None) -> None:
        """Say that the job is still being worked on: its lease begins anew. `dequeue` has noted worker and time."""
        if worker_id not in (None, self.worker):
            raise ValueError(f"this manager works as {self.worker!r}, not as {worker_id!r}: say so when you make it")
        if not self._mine(job_id).renew():
            del self._held[job_id]
            raise LookupError(f"the lease of {job_id} ended; another manager may have it now")

    def mark_completed(self, job_id: str) -> bool:
        """It went well. False if the lease had ended, in which case somebody else does it again."""
        return self._release(job_id).done()

    def move_to_dlq(self, job_id: str, reason: str) -> bool:
        """Give it up: a dead letter, with the reason and the time."""
        return self._release(job_id).bury(reason)

    def requeue(self, job_id: str, priority: str = "NORMAL", delay_ms: int = 0) -> bool:
        """Do it again later."""
        lease = self._release(job_id)
        if lease.priority == Priority[priority]:
            return lease.retry(delay=delay_ms / 1000)
        # Another priority is another job. First the new one, then the end of the old one: a crash between the two
        # makes two of it, the other order would make none. The name is only a label while the old one has it.
        using = self._task.using(name=job_id, priority=Priority[priority], delay=delay_ms / 1000, unique=False)
        again = using.enqueue()
        if lease.done():
            return True
        again.cancel()  # the lease had ended, so the old one is somebody else's and goes on
        return False

    def get_stats(self) -> dict[str, int]:
        """How many jobs are where, all counted in the same moment."""
        stats = self._queue.stats()
        return {
            "priority": stats.ready,
            "delayed": stats.scheduled,
            "processing": stats.running,
            "dlq": stats.dead,
        }

    def processing(self) -> dict[str, str]:
        """Which job is with which worker."""
        return {row.name: row.worker for row in self._queue.jobs("running", limit=1000)}

    def dlq(self) -> dict[str, str]:
        """The jobs that were given up, and why."""
        return {row.name: row.reason for row in self._app.dead.list(queue=self._queue.name, limit=1000)}

    def _mine(self, job_id: str) -> Lease:
        try:
            return self._held[job_id]
        except KeyError:
            raise LookupError(f"{job_id} was not dequeued by this manager, or is finished") from None

    def _release(self, job_id: str) -> Lease:
        lease = self._mine(job_id)
        del self._held[job_id]
        return lease

    # the names of the original
    enqueueDelayed = enqueue_delayed
    promoteDelayedJobs = promote_delayed_jobs
    markProcessing = mark_processing
    markCompleted = mark_completed
    moveToDLQ = move_to_dlq
    getStats = get_stats


def _nobody_calls_this() -> None:
    """The jobs of a manager are taken by managers; a relevo worker of this app would find this function."""
    raise NotImplementedError("jobs of the scheduler are dequeued, not run by a worker")


def demonstrate(app: Relevo) -> None:
    """Each method once."""
    manager = QueueManager(app, worker="worker-1")
    for job_id, priority in (("report", "LOW"), ("mail", "NORMAL"), ("refund", "HIGH"), ("alarm", "CRITICAL")):
        manager.enqueue(job_id, priority)
    manager.enqueue_delayed("reminder", datetime.now(UTC) + timedelta(milliseconds=300), "HIGH")
    print("queued      ", manager.get_stats())

    alarm = manager.dequeue()
    print("first       ", alarm)
    assert alarm is not None
    manager.mark_processing(alarm)
    print("processing  ", manager.processing())
    manager.mark_completed(alarm)

    refund = manager.dequeue()
    assert refund is not None
    manager.move_to_dlq(refund, "card was closed")
    print("dead letters", manager.dlq())

    mail = manager.dequeue()
    assert mail is not None
    manager.requeue(mail, "NORMAL", delay_ms=200)
    print("requeued    ", mail, manager.get_stats())

    promoted = 0
    while promoted < 2:
        time.sleep(0.02)
        promoted += manager.promote_delayed_jobs()
    rest = []
    while (next_id := manager.dequeue()) is not None:
        rest.append(next_id)
        manager.mark_completed(next_id)
    print("the rest    ", ", ".join(rest))
    print("at the end  ", manager.get_stats())


if __name__ == "__main__":
    from relevo.testing import server

    with server() as url:  # an embedded one, for as long as this takes
        demonstrate(Relevo("scheduler", prefix="scheduler", url=url))
