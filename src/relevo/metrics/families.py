"""Turns a snapshot into metrics; the only place with their names, units, labels and meanings.

Names follow the conventions of Prometheus: base units, `_total` for counters, meaningful sums over a label. Values of
labels come from code and settings (apps, queues, tasks), never from jobs, and their number is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from relevo.health.status import Status
from relevo.metrics.snapshot import Snapshot
from relevo.metrics.text import Family, Kind, Sample, number
from relevo.metrics.timings import BOUNDS, Histogram
from relevo.upkeep.rules import POOL_RULES, QUEUE_RULES
from relevo.version import __version__

#: name -> kind, labels, meaning. The table of docs/metrics.md says the same.
CATALOGUE: dict[str, tuple[Kind, tuple[str, ...], str]] = {
    "relevo_up": (
        "gauge",
        ("app",),
        "1 if the server answered this scrape; 0 if not, and no other metric is exported.",
    ),
    "relevo_info": ("gauge", ("app", "env", "version"), "Always 1: what is running."),
    "relevo_health_status": (
        "gauge",
        ("app",),
        "0 healthy, 1 degraded, 2 unhealthy; left out while unknown.",
    ),
    "relevo_server_memory_bytes": ("gauge", ("app",), "Memory that the server uses, for all its data."),
    "relevo_server_memory_max_bytes": ("gauge", ("app",), "The server's memory limit (maxmemory); 0 if it has none."),
    "relevo_server_commands_total": ("counter", ("app",), "Commands that the server has executed, for all clients."),
    "relevo_scrape_seconds": ("gauge", ("app",), "Time it took to read these metrics."),
    "relevo_left_out": (
        "gauge",
        ("app", "what"),
        "Queues, schedules and tasks that are not exported, and queues without ages, because there are too many.",
    ),
    "relevo_queue_jobs": ("gauge", ("app", "queue", "kind", "state"), "Jobs that have not ended, by state."),
    "relevo_queue_records": (
        "gauge",
        ("app", "queue", "kind", "state"),
        'Ended jobs whose record is kept; state="dead" counts the dead letters.',
    ),
    "relevo_queue_oldest_seconds": (
        "gauge",
        ("app", "queue", "kind", "state"),
        "Age of the oldest job in a state, as far as known; 0 if there is none.",
    ),
    "relevo_queue_mean_age_seconds": (
        "gauge",
        ("app", "queue", "kind", "state"),
        "Mean age of the jobs in a state; estimated if there are more than 64.",
    ),
    "relevo_queue_stuck_jobs": (
        "gauge",
        ("app", "queue", "kind", "state"),
        "Jobs in a state for longer than health_limits allows; estimated if there are more than 64.",
    ),
    "relevo_queue_overdue_jobs": (
        "gauge",
        ("app", "queue", "kind"),
        "Scheduled jobs that are due and not claimed by a worker.",
    ),
    "relevo_queue_parked_jobs": (
        "gauge",
        ("app", "queue", "kind"),
        "Jobs held back by a limit, a pause or a breaker; estimated if there are more than 64.",
    ),
    "relevo_queue_breakers_open": ("gauge", ("app", "queue", "kind"), "Tasks whose circuit breaker is open."),
    "relevo_queue_health_status": (
        "gauge",
        ("app", "queue", "kind"),
        "0 healthy, 1 degraded, 2 unhealthy, for each queue of the app.",
    ),
    "relevo_queue_paused": ("gauge", ("app", "queue", "kind"), "1 while the queue is paused."),
    "relevo_queue_workers": ("gauge", ("app", "queue", "kind"), "Live workers that serve the queue."),
    "relevo_queue_idle_workers": (
        "gauge",
        ("app", "queue", "kind"),
        "Live workers that serve the queue and wait for a job.",
    ),
    "relevo_jobs_enqueued_total": ("counter", ("app", "queue", "kind"), "Jobs that were enqueued."),
    "relevo_jobs_ended_total": ("counter", ("app", "queue", "kind", "state"), "Jobs that ended, by final state."),
    "relevo_jobs_retried_total": ("counter", ("app", "queue", "kind"), "Attempts after which the job is retried."),
    "relevo_jobs_handed_back_total": (
        "counter",
        ("app", "queue", "kind"),
        "Jobs that a worker handed back unfinished, mostly because it stopped.",
    ),
    "relevo_jobs_lost_total": (
        "counter",
        ("app", "queue", "kind"),
        "Leases that expired because their worker died or was cut off.",
    ),
    "relevo_jobs_revived_total": ("counter", ("app", "queue", "kind"), "Ended jobs that were enqueued again."),
    "relevo_jobs_removed_total": (
        "counter",
        ("app", "queue", "kind", "how"),
        "Jobs and records that were removed: cleared, discarded, cleaned (their conversation ended), "
        "overflow (a subscription's backlog was full), orphans (entries without a job).",
    ),
    "relevo_purged_total": (
        "counter",
        ("app", "queue", "kind", "state"),
        'Entries purged because they were in a state for too long; kind="pool": from a pool.',
    ),
    "relevo_dead_letters_dropped_total": (
        "counter",
        ("app", "queue", "kind"),
        "Dead letters dropped before their TTL because there were more than dead_max.",
    ),
    "relevo_replies_unheard_total": (
        "counter",
        ("app", "queue", "kind"),
        "Outcomes that a waiting caller did not receive because it was not connected.",
    ),
    "relevo_pool_entities": ("gauge", ("app", "pool", "state"), "Entities of a pool by state."),
    "relevo_pool_oldest_seconds": (
        "gauge",
        ("app", "pool", "state"),
        "Age of the oldest entity in a state.",
    ),
    "relevo_pool_stuck_entities": (
        "gauge",
        ("app", "pool", "state"),
        "Entities in a state for longer than health_limits allows (stuck_age).",
    ),
    "relevo_pool_dead_letters": (
        "gauge",
        ("app", "pool"),
        "Entities kept as dead letters.",
    ),
    "relevo_pool_dead_letters_from": (
        "gauge",
        ("app", "pool", "state"),
        "Dead letters by the state that their entities were in; estimated if there are more than 256.",
    ),
    "relevo_pool_orphans": ("gauge", ("app", "pool"), "Entities that are in no state of their pool."),
    "relevo_pool_health_status": ("gauge", ("app", "pool"), "0 healthy, 1 degraded, 2 unhealthy, for each pool."),
    "relevo_workers": ("gauge", ("app",), "Live workers."),
    "relevo_workers_lost": (
        "gauge",
        ("app",),
        "Workers lost in the last 15 minutes (they stopped reporting without a shutdown).",
    ),
    "relevo_worker_slots": ("gauge", ("app",), "Jobs that all live workers together may run at once."),
    "relevo_worker_slots_busy": ("gauge", ("app",), "Jobs that the live workers are running, at most 5 s old."),
    "relevo_schedules": ("gauge", ("app", "state"), "Schedules, active or paused."),
    "relevo_schedules_late": ("gauge", ("app",), "Active schedules whose tick has been due for more than 30 s."),
    "relevo_schedule_late_seconds": ("gauge", ("app",), "How late the most delayed of them is; 0 if none is late."),
    "relevo_bus_messages": (
        "gauge",
        ("app", "kind", "what"),
        "Messages of the app's services: created, living, done, dead, expired, cleaned. "
        "A gauge, because the counts of queues that ended or were idle for a week are dropped.",
    ),
    "relevo_task_wait_seconds": (
        "histogram",
        ("app", "queue", "task"),
        "Time from the creation of a job, or from its due time, until its function was first called.",
    ),
    "relevo_task_run_seconds": ("histogram", ("app", "queue", "task"), "Duration of attempts."),
    "relevo_task_failures_total": (
        "counter",
        ("app", "queue", "task"),
        "Attempts that raised an error or ran out of time.",
    ),
}

_LIVING = ("ready", "scheduled", "running", "waiting")
_ENDED = ("done", "dead", "cancelled", "expired")
#: Counters of a queue: the metric, and its name in the store.
_COUNTERS = {
    "relevo_jobs_enqueued_total": "enqueued",
    "relevo_jobs_retried_total": "retry",
    "relevo_jobs_handed_back_total": "back",
    "relevo_jobs_lost_total": "lost",
    "relevo_jobs_revived_total": "revived",
    "relevo_dead_letters_dropped_total": "dropped",
    "relevo_replies_unheard_total": "unheard",
}
#: The store's prefix of counters of purged entries; the state follows.
_PURGED = "purged_"
#: The exported counts of messages. Swept messages are not exported: their subscriptions may belong to any app.
_MESSAGES = ("created", "living", "done", "dead", "expired", "cleaned")
_REMOVED = ("cleared", "discarded", "cleaned", "overflow", "orphans")


class _Gathered:
    """Samples by the name of their family."""

    def __init__(self) -> None:
        self._samples: dict[str, list[Sample]] = {name: [] for name in CATALOGUE}

    def add(self, name: str, value: float, suffix: str = "", **labels: str) -> None:
        self._samples[name].append(Sample(labels, value, suffix))

    def families(self) -> Iterator[Family]:
        for name, samples in self._samples.items():
            kind, _, meaning = CATALOGUE[name]
            yield Family(name, kind, meaning, samples)


def nothing_but_down(app: str) -> Iterable[Family]:
    """The metrics while the server cannot be reached."""
    found = _Gathered()
    found.add("relevo_up", 0, app=app)
    return found.families()


def families(seen: Snapshot, *, scrape_seconds: float) -> Iterable[Family]:
    """All metrics of a snapshot."""
    found = _Gathered()
    found.add("relevo_up", 1, app=seen.app)
    found.add("relevo_info", 1, app=seen.app, env=seen.env, version=__version__)
    found.add("relevo_scrape_seconds", scrape_seconds, app=seen.app)
    if seen.health is not Status.UNKNOWN:
        found.add("relevo_health_status", seen.health.number, app=seen.app)
    for what, left_out in seen.left_out.items():
        found.add("relevo_left_out", left_out, app=seen.app, what=what)
    found.add("relevo_server_memory_bytes", seen.server.used_memory, app=seen.app)
    found.add("relevo_server_memory_max_bytes", seen.server.maxmemory, app=seen.app)
    found.add("relevo_server_commands_total", seen.server.commands, app=seen.app)
    _queues(found, seen)
    _pools(found, seen)
    _workers(found, seen)
    _schedules(found, seen)
    for kind, tally in sorted(seen.tallies.items()):
        for what in _MESSAGES:
            found.add("relevo_bus_messages", getattr(tally, what), app=seen.app, kind=kind, what=what)
    for (app, queue, task), timings in seen.timings.items():
        of_task = {"app": app, "queue": queue, "task": task}
        _histogram(found, "relevo_task_wait_seconds", timings.waited, of_task)
        _histogram(found, "relevo_task_run_seconds", timings.ran, of_task)
        found.add("relevo_task_failures_total", timings.failed, **of_task)
    return found.families()


def _queues(found: _Gathered, seen: Snapshot) -> None:
    for queue in seen.queues:
        of_queue = {"app": queue.app, "queue": queue.name, "kind": queue.kind}
        for state in _LIVING:
            found.add("relevo_queue_jobs", queue.sizes[state], **of_queue, state=state)
        for state in _ENDED:
            found.add("relevo_queue_records", queue.sizes[state], **of_queue, state=state)
        for state, ages in queue.ages.items():
            found.add("relevo_queue_oldest_seconds", ages.oldest_ms / 1000, **of_queue, state=state)
            found.add("relevo_queue_mean_age_seconds", ages.mean_ms / 1000, **of_queue, state=state)
        for state, stuck in queue.stuck.items():
            found.add("relevo_queue_stuck_jobs", stuck, **of_queue, state=state)
        for name, count in (
            ("overdue_jobs", queue.overdue),
            ("parked_jobs", queue.parked),
            ("breakers_open", queue.breakers),
        ):
            if count is not None:
                found.add(f"relevo_queue_{name}", count, **of_queue)
        if queue.status is not None:
            found.add("relevo_queue_health_status", queue.status.number, **of_queue)
        found.add("relevo_queue_paused", queue.paused, **of_queue)
        found.add("relevo_queue_workers", queue.workers, **of_queue)
        found.add("relevo_queue_idle_workers", queue.idle_workers, **of_queue)
        if queue.totals is None:
            continue
        for name, field in _COUNTERS.items():
            found.add(name, queue.totals.get(field, 0), **of_queue)
        for state in _ENDED:
            found.add("relevo_jobs_ended_total", queue.totals.get(state, 0), **of_queue, state=state)
        _purged(found, queue.totals, QUEUE_RULES, of_queue)
        for how in _REMOVED:
            found.add("relevo_jobs_removed_total", queue.totals.get(how, 0), **of_queue, how=how)


def _purged(found: _Gathered, totals: Mapping[str, int], usual: Iterable[str], of_queue: dict[str, str]) -> None:
    """Add the counters of purged entries, from 0 on: a series that begins above 0 would hide its first increase."""
    counts = dict.fromkeys(usual, 0)
    counts |= {field.removeprefix(_PURGED): n for field, n in totals.items() if field.startswith(_PURGED)}
    for state, n in counts.items():
        found.add("relevo_purged_total", n, **of_queue, state=state)


def _pools(found: _Gathered, seen: Snapshot) -> None:
    for pool in seen.pools:
        of_pool = {"app": seen.app, "pool": pool.name}
        for state, one in pool.vitals.states.items():
            found.add("relevo_pool_entities", one.size, **of_pool, state=state)
            found.add("relevo_pool_oldest_seconds", (one.oldest_age_ms or 0) / 1000, **of_pool, state=state)
            found.add("relevo_pool_stuck_entities", one.stuck, **of_pool, state=state)
        found.add("relevo_pool_dead_letters", pool.vitals.dead, **of_pool)
        for state, count in {**dict.fromkeys(pool.vitals.states, 0), **pool.vitals.dead_from}.items():
            found.add("relevo_pool_dead_letters_from", count, **of_pool, state=state)
        found.add("relevo_pool_orphans", pool.vitals.orphans, **of_pool)
        found.add("relevo_pool_health_status", pool.status.number, **of_pool)
        as_queue = {"app": seen.app, "queue": pool.vitals.queue, "kind": "pool"}
        found.add("relevo_dead_letters_dropped_total", pool.vitals.totals.get("dropped", 0), **as_queue)
        _purged(found, pool.vitals.totals, POOL_RULES, as_queue)


def _workers(found: _Gathered, seen: Snapshot) -> None:
    found.add("relevo_workers", len(seen.workers), app=seen.app)
    found.add("relevo_workers_lost", seen.silent, app=seen.app)
    found.add("relevo_worker_slots", sum(one.concurrency for one in seen.workers), app=seen.app)
    found.add("relevo_worker_slots_busy", sum(one.running for one in seen.workers), app=seen.app)


def _schedules(found: _Gathered, seen: Snapshot) -> None:
    found.add("relevo_schedules", seen.schedules.active, app=seen.app, state="active")
    found.add("relevo_schedules", seen.schedules.paused, app=seen.app, state="paused")
    found.add("relevo_schedules_late", seen.schedules.late, app=seen.app)
    found.add("relevo_schedule_late_seconds", seen.schedules.late_ms / 1000, app=seen.app)


def _histogram(found: _Gathered, name: str, histogram: Histogram, labels: dict[str, str]) -> None:
    below = 0
    for bound, count in zip((*map(number, BOUNDS), "+Inf"), histogram.counts, strict=True):
        below += count
        found.add(name, below, "_bucket", **labels, le=bound)
    found.add(name, histogram.total, "_sum", **labels)
    found.add(name, below, "_count", **labels)
