"""One look at an app for `relevo top`, and what changed since the look before."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from relevo.queue import JobRow, row_of
from relevo.store import queues, workers
from relevo.store.events import Lag, lag
from relevo.store.facts import engine, info
from relevo.store.plan import Ahead, Call
from relevo.store.queues import Listed, QueueStats
from relevo.store.workers import WorkerInfo

if TYPE_CHECKING:
    from relevo.app import Relevo

#: Running jobs and dead letters that are looked at in each queue: no screen shows more.
FRONT = 20


class QueueLook(Struct, frozen=True):
    """A queue, and how far behind it is."""

    stats: QueueStats
    #: Milliseconds that the oldest job has waited; None: none waits.
    oldest_age_ms: int | None


class JobLook(JobRow, frozen=True, kw_only=True):
    """A job that runs, or one that was given up."""

    queue: str
    #: When it began to run.
    started_ms: int | None = None


class Look(Struct, frozen=True):
    """All that is looked at, at one moment."""

    app: str
    env: str
    #: By the server's clock.
    now_ms: int
    server: str
    used_memory: int
    clients: int
    #: Commands that the server has carried out since it started, of everybody.
    commands: int
    queues: list[QueueLook]
    workers: list[WorkerInfo]
    #: The longest first.
    running: list[JobLook]
    #: The newest first.
    failures: list[JobLook]


class Pace(Struct, frozen=True):
    """How much happens in a second."""

    enqueued: float = 0.0
    done: float = 0.0
    #: Attempts that did not go well: they are tried again, or the job is a dead letter.
    failed: float = 0.0


def looking(app: Relevo) -> Generator[Call[Any] | Ahead[Any], Any, Look]:
    """Ask the server for everything: a fixed number of calls for each queue, however many jobs it holds."""
    about: Mapping[str, str] = yield info()
    now_ms = yield from app.now_ms()
    names = yield from app.listed_queues()
    stats: list[QueueStats] = yield Ahead(queues.count(app.keys_of(name), name) for name in names)
    lags: list[Lag] = yield Ahead(lag(app.keys_of(name)) for name in names)
    living, _ = yield from workers.living(app.keys)
    running = yield from _front(app, [one.name for one in stats if one.running], "running")
    failures = yield from _front(app, [one.name for one in stats if one.dead], "dead")
    which = engine(about)
    return Look(
        app.name,
        app.settings.env,
        now_ms,
        f"{which.engine} {which.version}",
        int(about.get("used_memory", 0)),
        int(about.get("connected_clients", 0)),
        int(about.get("total_commands_processed", 0)),
        [
            QueueLook(one, None if behind.oldest_ms is None else behind.age_ms)
            for one, behind in zip(stats, lags, strict=True)
        ],
        living,
        sorted(running, key=lambda job: job.started_ms or now_ms)[:FRONT],
        sorted(failures, key=lambda job: -(job.ended_ms or 0))[:FRONT],
    )


def _front(app: Relevo, names: list[str], state: str) -> Generator[Ahead[Any], Any, list[JobLook]]:
    pages: list[list[Listed]] = yield Ahead(queues.page(app.keys_of(name), state, 0, FRONT) for name in names)
    found = []
    for name, page in zip(names, pages, strict=True):
        for one in page:
            row = row_of(one)
            known = {field: getattr(row, field) for field in row.__struct_fields__}
            found.append(JobLook(**known, queue=name, started_ms=one.claim.since_ms if one.claim else None))
    return found


def paces(before: Look | None, after: Look) -> dict[str, Pace]:
    """What happened in each queue between two looks; nothing is known of a queue that was not there before."""
    if before is None or after.now_ms <= before.now_ms:
        return {}
    seconds = (after.now_ms - before.now_ms) / 1000
    totals = {one.stats.name: one.stats.totals for one in before.queues}
    found = {}
    for one in after.queues:
        then, now = totals.get(one.stats.name), one.stats.totals
        if then is None:
            continue

        def more(
            *names: str, then: Mapping[str, int] = then, now: Mapping[str, int] = now
        ) -> float:  # counters that ended and began anew are no step back
            return max(0, sum(now.get(name, 0) - then.get(name, 0) for name in names)) / seconds

        found[one.stats.name] = Pace(more("enqueued"), more("done"), more("retry", "dead", "lost"))
    return found


def together(found: Mapping[str, Pace]) -> Pace:
    """All queues."""
    rows = found.values()
    return Pace(sum(one.enqueued for one in rows), sum(one.done for one in rows), sum(one.failed for one in rows))
