"""Upkeep that sites call from scripts and commands: records of ended jobs, and another run of failed ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from relevo.django.site_app import app
from relevo.engine.job import State
from relevo.engine.job_store import discard
from relevo.errors import OptionError
from relevo.queues.queue import JobRow, Queue
from relevo.queues.store import count_ended_before, ended_before
from relevo.store.plan import Ahead, Call, Steps
from relevo.text.durations import Duration, milliseconds

#: States whose records are removed when they are old. What still waits or runs is never touched.
ENDED = (State.DONE, State.DEAD, State.CANCELLED, State.EXPIRED)
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


def clean_up(*, older_than: Duration, dry_run: bool, who: str = "", most: float = math.inf) -> int:
    """Remove records of ended jobs of all queues, at most so many: how many."""
    before_ms = _before_ms(older_than)
    queues = [app.queue(name) for name in app.queues()]
    if dry_run:
        return sum(1 for queue in queues for _ in _old(queue, before_ms))
    with app.audit.doing("queue.clean_up", who=who, via="django", before_ms=before_ms) as doing:
        count = 0
        for queue, state in product(queues, ENDED):
            keys = app.engine.keys_of(queue.name)
            while count < most and (ids := app.engine.run(ended_before(keys, state, before_ms, TOGETHER))):
                count += discard_ended(queue.name, ids)
                doing.tell(count)
        return count


def count_old(*, older_than: Duration) -> int:
    """How many there are, by the index alone: some of them may have ended by themselves."""
    before_ms = _before_ms(older_than)
    cells = product(app.queues(), ENDED)
    calls = [count_ended_before(app.engine.keys_of(queue), state, before_ms) for queue, state in cells]
    return sum(app.engine.run(_counts(calls)))


def _counts(calls: list[Call[int]]) -> Steps[list[int]]:
    found: list[int] = yield Ahead(iter(calls))
    return found


def _before_ms(older_than: Duration) -> int:
    now_ms: int = app.engine.run(app.engine.now_ms())
    return now_ms - milliseconds(older_than, what="older_than")


def _old(queue: Queue, before_ms: int) -> Iterator[JobRow]:
    for state in ENDED:
        offset = 0
        while rows := queue.jobs(state.value, offset=offset, limit=PAGE):
            yield from (row for row in rows if row.ended_ms is not None and row.ended_ms < before_ms)
            offset += len(rows)


def discard_ended(queue: str, ids: list[str]) -> int:
    """Remove the records of some jobs that have ended: how many there were."""
    gone, posted = app.engine.run(discard(app.engine.keys_of(queue), ids))
    if posted:  # what depends on a dead letter will never run now
        app.engine.run(app.engine.relay(queue))
    return gone
