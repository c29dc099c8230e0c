"""A queue manager for jobs that are bare ids, with a loop of your own instead of relevo's worker.

Run it to see each method once: python examples/scheduler/queue_manager.py
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from relevo import Relevo
from relevo.compat import QueueManager


def demonstrate(app: Relevo) -> None:
    """Each method once."""
    manager = QueueManager(app, worker="worker-1")
    for job_id, priority in (("report", "LOW"), ("mail", "NORMAL"), ("refund", "HIGH"), ("alarm", "CRITICAL")):
        manager.enqueue(job_id, priority)
    manager.enqueue("mail", "LOW")
    manager.enqueue("mail", "NORMAL")  # in the queue already: it moves
    manager.enqueue_delayed("reminder", datetime.now(UTC) + timedelta(milliseconds=300), "HIGH")
    print("queued      ", manager.get_stats())

    alarm = manager.dequeue()
    print("first       ", alarm)
    assert alarm is not None
    manager.mark_processing(alarm)
    print("processing  ", {job_id: entry["workerId"] for job_id, entry in manager.processing().items()})
    manager.mark_completed(alarm)

    refund = manager.dequeue()
    assert refund is not None
    manager.move_to_dlq(refund, "card was closed")
    print("dead letters", {entry["jobId"]: entry["reason"] for entry in manager.dlq()})

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
