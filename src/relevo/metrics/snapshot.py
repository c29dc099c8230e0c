"""Reads the data of the metrics in a bounded number of small calls; none of them iterates over all jobs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.bus.conversations import Tally, tallied
from relevo.engine.engine import Engine
from relevo.engine.lists import job_queues
from relevo.engine.offers_store import instances
from relevo.engine.workers import WorkerInfo, roll
from relevo.health.gathering import cached, gathering, judged_pools, look_at
from relevo.health.status import Health, PoolHealth, QueueHealth, Status, measures, worst
from relevo.health.vitals import StateVitals, Vitals
from relevo.metrics.timing_store import heard_since, timings
from relevo.metrics.timings import TaskTimings
from relevo.queues.store import QueueStats, count
from relevo.schedules import store as schedules
from relevo.store.plan import Ahead, Call, Steps
from relevo.store.server_facts import info
from relevo.text.names import is_bus_name, known_as, parse

#: Exported queues, in the order of their names. More would make scrapes too slow and too many series; the number of
#: queues left out is exported.
MOST_QUEUES = 500
#: Queues of which a sample of jobs is read for ages and health: a millisecond or two of the server's time each.
MOST_LOOKED = 100
#: Tasks with exported histograms, of all queues together: each is some forty series.
MOST_TASKS = 300
#: Schedules that are read.
MOST_SCHEDULES = 1_000
#: Any live worker fires a tick within milliseconds; a later tick means that no worker does.
LATE_MS = 30_000
#: States with exported ages; not scheduled jobs, whose age depends on their due time.
AGED = ("ready", "running", "waiting", "done", "dead")
#: States in which jobs can be stuck.
STUCK = ("ready", "scheduled", "running", "waiting")


class Ages(Struct, frozen=True):
    """The ages of the jobs of a queue in one state."""

    oldest_ms: int = 0
    mean_ms: int = 0


class QueueSeen(Struct, frozen=True, kw_only=True):
    """One queue, or the queues of a broadcast (one for each process) taken together."""

    name: str
    #: '' for a bus queue, which is shared by all apps.
    app: str
    #: actions, callbacks, notifications; '' for a queue of tasks
    kind: str
    sizes: dict[str, int]
    #: Empty or None if this queue was not sampled because there are too many.
    ages: dict[str, Ages]
    stuck: dict[str, int]
    overdue: int | None
    parked: int | None
    breakers: int | None
    #: None for a broadcast: when one of its queues ends, the sum falls, which a counter must not.
    totals: dict[str, int] | None
    paused: bool
    workers: int
    idle_workers: int
    #: None: it does not belong to the app.
    status: Status | None


class SchedulesSeen(Struct, frozen=True):
    """The schedules of an app."""

    active: int = 0
    paused: int = 0
    late: int = 0
    #: Delay of the most delayed one.
    late_ms: int = 0


class ServerSeen(Struct, frozen=True):
    """Figures of the server; of one node in a cluster."""

    used_memory: int
    maxmemory: int
    commands: int


class Snapshot(Struct, frozen=True, kw_only=True):
    """The data of all metrics."""

    app: str
    env: str
    server: ServerSeen
    queues: list[QueueSeen]
    left_out: dict[str, int]
    workers: list[WorkerInfo]
    silent: int
    #: UNKNOWN: no data of the app, or there are too many queues and no worker has taken a recent health snapshot.
    health: Status
    tallies: dict[str, Tally]
    schedules: SchedulesSeen
    #: (app, queue, task) -> its timings
    timings: dict[tuple[str, str, str], TaskTimings]
    pools: tuple[PoolHealth, ...] = ()


_STATES = ("ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired")


def reading(engine: Engine) -> Steps[Snapshot]:
    """Read the snapshot."""
    about: dict[str, str] = yield info()
    # A pool is listed as a queue once it has dead letters; it is exported as a pool.
    listed = yield from job_queues(engine)
    names = listed[:MOST_QUEUES]
    now_ms = yield from engine.now_ms()
    health = yield from _health(engine, may_look=len(listed) <= MOST_LOOKED)
    judged = {one.name: one for one in health.queues}
    # Vitals that a worker took minutes ago are read again.
    look_of = {name: one.vitals for name, one in judged.items() if one.vitals.now_ms >= now_ms}
    unseen = [name for name in names[:MOST_LOOKED] if name not in look_of]
    looks: list[Vitals] = yield Ahead(look_at(engine, name) for name in unseen)
    look_of |= {one.name: one for one in looks}
    stats: list[QueueStats] = yield Ahead(count(engine.keys_of(name), name) for name in names)
    alive, silent = yield from roll(engine.keys, now_ms)
    serving = yield from _serving(engine, names, alive, now_ms)
    clock, unscheduled = yield from _schedules(engine, now_ms)
    measured, left_out = yield from _timings(engine, names, now_ms)
    parts = [_Part(one, look_of.get(one.name), serving.get(one.name, 0), judged.get(one.name)) for one in stats]
    return Snapshot(
        app=engine.name,
        env=engine.settings.env,
        server=ServerSeen(
            *(int(about.get(name, 0)) for name in ("used_memory", "maxmemory", "total_commands_processed"))
        ),
        queues=_seen(engine.name, parts),
        left_out={
            "queues": len(listed) - len(names),
            "ages": max(0, len(names) - MOST_LOOKED),
            "schedules": unscheduled,
            "tasks": left_out,
        },
        workers=alive,
        silent=len(silent),
        health=health.status,
        tallies=tallied([], [one for one in stats if is_bus_name(one.name)]),
        schedules=clock,
        timings=measured,
        pools=health.pools,
    )


def _health(engine: Engine, *, may_look: bool) -> Steps[Health]:
    """The health now; with too many queues for that, the last snapshot of a worker."""
    if may_look:
        return (yield from gathering(engine))
    kept = yield from cached(engine)
    if kept.status is Status.UNKNOWN:
        kept = Health(app=engine.name, env=engine.settings.env, status=Status.UNKNOWN, checked_at_ms=0)
    pools = yield from judged_pools(engine, measures(kept))
    return msgspec.structs.replace(kept, pools=tuple(pools))


def _serving(engine: Engine, names: Sequence[str], alive: Sequence[WorkerInfo], now_ms: int) -> Steps[dict[str, int]]:
    """The number of workers of each queue; bus queues may be served by other apps."""
    of_bus = [name for name in names if is_bus_name(name)]
    served: list[int] = yield Ahead(instances(engine.keys_of(name), now_ms) for name in of_bus)
    found = dict(zip(of_bus, served, strict=True))
    for one in alive:
        for queue in one.queues:
            if not is_bus_name(queue):
                found[queue] = found.get(queue, 0) + 1
    return found


class _Part(Struct, frozen=True):
    stats: QueueStats
    look: Vitals | None
    workers: int
    health: QueueHealth | None


def _seen(app: str, parts: Sequence[_Part]) -> list[QueueSeen]:
    found: dict[str, list[_Part]] = {}
    for part in parts:
        found.setdefault(known_as(part.stats.name), []).append(part)
    return [_one(app, name, some) for name, some in found.items()]


def _one(app: str, name: str, parts: Sequence[_Part]) -> QueueSeen:
    is_bus, first = is_bus_name(name), parts[0].stats
    looks = [part.look for part in parts if part.look is not None]
    judged = [part.health.status for part in parts if part.health is not None]
    return QueueSeen(
        name=name,
        app="" if is_bus else app,
        kind=parse(name, prefix=False, env=False).kind if is_bus else "",
        sizes={state: sum(getattr(part.stats, state) for part in parts) for state in _STATES},
        ages={state: _ages([look.states[state] for look in looks]) for state in AGED} if looks else {},
        stuck={state: sum(look.states[state].stuck for look in looks) for state in STUCK} if looks else {},
        overdue=sum(look.overdue for look in looks) if looks else None,
        parked=sum(look.parked for look in looks) if looks else None,
        breakers=sum(len(look.breakers) for look in looks) if looks else None,
        totals=first.totals if first.name == name else None,
        paused=any(part.stats.paused for part in parts),
        workers=sum(part.workers for part in parts),
        idle_workers=sum(part.stats.idle_workers for part in parts),
        status=worst(judged) if judged else None,
    )


def _ages(states: Sequence[StateVitals]) -> Ages:
    size = sum(one.size for one in states)
    return Ages(
        max(one.oldest_age_ms or 0 for one in states),
        sum((one.mean_age_ms or 0) * one.size for one in states) // size if size else 0,
    )


def _schedules(engine: Engine, now_ms: int) -> Generator[Call[Any], Any, tuple[SchedulesSeen, int]]:
    homes: dict[str, str] = yield schedules.homes(engine.keys)
    by_queue: dict[str, list[str]] = {}
    for name in sorted(homes)[:MOST_SCHEDULES]:
        by_queue.setdefault(homes[name], []).append(name)
    dues: list[int | None] = []
    for queue, names in by_queue.items():
        if engine.can_be_queue(queue):
            dues += yield schedules.dues(engine.keys_of(queue), names)
    active = [due for due in dues if due is not None]
    late = [now_ms - due for due in active if now_ms - due > LATE_MS]
    seen = SchedulesSeen(len(active), len(dues) - len(active), len(late), max(late, default=0))
    return seen, max(0, len(homes) - MOST_SCHEDULES)


def _timings(
    engine: Engine, names: Sequence[str], now_ms: int
) -> Steps[tuple[dict[tuple[str, str, str], TaskTimings], int]]:
    shown = sorted({known_as(name) for name in names})
    some: list[dict[str, TaskTimings]] = yield Ahead(timings(engine.keys_of(name)) for name in shown)
    found: dict[tuple[str, str, str], TaskTimings] = {}
    left_out = 0
    for name, here in zip(shown, some, strict=True):
        owner = "" if is_bus_name(name) else engine.name
        for task, one in sorted(heard_since(here, now_ms).items()):
            if len(found) < MOST_TASKS:
                found[owner, name, task] = one
            else:
                left_out += 1
    return found, left_out
