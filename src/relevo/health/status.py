"""Health of an app and its queues, with reasons: pure functions of numbers and limits.

A number at its limit is on the worse side. A status gets worse at once, and better only when the number is below 80 %
of the limit it crossed, so a queue that hovers around its limit does not alert repeatedly. Other reasons have no
number: no worker serves a queue, no live worker has a task, a queue is paused while jobs are due, jobs of lost workers
are not recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from relevo.health.thresholds import Limits
from relevo.health.vitals import AT_REST, PoolVitals, Vitals
from relevo.text.durations import spoken

#: A status improves below this part of the limit it crossed.
CALM = 0.8
#: The default of `slo_critical`, as a multiple of `slo`.
SLO_CRITICAL = 4
#: A snapshot older than this many intervals is stale.
STALE = 2
#: How long a foreign value in a key stays a reason, in milliseconds.
FAULT_MS = 86_400_000


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
    #: ready, waiting, dead, stuck, slo, unserved, silent, paused, keys, breaker TASK, unknown TASK; of the app:
    #: workers, tasks, memory, evicted, or snapshot
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
    #: Entries without a job found so far.
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
        return f"{self.status}: {_many(len(self.queues), 'queue')} with {counts}; {_many(self.workers, 'worker')}{lost}"


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


def judge(
    vitals: Vitals, limits: Limits, *, workers: int, before: Mapping[str, Status] | None = None
) -> tuple[Reason, ...]:
    """Why a queue is not healthy; empty if it is. `before`: the status of each measure in the last snapshot."""
    before = before or {}
    due = vitals.size("ready") + vitals.overdue
    states = [
        f"{'' if one.exact else 'about '}{one.stuck:,} {state}" for state, one in vitals.states.items() if one.stuck
    ]
    found = [
        _sized(vitals.name, "ready", vitals.size("ready"), (limits.ready_max, limits.ready_critical), before, "ready"),
        _sized(
            vitals.name,
            "waiting",
            vitals.size("waiting"),
            (limits.waiting_max, limits.waiting_critical),
            before,
            _waiting(vitals.size("waiting"), vitals.parked),
        ),
        _dead(vitals.name, vitals.size("dead"), vitals.dead_recently, limits, before),
        _stuck(vitals.name, vitals.stuck, states, limits, before),
        _slo(vitals, limits, before),
    ]
    for one in vitals.breakers:
        age = spoken(max(0, round((vitals.now_ms - one.since_ms) / 1000)))
        text = f"the breaker of task {one.name!r} has been open for {age}: {one.reason}"
        found.append(_reason(vitals.name, f"breaker {one.name}", Status.DEGRADED, text))
    for task, count in vitals.unknown_tasks.items():
        text = f"no live worker knows task {task!r}, {_many(count, 'job')} waiting{_module(vitals.name, task)}"
        found.append(_reason(vitals.name, f"unknown {task}", Status.DEGRADED, text))
    if vitals.paused:
        if due:
            found.append(_reason(vitals.name, "paused", Status.DEGRADED, f"paused, and {_many(due, 'job')} due"))
    elif due and limits.unserved_age and not _is_served(vitals, workers):
        status = Status.UNHEALTHY if _waited_ms(vitals) >= limits.unserved_age * 1000 else Status.DEGRADED
        found.append(_reason(vitals.name, "unserved", status, f"{_many(due, 'job')} due and no worker serves it"))
    if faults := _recent(vitals):
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        found.append(
            _reason(vitals.name, "keys", Status.DEGRADED, f"key {faults[0]}: {vitals.faults[faults[0]].text}{more}")
        )
    if vitals.silent:
        text = f"{_many(vitals.silent, 'job')} of lost workers, not recovered by any worker"
        found.append(_reason(vitals.name, "silent", Status.DEGRADED, text))
    return tuple(reason for reason in found if reason is not None)


def _module(queue: str, task: str) -> str:
    """Where the task of a plain queue probably is: services have actions, and plain functions are found by a path."""
    module = "" if ":" in queue or ":" in task else task.rpartition(".")[0]
    return f"; if {module} defines it, name that in the setting imports" if module else ""


def _recent(vitals: Vitals) -> list[str]:
    """Names of the faults of the last day, newest first."""
    found = [name for name, fault in vitals.faults.items() if vitals.now_ms - fault.at_ms < FAULT_MS]
    return sorted(found, key=lambda name: -vitals.faults[name].at_ms)


def judge_pool(vitals: PoolVitals, limits: Limits, *, before: Mapping[str, Status] | None = None) -> tuple[Reason, ...]:
    """Why a pool is not healthy; empty if it is. Pending entities are judged as waiting jobs, ready ones as ready."""
    before, name = before or {}, vitals.queue
    sizes = {state: vitals.size(state) for state in ("ready", "pending")}
    states = [f"{one.stuck:,} {state}" for state, one in vitals.states.items() if one.stuck and state not in AT_REST]
    found = [
        _sized(name, "ready", sizes["ready"], (limits.ready_max, limits.ready_critical), before, "ready"),
        _sized(name, "waiting", sizes["pending"], (limits.waiting_max, limits.waiting_critical), before, "pending"),
        _dead(name, vitals.dead, vitals.dead_recently, limits, before),
        _stuck(name, vitals.stuck, states, limits, before),
    ]
    return tuple(reason for reason in found if reason is not None)


def judge_workers(lost: Sequence[str], limit: int, *, before: Mapping[str, Status] | None = None) -> tuple[Reason, ...]:
    """Whether too many workers were lost."""
    status = graded(len(lost), limit, 0, (before or {}).get("workers", Status.HEALTHY))
    if status is Status.HEALTHY:
        return ()
    text = f"{_many(len(lost), 'worker')} lost in the last 15 minutes"
    return (Reason("", "workers", status, text),)


def judge_tasks(without: Sequence[str]) -> tuple[Reason, ...]:
    """Whether live workers know no task at all. `without`: where they are."""
    if not without:
        return ()
    who = f"the worker {without[0]} knows" if len(without) == 1 else f"{len(without)} workers, {without[0]} …, know"
    text = f"{who} no task: name the modules with tasks in the setting imports"
    return (Reason("", "tasks", Status.DEGRADED, text),)


def judge_memory(
    used: int, most: int, limits: Limits, *, before: Mapping[str, Status] | None = None
) -> tuple[Reason, ...]:
    """Whether the server is nearly out of memory. `most`: its limit in bytes; 0: none, so it is not judged."""
    borders = limits.memory_warning, limits.memory_critical
    part = used * 100 // most if most else 0
    found = _sized("the server", "memory", part, borders, before or {}, "% of its memory in use")
    return () if found is None else (msgspec.structs.replace(found, queue=""),)


def judge_evictions(policy: str, evicted: int) -> tuple[Reason, ...]:
    """Whether the server has evicted keys and may evict more. `noeviction` ends the reason."""
    if policy == "noeviction" or not evicted:
        return ()
    text = f"the server: {_many(evicted, 'key')} evicted (maxmemory-policy {policy}), jobs may be lost"
    return (Reason("", "evicted", Status.UNHEALTHY, text),)


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


def _reason(queue: str, measure: str, status: Status, text: str) -> Reason:
    return Reason(queue, measure, status, f"{queue}: {text}")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _sized(
    queue: str, measure: str, value: int, borders: tuple[int, int], before: Mapping[str, Status], words: str
) -> Reason | None:
    status = graded(value, *borders, before.get(measure, Status.HEALTHY))
    if status is Status.HEALTHY:
        return None
    border = borders[status.number - 1]
    calm = f"; well again below {border * CALM:,.0f}" if value < border else ""
    return _reason(queue, measure, status, f"{value:,} {words}, its limit is {border:,}{calm}")


def _waiting(size: int, parked: int) -> str:
    """Why jobs wait: for other jobs, or parked by limits, pauses and breakers."""
    if not parked:
        return "waiting for others"
    return "parked" if parked >= size else f"waiting, {parked:,} of them parked"


def _dead(name: str, count: int, recently: int, limits: Limits, before: Mapping[str, Status]) -> Reason | None:
    borders = limits.dead_warning, limits.dead_critical
    reason = _sized(name, "dead", count, borders, before, "dead letter" if count == 1 else "dead letters")
    if reason is None or not recently:
        return reason
    return msgspec.structs.replace(reason, text=f"{reason.text} (+{recently:,} in 15 minutes)")


def _stuck(name: str, count: int, states: Sequence[str], limits: Limits, before: Mapping[str, Status]) -> Reason | None:
    reason = _sized(name, "stuck", count, (limits.stuck_warning, limits.stuck_critical), before, "stuck")
    if reason is None:
        return None
    where = f"{', '.join(states)}, for {spoken(limits.stuck_age)} or longer"
    return msgspec.structs.replace(reason, text=f"{reason.text} ({where})")


def _is_served(vitals: Vitals, workers: int) -> bool:
    # A running job with a valid lease counts: a custom loop serves the queue without being a worker.
    return bool(workers or vitals.idle_workers or vitals.size("running") > vitals.silent)


def _waited_ms(vitals: Vitals) -> int:
    """How long the oldest job that has not started has been due."""
    return max(vitals.states["ready"].oldest_age_ms or 0, vitals.overdue_age_ms)


def _slo(vitals: Vitals, limits: Limits, before: Mapping[str, Status]) -> Reason | None:
    waited = _waited_ms(vitals) / 1000
    critical = limits.slo_critical or limits.slo * SLO_CRITICAL
    status = graded(waited, limits.slo, critical, before.get("slo", Status.HEALTHY))
    if status is Status.HEALTHY:
        return None
    oldest, target = spoken(round(waited) if waited >= 1 else waited), limits.slo or critical
    if waited < target:
        text = f"oldest {oldest}, its target is {spoken(target)}; well again below {spoken(target * CALM)}"
    else:
        text = f"oldest {oldest} over its {spoken(target)} target"
    return _reason(vitals.name, "slo", status, text)
