"""Judges queues, pools and the app: pure functions of numbers and limits that give reasons.

Queues are judged by what their jobs feel: targets, the time until the backlog is cleared, and ages. How many jobs are
ready says little about that, so it is a reason only where a limit is set. Pools hold things that cost money while they
lie there, and have such limits by default. Other reasons have no number: no worker serves a queue, no live worker has a
task, a queue is paused while jobs are due, jobs of lost workers are not recovered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from relevo.health.status import CALM, Reason, Status, graded, many
from relevo.health.thresholds import Limits
from relevo.health.vitals import AT_REST, PoolVitals, Vitals
from relevo.text.durations import spoken

#: The default of `slo_critical`, as a multiple of `slo`.
SLO_CRITICAL = 4
#: How long a foreign value in a key stays a reason, in milliseconds.
FAULT_MS = 86_400_000
#: A backlog is judged by the time until it is cleared once its first job has waited for so long, in seconds: before
#: that it may be a burst, and the rates of the last five minutes are not yet those of the work on it.
CLEAR_AFTER = 300.0


def judge(
    vitals: Vitals,
    limits: Limits,
    *,
    workers: int,
    before: Mapping[str, Status] | None = None,
    dead_max: int = 0,
    full_ms: int = 0,
) -> tuple[Reason, ...]:
    """Why a queue is not healthy; empty if it is.

    `before`: the status of each measure in the last snapshot. `full_ms`: for how long no worker that serves it has had
    a free slot for it.
    """
    before, name = before or {}, vitals.name
    dropped = vitals.totals.get("dropped", 0)
    found = [
        _sized(name, "ready", vitals.size("ready"), (limits.ready_max, limits.ready_critical), before, "ready"),
        _waiting(vitals, limits, before),
        _dead(name, vitals.size("dead"), vitals.dead_recently, limits, before),
        _dropped(name, vitals.size("dead"), dropped, vitals.dropped_recently, dead_max, limits),
        _stuck_jobs(vitals, limits, before),
        _slo(vitals, limits, before),
        *_task_slos(vitals, limits, before),
        _clear(vitals, limits, workers, before),
        *_breakers(vitals),
        *_unknown_tasks(vitals),
        _not_served(vitals, limits, workers),
        _full(vitals, limits, workers, full_ms),
        _keys(vitals),
    ]
    if vitals.silent:
        text = f"{many(vitals.silent, 'job')} of lost workers, not recovered by any worker"
        found.append(_reason(name, "silent", Status.DEGRADED, text))
    return tuple(reason for reason in found if reason is not None)


def _waiting(vitals: Vitals, limits: Limits, before: Mapping[str, Status]) -> Reason | None:
    size, parked = vitals.size("waiting"), vitals.parked
    words = "waiting for others"
    if parked:
        words = "parked" if parked >= size else f"waiting, {parked:,} of them parked"
    borders = limits.waiting_max, limits.waiting_critical
    reason = _sized(vitals.name, "waiting", size, borders, before, words)
    if reason is None or reason.status is not Status.UNHEALTHY or size - parked >= limits.waiting_critical:
        return reason
    # What parks jobs (a limit, a pause, a breaker) protects something, and does as it should.
    return msgspec.structs.replace(reason, status=Status.DEGRADED)


def _breakers(vitals: Vitals) -> Iterator[Reason]:
    for one in vitals.breakers:
        age = spoken(max(0, round((vitals.now_ms - one.since_ms) / 1000)))
        text = f"the breaker of task {one.name!r} has been open for {age}: {one.reason}"
        yield _reason(vitals.name, f"breaker {one.name}", Status.DEGRADED, text)


def _unknown_tasks(vitals: Vitals) -> Iterator[Reason]:
    for task, count in vitals.unknown_tasks.items():
        text = f"no live worker knows task {task!r}, {many(count, 'job')} waiting{_module(vitals.name, task)}"
        yield _reason(vitals.name, f"unknown {task}", Status.DEGRADED, text)


def _module(queue: str, task: str) -> str:
    """Where the task of a plain queue probably is: services have actions, and plain functions are found by a path."""
    module = "" if ":" in queue or ":" in task else task.rpartition(".")[0]
    return f"; if {module} defines it, name that in the setting imports" if module else ""


def _not_served(vitals: Vitals, limits: Limits, workers: int) -> Reason | None:
    """Jobs are due, and the queue is paused or no worker serves it."""
    due = many(_due(vitals), "job")
    if not _due(vitals):
        return None
    if vitals.paused:
        return _reason(vitals.name, "paused", Status.DEGRADED, f"paused, and {due} due")
    if not limits.unserved_age or _is_served(vitals, workers):
        return None
    status = Status.UNHEALTHY if _waited_ms(vitals) >= limits.unserved_age * 1000 else Status.DEGRADED
    return _reason(vitals.name, "unserved", status, f"{due} due and no worker serves it")


def _full(vitals: Vitals, limits: Limits, workers: int, full_ms: int) -> Reason | None:
    """All slots are taken by jobs that do not end."""
    if vitals.paused or not _due(vitals) or not limits.full_age or full_ms < limits.full_age * 1000:
        return None
    text = f"no free slot on {many(workers, 'worker')} for {spoken(full_ms // 1000)}, {many(_due(vitals), 'job')} due"
    return _reason(vitals.name, "slots", Status.DEGRADED, f"{text}: more slots (-c, -Q) or workers")


def _keys(vitals: Vitals) -> Reason | None:
    """Another program wrote to the keys of the queue in the last day: the newest of it."""
    found = [name for name, fault in vitals.faults.items() if vitals.now_ms - fault.at_ms < FAULT_MS]
    if not found:
        return None
    newest = max(found, key=lambda name: vitals.faults[name].at_ms)
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return _reason(vitals.name, "keys", Status.DEGRADED, f"key {newest}: {vitals.faults[newest].text}{more}")


def judge_pool(
    vitals: PoolVitals, limits: Limits, *, before: Mapping[str, Status] | None = None, dead_max: int = 0
) -> tuple[Reason, ...]:
    """Why a pool is not healthy; empty if it is. Pending entities are judged as waiting jobs, ready ones as ready."""
    before, name = before or {}, vitals.queue
    sizes = {state: vitals.size(state) for state in ("ready", "pending")}
    states = [f"{one.stuck:,} {state}" for state, one in vitals.states.items() if one.stuck and state not in AT_REST]
    found = [
        _sized(name, "ready", sizes["ready"], (limits.ready_max, limits.ready_critical), before, "ready"),
        _sized(name, "waiting", sizes["pending"], (limits.waiting_max, limits.waiting_critical), before, "pending"),
        _dead(name, vitals.dead, vitals.dead_recently, limits, before),
        _dropped(name, vitals.dead, vitals.totals.get("dropped", 0), 0, dead_max, limits),
        _stuck(name, vitals.stuck, states, limits, before),
    ]
    return tuple(reason for reason in found if reason is not None)


def judge_workers(lost: Sequence[str], limit: int, *, before: Mapping[str, Status] | None = None) -> tuple[Reason, ...]:
    """Whether too many workers were lost."""
    status = graded(len(lost), limit, 0, (before or {}).get("workers", Status.HEALTHY))
    if status is Status.HEALTHY:
        return ()
    text = f"{many(len(lost), 'worker')} lost in the last 15 minutes"
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
    text = f"the server: {many(evicted, 'key')} evicted (maxmemory-policy {policy}), jobs may be lost"
    return (Reason("", "evicted", Status.UNHEALTHY, text),)


def _reason(queue: str, measure: str, status: Status, text: str) -> Reason:
    return Reason(queue, measure, status, f"{queue}: {text}")


def _sized(
    queue: str, measure: str, value: int, borders: tuple[int, int], before: Mapping[str, Status], words: str
) -> Reason | None:
    status = graded(value, *borders, before.get(measure, Status.HEALTHY))
    if status is Status.HEALTHY:
        return None
    border = borders[status.number - 1]
    calm = f"; well again below {border * CALM:,.0f}" if value < border else ""
    return _reason(queue, measure, status, f"{value:,} {words}, its limit is {border:,}{calm}")


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


def _dropped(name: str, kept: int, dropped: int, recently: int, dead_max: int, limits: Limits) -> Reason | None:
    """Dead letters were dropped, in the last hour or since the queue is full of them."""
    is_judged = limits.dead_warning or limits.dead_critical
    if not is_judged or not dropped or not (recently or 0 < dead_max <= kept):
        return None
    when = f", {recently:,} of them in the last hour" if recently else ""
    text = f"{many(dropped, 'dead letter')} dropped beyond dead_max{f' ({dead_max:,})' if dead_max else ''}{when}"
    return _reason(name, "dropped", Status.DEGRADED, text)


def _stuck_jobs(vitals: Vitals, limits: Limits, before: Mapping[str, Status]) -> Reason | None:
    """Jobs without progress. What is ready makes some while its backlog will soon be cleared."""
    clears = vitals.clears_in_s
    is_clearing = clears is not None and clears < limits.clear_warning
    states = {
        state: one for state, one in vitals.states.items() if one.stuck and not (state == "ready" and is_clearing)
    }
    texts = [f"{'' if one.exact else 'about '}{one.stuck:,} {state}" for state, one in states.items()]
    count = vitals.stuck - (vitals.states["ready"].stuck if is_clearing else 0)
    return _stuck(vitals.name, count, texts, limits, before)


def _clear(vitals: Vitals, limits: Limits, workers: int, before: Mapping[str, Status]) -> Reason | None:
    """The backlog is old, and will be there for long."""
    size, waited = vitals.size("ready"), _waited_ms(vitals) / 1000
    is_known = any(rates is not None for rates in vitals.rates.values())
    if not size or waited < CLEAR_AFTER or not is_known or vitals.paused or not _is_served(vitals, workers):
        return None
    clears, oldest = vitals.clears_in_s, spoken(round(waited))
    if clears is None:
        text = f"{size:,} ready, the first for {oldest}, and more come than are done"
        return _reason(vitals.name, "clear", Status.DEGRADED, text) if limits.clear_warning else None
    borders = limits.clear_warning, limits.clear_critical
    status = graded(clears, *borders, before.get("clear", Status.HEALTHY))
    if status is Status.HEALTHY:
        return None
    border = borders[status.number - 1]
    text = f"{size:,} ready take {spoken(round(clears))} at this rate, their limit is {spoken(border)}"
    calm = f"; well again below {spoken(border * CALM)}" if clears < border else ""
    return _reason(vitals.name, "clear", status, text + calm)


def _due(vitals: Vitals) -> int:
    """Jobs that could run now."""
    return vitals.size("ready") + vitals.overdue


def _is_served(vitals: Vitals, workers: int) -> bool:
    # A running job with a valid lease counts: a custom loop serves the queue without being a worker.
    return bool(workers or vitals.idle_workers or vitals.size("running") > vitals.silent)


def _waited_ms(vitals: Vitals) -> int:
    """How long the oldest job that has not started has been due."""
    return max(vitals.states["ready"].oldest_age_ms or 0, vitals.overdue_age_ms)


def _slo(vitals: Vitals, limits: Limits, before: Mapping[str, Status]) -> Reason | None:
    critical = limits.slo_critical or limits.slo * SLO_CRITICAL
    return _late(vitals.name, "slo", _waited_ms(vitals), (limits.slo, critical), before)


def _task_slos(vitals: Vitals, limits: Limits, before: Mapping[str, Status]) -> Iterator[Reason | None]:
    """Targets of tasks, as far as their jobs are among those that were read."""
    for load in vitals.tasks if limits.task_slo else ():
        if (target := limits.task_slo.get(load.task)) and load.oldest_age_ms is not None:
            borders = target, target * SLO_CRITICAL
            yield _late(vitals.name, f"slo {load.task}", load.oldest_age_ms, borders, before, f" of task {load.task!r}")


def _late(
    name: str, measure: str, waited_ms: int, borders: tuple[float, float], before: Mapping[str, Status], of: str = ""
) -> Reason | None:
    waited, target = waited_ms / 1000, borders[0] or borders[1]
    status = graded(waited, *borders, before.get(measure, Status.HEALTHY))
    if status is Status.HEALTHY:
        return None
    oldest = spoken(round(waited) if waited >= 1 else waited)
    if waited < target:
        text = f"oldest{of} {oldest}, its target is {spoken(target)}; well again below {spoken(target * CALM)}"
    else:
        text = f"oldest{of} {oldest} over its {spoken(target)} target"
    return _reason(name, measure, status, text)
