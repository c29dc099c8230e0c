"""Health of an app and its queues, as values: statuses and reasons, and what is remembered of them.

A number at its limit is on the worse side. A status gets worse at once, and better only when the number is below 80 %
of the limit it crossed, so a queue that hovers around its limit does not alert repeatedly.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from msgspec import Struct

from relevo.health.vitals import PoolVitals, Vitals
from relevo.text.durations import spoken

#: A status improves below this part of the limit it crossed.
CALM = 0.8
#: A snapshot older than this many intervals is stale.
STALE = 2


class Status(StrEnum):
    """Health of an app, a queue or a pool."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    #: There is no recent snapshot.
    UNKNOWN = "unknown"

    @property
    def number(self) -> int:
        """0, 1, 2, and 3 for unknown: the larger, the worse."""
        return _ORDER.index(self)


_ORDER = [Status.HEALTHY, Status.DEGRADED, Status.UNHEALTHY, Status.UNKNOWN]


class Reason(Struct, frozen=True):
    """Why something is not healthy."""

    #: '': the app as a whole.
    queue: str
    #: ready, waiting, dead, dropped, stuck, slo, slo TASK, clear, slots, unserved, silent, paused, keys, breaker TASK,
    #: unknown TASK; of the app: workers, tasks, memory, evicted, or snapshot
    measure: str
    status: Status
    #: A sentence for display.
    text: str


class QueueHealth(Struct, frozen=True, kw_only=True):
    """The health of a queue."""

    name: str
    status: Status
    reasons: tuple[Reason, ...]
    #: Live workers that serve it.
    workers: int
    #: Target for the time from due to start, in seconds; 0: none.
    slo: float
    vitals: Vitals


class PoolHealth(Struct, frozen=True):
    """The health of a pool."""

    name: str
    status: Status
    reasons: tuple[Reason, ...]
    vitals: PoolVitals


class Health(Struct, frozen=True, kw_only=True):
    """The health of an app."""

    app: str
    env: str
    status: Status
    #: Time of the snapshot, by the server's clock; 0: there is none.
    checked_at_ms: int
    reasons: tuple[Reason, ...] = ()
    queues: tuple[QueueHealth, ...] = ()
    #: Live workers.
    workers: int = 0
    #: Ids of workers lost in the last 15 minutes: they stopped reporting without a shutdown.
    lost_workers: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    #: Entries without a job found so far, and entities that are in no state of their pool now.
    orphans: int = 0
    pools: tuple[PoolHealth, ...] = ()
    #: Seconds between two stored snapshots; 0: this one was taken on request.
    every_s: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether the snapshot is recent and has no reasons."""
        return self.status is Status.HEALTHY

    @property
    def summary(self) -> str:
        """One line for logs."""
        sizes = {name: sum(one.vitals.size(name) for one in self.queues) for name in ("ready", "running", "dead")}
        counts = ", ".join(f"{count:,} {name}" for name, count in sizes.items())
        lost = f", {len(self.lost_workers)} lost" if self.lost_workers else ""
        return f"{self.status}: {many(len(self.queues), 'queue')} with {counts}; {many(self.workers, 'worker')}{lost}"


def worst(statuses: Iterable[Status]) -> Status:
    """The worst of them; healthy, if there is none."""
    return max(statuses, key=lambda status: status.number, default=Status.HEALTHY)


def graded(value: float, warning: float, critical: float, before: Status = Status.HEALTHY) -> Status:
    """The status of a number by its limits (0: no limit); `before`: its status in the last snapshot."""
    for status, border in ((Status.UNHEALTHY, critical), (Status.DEGRADED, warning)):
        held = before is not Status.UNKNOWN and before.number >= status.number
        if border and value >= border * (CALM if held else 1):
            return status
    return Status.HEALTHY


def stale(health: Health, now_ms: int) -> Health:
    """The stored snapshot, as `unknown` if it is older than two of its intervals.

    The snapshot holds its own interval, since a monitor does not know the workers' settings.
    """
    age = (now_ms - health.checked_at_ms) / 1000
    if abs(age) <= STALE * health.every_s:
        return health
    when = f"{spoken(round(age))} ago" if age >= 0 else f"{spoken(round(-age))} from now, by a clock that was set back"
    text = f"the last look was {when}, one every {spoken(health.every_s)} is expected: is no worker alive?"
    reason = Reason("", "snapshot", Status.UNKNOWN, text)
    return msgspec.structs.replace(health, status=Status.UNKNOWN, reasons=(reason, *health.reasons))


def measures(health: Health) -> dict[str, dict[str, Status]]:
    """Queue -> measure -> status, for the next snapshot."""
    found: dict[str, dict[str, Status]] = {}
    for reason in health.reasons:
        found.setdefault(reason.queue, {})[reason.measure] = reason.status
    return found


def changed(before: Health | None, now: Health) -> bool:
    """Whether status or reasons differ from the last snapshot, so that hooks must be called."""
    if before is None:
        return not now.is_healthy
    return before.status is not now.status or measures(before) != measures(now)


def many(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
