"""One look at an app for `relevo top`, and the changes since the previous one."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from relevo.bus.event_store import Lag, lag
from relevo.cli.target import unheard_of
from relevo.engine import workers
from relevo.engine.lists import listed_queues
from relevo.engine.workers import WorkerInfo
from relevo.queues import store as queues
from relevo.queues.queue import JobRow, row_of
from relevo.queues.running import Longest, longest
from relevo.queues.store import Listed, QueueStats
from relevo.store.plan import Ahead, Steps
from relevo.store.server_facts import engine, info

if TYPE_CHECKING:
    from relevo.app import Relevo

#: Running jobs listed, and dead letters read of each queue: no screen shows more.
FRONT = 20


class QueueLook(Struct, frozen=True):
    """A queue and its backlog."""

    stats: QueueStats
    #: Milliseconds that the oldest job has waited; None: none waits.
    oldest_age_ms: int | None


class JobLook(JobRow, frozen=True, kw_only=True):
    """A running job, or a dead letter."""

    queue: str
    #: When it began to run.
    started_ms: int | None = None


class Look(Struct, frozen=True, kw_only=True):
    """The state of an app at one moment."""

    app: str
    env: str
    #: By the server's clock.
    now_ms: int
    server: str
    used_memory: int
    clients: int
    #: Commands of all clients that the server has run since it started.
    commands: int
    queues: list[QueueLook]
    workers: list[WorkerInfo]
    #: Ids of workers lost in the last 15 minutes: they stopped reporting without a shutdown.
    lost_workers: list[str]
    #: The longest-running first.
    running: list[JobLook]
    #: The newest first.
    failures: list[JobLook]
    #: How many jobs run.
    running_in_all: int = 0
    #: Number of them whose start was read. If that is not all, another job may have run for longer.
    running_looked_at: int = 0

    @property
    def warning(self) -> str:
        """Why the look is empty, if it is."""
        if self.queues or self.workers or self.lost_workers:
            return ""
        return unheard_of(self.app, self.env)


class Pace(Struct, frozen=True):
    """Events per second."""

    enqueued: float = 0.0
    done: float = 0.0
    #: Failed attempts, whether they are retried or the job was dead-lettered.
    failed: float = 0.0


def looking(app: Relevo) -> Steps[Look]:
    """Read everything: a fixed number of calls for each queue, however many jobs it holds."""
    about: Mapping[str, str] = yield info()
    now_ms = yield from app.engine.now_ms()
    names = yield from listed_queues(app.engine)
    stats: list[QueueStats] = yield Ahead(queues.count(app.engine.keys_of(name), name) for name in names)
    lags: list[Lag] = yield Ahead(lag(app.engine.keys_of(name)) for name in names)
    living, lost = yield from workers.roll(app.engine.keys, now_ms)
    running: Longest = yield from longest(
        {one.name: app.engine.keys_of(one.name) for one in stats if one.running}, FRONT
    )
    # A queue with fewer running jobs was read completely, whatever its count was a moment before.
    unseen = sum(max(0, one.running - running.of_each) for one in stats if one.name in running.looked_at)
    looked_at = sum(running.looked_at.values())
    failures = yield from _newest(app, [one.name for one in stats if one.dead])
    which = engine(about)
    return Look(
        app=app.name,
        env=app.settings.env,
        now_ms=now_ms,
        server=f"{which.engine} {which.version}",
        used_memory=int(about.get("used_memory", 0)),
        clients=int(about.get("connected_clients", 0)),
        commands=int(about.get("total_commands_processed", 0)),
        queues=[
            QueueLook(one, None if behind.oldest_ms is None else behind.age_ms)
            for one, behind in zip(stats, lags, strict=True)
        ],
        workers=living,
        lost_workers=lost,
        running=[_job(name, one) for name, one in running.jobs],
        failures=failures,
        running_in_all=looked_at + unseen,
        running_looked_at=looked_at,
    )


def _newest(app: Relevo, names: list[str]) -> Generator[Ahead[Any], Any, list[JobLook]]:
    pages: list[list[Listed]] = yield Ahead(queues.page(app.engine.keys_of(name), "dead", 0, FRONT) for name in names)
    found = [_job(name, one) for name, page in zip(names, pages, strict=True) for one in page]
    return sorted(found, key=lambda job: -(job.ended_ms or 0))[:FRONT]


def _job(queue: str, one: Listed) -> JobLook:
    row = row_of(one)
    known = {field: getattr(row, field) for field in row.__struct_fields__}
    return JobLook(**known, queue=queue, started_ms=one.claim.since_ms if one.claim else None)


def paces(before: Look | None, after: Look) -> dict[str, Pace] | None:
    """The rates of each queue that existed before, between two looks; None without two looks at different times."""
    if before is None or after.now_ms <= before.now_ms:
        return None
    seconds = (after.now_ms - before.now_ms) / 1000
    totals = {one.stats.name: one.stats.totals for one in before.queues}
    found = {}
    for one in after.queues:
        then, now = totals.get(one.stats.name), one.stats.totals
        if then is None:
            continue

        def more(
            *names: str, then: Mapping[str, int] = then, now: Mapping[str, int] = now
        ) -> float:  # counters that expired and restarted do not count as negative
            return max(0, sum(now.get(name, 0) - then.get(name, 0) for name in names)) / seconds

        found[one.stats.name] = Pace(more("enqueued"), more("done"), more("retry", "dead", "lost"))
    return found


def together(found: Mapping[str, Pace]) -> Pace:
    """The sum of all queues."""
    rows = found.values()
    return Pace(sum(one.enqueued for one in rows), sum(one.done for one in rows), sum(one.failed for one in rows))
