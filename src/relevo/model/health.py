"""Whether all is well, and why not: a pure function of numbers and limits.

A border belongs to the worse side. A status gets worse at once and better only when the number is below 80 % of the
border that it crossed: a queue that hovers around its limit wakes nobody twice. What else is judged has no number to
hover: nobody serves a queue, no live worker knows a task, it is paused while jobs wait, jobs of silent workers are
left lying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from relevo.model.durations import spoken
from relevo.model.health_limits import Limits
from relevo.model.vitals import AT_REST, PoolVitals, Vitals

#: A status gets better below this part of the border that it crossed.
CALM = 0.8
#: The upper border of a target, where none is given.
SLO_CRITICAL = 4
#: A snapshot says nothing any more when it is older than so many intervals.
STALE = 2
#: For so long a key that another program wrote is a reason, in milliseconds.
FAULT_MS = 86_400_000


class Status(StrEnum):
    """How something is doing."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"
    #: Nobody has looked of late.
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
    #: workers, memory, evicted, or snapshot
    measure: str
    status: Status
    #: A sentence for people.
    text: str


class QueueHealth(Struct, frozen=True):
    """A queue, and whether it is well."""

    name: str
    status: Status
    reasons: tuple[Reason, ...]
    #: Workers that live and serve it.
    workers: int
    #: How long a job may be due before it starts, in seconds; 0: nothing was promised.
    slo: float
    vitals: Vitals


class PoolHealth(Struct, frozen=True):
    """A pool, and whether it is well."""

    name: str
    status: Status
    reasons: tuple[Reason, ...]
    vitals: PoolVitals


class Health(Struct, frozen=True):
    """An app, and whether all is well."""

    app: str
    env: str
    status: Status
    #: When somebody looked, by the server's clock; 0: nobody did.
    checked_at_ms: int
    reasons: tuple[Reason, ...] = ()
    queues: tuple[QueueHealth, ...] = ()
    #: Workers that live.
    workers: int = 0
    #: Ids of those that fell silent without a goodbye in the last 15 minutes.
    lost_workers: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()
    #: Entries without a job, met so far.
    orphans: int = 0
    pools: tuple[PoolHealth, ...] = ()
    #: Seconds between two looks of those who keep them; 0: it was looked for whoever asked.
    every_s: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether somebody looked of late, and nothing was wrong."""
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
    """How a number stands between its borders, of which 0 is none; `before`: how it stood at the last look."""
    for status, border in ((Status.UNHEALTHY, critical), (Status.DEGRADED, warning)):
        held = before is not Status.UNKNOWN and before.number >= status.number
        if border and value >= border * (CALM if held else 1):
            return status
    return Status.HEALTHY


def judge(
    vitals: Vitals, limits: Limits, *, workers: int, before: Mapping[str, Status] | None = None
) -> tuple[Reason, ...]:
    """Why a queue is not healthy; nothing: it is. `before`: how each measure stood at the last look."""
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
        text = f"no live worker knows task {task!r}, {_many(count, 'job')} waiting"
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
        text = f"{_many(vitals.silent, 'job')} of workers that fell silent, and nobody takes them over"
        found.append(_reason(vitals.name, "silent", Status.DEGRADED, text))
    return tuple(reason for reason in found if reason is not None)


def _recent(vitals: Vitals) -> list[str]:
    """Names of faults of the last day, the newest first."""
    found = [name for name, fault in vitals.faults.items() if vitals.now_ms - fault.at_ms < FAULT_MS]
    return sorted(found, key=lambda name: -vitals.faults[name].at_ms)


def judge_pool(vitals: PoolVitals, limits: Limits, *, before: Mapping[str, Status] | None = None) -> tuple[Reason, ...]:
    """Why a pool is not healthy; nothing: it is. Entities are pending as jobs wait, and ready as jobs are."""
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
    text = f"{_many(len(lost), 'worker')} fell silent without a goodbye in the last 15 minutes"
    return (Reason("", "workers", status, text),)


def judge_memory(
    used: int, most: int, limits: Limits, *, before: Mapping[str, Status] | None = None
) -> tuple[Reason, ...]:
    """Whether the server is nearly full. `most`: what it may use; 0: it has no limit, and nothing to be judged by."""
    borders = limits.memory_warning, limits.memory_critical
    part = used * 100 // most if most else 0
    found = _sized("the server", "memory", part, borders, before or {}, "% of its memory in use")
    return () if found is None else (msgspec.structs.replace(found, queue=""),)


def judge_evictions(policy: str, evicted: int) -> tuple[Reason, ...]:
    """Whether the server deleted keys to make room, and goes on doing so. `noeviction` ends the reason."""
    if policy == "noeviction" or not evicted:
        return ()
    text = f"the server: {_many(evicted, 'key')} evicted (maxmemory-policy {policy}), jobs may be lost"
    return (Reason("", "evicted", Status.UNHEALTHY, text),)


def stale(health: Health, now_ms: int) -> Health:
    """What was kept, or `unknown` if that was more than two of its intervals ago.

    It says itself how long it is good for: a monitor does not know what the workers' settings are.
    """
    age = (now_ms - health.checked_at_ms) / 1000
    if abs(age) <= STALE * health.every_s:
        return health
    when = f"{spoken(round(age))} ago" if age >= 0 else f"{spoken(round(-age))} from now, by a clock that was set back"
    text = f"the last look was {when}, one every {spoken(health.every_s)} is expected: is no worker alive?"
    reason = Reason("", "snapshot", Status.UNKNOWN, text)
    return msgspec.structs.replace(health, status=Status.UNKNOWN, reasons=(reason, *health.reasons))


def measures(health: Health) -> dict[str, dict[str, Status]]:
    """Queue -> measure -> how it stood, for the next look."""
    found: dict[str, dict[str, Status]] = {}
    for reason in health.reasons:
        found.setdefault(reason.queue, {})[reason.measure] = reason.status
    return found


def changed(before: Health | None, now: Health) -> bool:
    """Whether somebody should be told: another status, or other reasons than at the last look."""
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
    """What holds them back: other jobs, or lines in which they stand because of limits, pauses and breakers."""
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
    # What runs under a lease is in somebody's hands: a loop of one's own is no worker, and works all the same.
    return bool(workers or vitals.idle_workers or vitals.size("running") > vitals.silent)


def _waited_ms(vitals: Vitals) -> int:
    """For how long the first job has been due that has not started."""
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
