"""What the metrics are made of, read in a bounded number of small calls: none of them looks at jobs one by one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from msgspec import Struct

from relevo.app import Relevo
from relevo.bus.events import known_as
from relevo.bus.lifecycle import Tally, tallied
from relevo.model.names import is_bus_name, parse
from relevo.model.timings import TaskTimings
from relevo.store import schedules, workers
from relevo.store.events import Lag, lag
from relevo.store.plan import Ahead, Call
from relevo.store.presence import instances
from relevo.store.queues import QueueStats, count
from relevo.store.timings import heard_since, timings

#: Queues that are asked, in the order of their names. Beyond that one scrape would take too long, and Prometheus would
#: have to keep too much; how many were left out is told.
MOST_QUEUES = 500
#: Tasks whose histograms are told, of all queues together: each is some forty series.
MOST_TASKS = 300
#: Schedules that are looked at.
MOST_SCHEDULES = 1_000
#: A tick is fired within milliseconds by any worker that lives: later than this, nobody does.
LATE_MS = 30_000


class QueueSeen(Struct, frozen=True):
    """One queue, or several that are one to those who look: those of a broadcast, one for each process."""

    name: str
    #: '' for a queue of the bus, which all apps see.
    app: str
    #: actions, callbacks, notifications; of a queue of tasks ''
    kind: str
    sizes: dict[str, int]
    #: None of several in one: when one of them ends, their sum falls, which no counter may.
    totals: dict[str, int] | None
    oldest_ms: int
    paused: bool
    workers: int
    idle_workers: int


class SchedulesSeen(Struct, frozen=True):
    """How the schedules of an app stand."""

    active: int = 0
    paused: int = 0
    late: int = 0
    #: Of the one that is latest.
    late_ms: int = 0


class Snapshot(Struct, frozen=True):
    """Everything that is told."""

    app: str
    env: str
    now_ms: int
    queues: list[QueueSeen]
    left_out: dict[str, int]
    workers: list[workers.WorkerInfo]
    silent: int
    tallies: dict[str, Tally]
    schedules: SchedulesSeen
    #: (app, queue, task) -> its timings
    timings: dict[tuple[str, str, str], TaskTimings]


_STATES = ("ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired")


def reading(app: Relevo) -> Generator[Call[Any] | Ahead[Any], Any, Snapshot]:
    """Read it all."""
    listed = yield from app.listed_queues()
    names = listed[:MOST_QUEUES]
    keys = [app.keys_of(name) for name in names]
    now_ms = yield from app.now_ms()
    stats: list[QueueStats] = yield Ahead(count(one, name) for one, name in zip(keys, names, strict=True))
    lags: list[Lag] = yield Ahead(map(lag, keys))
    alive, silent = yield from workers.living(app.keys, forget=False)
    of_bus = [name for name in names if is_bus_name(name)]
    served: list[int] = yield Ahead(instances(app.keys_of(name), now_ms) for name in of_bus)
    serving = dict(zip(of_bus, served, strict=True))
    for one in alive:
        for queue in one.queues:
            if not is_bus_name(queue):
                serving[queue] = serving.get(queue, 0) + 1
    past: list[bytes] = yield Call([b"HGETALL", app.bus_keys.key("stats")])
    clock, unseen = yield from _schedules(app, now_ms)
    measured, untold = yield from _timings(app, names, now_ms)
    return Snapshot(
        app.name,
        app.settings.env,
        now_ms,
        _seen(app.name, stats, lags, serving),
        {"queues": len(listed) - len(names), "schedules": unseen, "tasks": untold},
        alive,
        len(silent),
        tallied(past, [one for one in stats if is_bus_name(one.name)]),
        clock,
        measured,
    )


def _seen(app: str, stats: list[QueueStats], lags: list[Lag], serving: dict[str, int]) -> list[QueueSeen]:
    found: dict[str, list[tuple[QueueStats, Lag]]] = {}
    for pair in zip(stats, lags, strict=True):
        found.setdefault(known_as(pair[0].name), []).append(pair)
    return [_one(app, name, pairs, serving) for name, pairs in found.items()]


def _one(app: str, name: str, pairs: list[tuple[QueueStats, Lag]], serving: dict[str, int]) -> QueueSeen:
    return QueueSeen(
        name,
        "" if is_bus_name(name) else app,
        parse(name, prefix=False, env=False).kind if is_bus_name(name) else "",
        {state: sum(getattr(stats, state) for stats, _ in pairs) for state in _STATES},
        pairs[0][0].totals if pairs[0][0].name == name else None,
        max(late.age_ms for _, late in pairs),
        any(stats.paused for stats, _ in pairs),
        sum(serving.get(stats.name, 0) for stats, _ in pairs),
        sum(stats.idle_workers for stats, _ in pairs),
    )


def _schedules(app: Relevo, now_ms: int) -> Generator[Call[Any], Any, tuple[SchedulesSeen, int]]:
    homes: dict[str, str] = yield schedules.homes(app.keys)
    by_queue: dict[str, list[str]] = {}
    for name in sorted(homes)[:MOST_SCHEDULES]:
        by_queue.setdefault(homes[name], []).append(name)
    dues: list[int | None] = []
    for queue, names in by_queue.items():
        if app.can_be_queue(queue):
            dues += yield schedules.dues(app.keys_of(queue), names)
    active = [due for due in dues if due is not None]
    late = [now_ms - due for due in active if now_ms - due > LATE_MS]
    seen = SchedulesSeen(len(active), len(dues) - len(active), len(late), max(late, default=0))
    return seen, max(0, len(homes) - MOST_SCHEDULES)


def _timings(
    app: Relevo, names: list[str], now_ms: int
) -> Generator[Call[Any] | Ahead[Any], Any, tuple[dict[tuple[str, str, str], TaskTimings], int]]:
    shown = sorted({known_as(name) for name in names})
    some: list[dict[str, TaskTimings]] = yield Ahead(timings(app.keys_of(name)) for name in shown)
    found: dict[tuple[str, str, str], TaskTimings] = {}
    untold = 0
    for name, here in zip(shown, some, strict=True):
        owner = "" if is_bus_name(name) else app.name
        for task, one in sorted(heard_since(here, now_ms).items()):
            if len(found) < MOST_TASKS:
                found[owner, name, task] = one
            else:
                untold += 1
    return found, untold
