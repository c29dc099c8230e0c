"""Upkeep that sites call from scripts and commands: records of ended jobs, and another run of failed ones."""

from __future__ import annotations

from collections.abc import Iterator

from relevo.django.site_app import app
from relevo.engine.job_store import discard
from relevo.errors import OptionError
from relevo.queues.queue import JobRow, Queue
from relevo.text.durations import Duration, milliseconds

#: States whose records are removed when they are old. What still waits or runs is never touched.
ENDED = ("done", "dead", "cancelled", "expired")
PAGE = 1000
#: Records removed in one call to the server.
TOGETHER = 100


def TaskQueueCleanup(days: float = 7, *, dry_run: bool = False) -> int:  # noqa: N802  # the name that sites call
    """Remove the records of jobs that ended more than `days` ago, with their results and logs: how many.

    They end by themselves, too, after `result_ttl` or `failure_ttl`.
    """
    if type(days) not in (int, float) or days < 0:
        raise OptionError(f"days: a number from 0 is needed, found {days!r:.80}")
    return clean_up(older_than=days * 86_400, dry_run=dry_run)


def RetryFailedJobs(task: str | None = None) -> int:  # noqa: N802  # as above
    """Run all dead letters again, or those of one task: how many will."""
    with app.audit.doing("dead.retry", via="django", task=task) as doing:
        if task is None:
            return app.dead.retry(all=True, watch=doing.tell)
        return app.dead.retry(task=task, watch=doing.tell)


def clean_up(*, older_than: Duration, dry_run: bool) -> int:
    """Remove records of ended jobs of all queues: how many."""
    before_ms = app.engine.run(app.engine.now_ms()) - milliseconds(older_than, what="older_than")
    queues = [app.queue(name) for name in app.queues()]
    if dry_run:
        return sum(1 for queue in queues for _ in _old(queue, before_ms))
    with app.audit.doing("queue.clean_up", via="django", before_ms=before_ms) as doing:
        count = 0
        for queue in queues:
            ids = [row.id for row in _old(queue, before_ms)]
            for start in range(0, len(ids), TOGETHER):
                count += _discard(queue, ids[start : start + TOGETHER])
                doing.tell(count)
        return count


def _old(queue: Queue, before_ms: int) -> Iterator[JobRow]:
    for state in ENDED:
        offset = 0
        while rows := queue.jobs(state, offset=offset, limit=PAGE):
            yield from (row for row in rows if row.ended_ms is not None and row.ended_ms < before_ms)
            offset += len(rows)


def _discard(queue: Queue, ids: list[str]) -> int:
    gone, posted = app.engine.run(discard(app.engine.keys_of(queue.name), ids))
    if posted:  # what depends on a dead letter will never run now
        app.engine.run(app.engine.relay(queue.name))
    return gone
