"""Draws health for people: the status and its reasons first, then a line for each queue."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.cli.screen import Screen, away, plural
from relevo.health.status import Health, PoolHealth, QueueHealth, Status
from relevo.health.vitals import Rates, Vitals
from relevo.health.vitals_store import SAMPLE
from relevo.text.durations import spoken

STYLES = {
    Status.HEALTHY: "bold green",
    Status.DEGRADED: "bold yellow",
    Status.UNHEALTHY: "bold red",
    Status.UNKNOWN: "bold magenta",
}
#: Columns that are left out if they are empty.
SPARE = {"target", "scheduled", "overdue", "waiting"}
#: Columns of a terminal from which sizes and rates are in one table.
WIDE = 120
SIGNS = {Status.HEALTHY: "✓", Status.DEGRADED: "▶", Status.UNHEALTHY: "✗", Status.UNKNOWN: "○"}


def draw(screen: Screen, health: Health, *, tasks: bool = False, is_cached: bool = False) -> None:
    """Draw all of it."""
    when = f", as found {away(health.checked_at_ms)}" if is_cached and health.checked_at_ms else ""
    title = f"{SIGNS[health.status]} {health.status}  app {health.app} in {health.env}{when}"
    screen.line(title, STYLES[health.status])
    for reason in health.reasons:
        screen.line(f"  {SIGNS[reason.status]} {reason.text}", STYLES[reason.status].removeprefix("bold "))
    if health.queues:
        screen.line()
        _draw_queues(screen, health.queues)
    if health.queues or health.workers:
        screen.line()
        _draw_workers(screen, health)
    if health.pools:
        screen.line()
        _draw_pools(screen, health.pools)
    if tasks:
        screen.line()
        _draw_tasks(screen, health.queues)
    estimated = [one.vitals for one in health.queues if not _is_counted(one)]
    if estimated or (tasks and any(not load.exact for one in health.queues for load in one.vitals.tasks)):
        screen.line(f"\n~ estimated from {SAMPLE} jobs of each state, at random")


def _draw_pools(screen: Screen, pools: Sequence[PoolHealth]) -> None:
    """A line for each state of each pool."""
    rows: list[Sequence[object]] = []
    for pool in pools:
        name, dead = f"{SIGNS[pool.status]} {pool.name}", pool.vitals.dead
        for state, one in pool.vitals.states.items():
            oldest = None if one.oldest_age_ms is None else spoken(one.oldest_age_ms // 1000)
            rows.append((name, state, one.size, oldest, one.stuck, dead))
        if not pool.vitals.states:
            rows.append((name, "-", 0, None, 0, dead))
    screen.table(["pool", "state", "entities", "oldest", "for too long", "dead"], rows)


def _draw_queues(screen: Screen, queues: Sequence[QueueHealth]) -> None:
    sizes, rates = [_sizes(queue) for queue in queues], [_rates(queue) for queue in queues]
    # An empty column only takes room, and a terminal may have little.
    shown = [name for name in sizes[0] if name not in SPARE or any(row[name] not in (0, "-") for row in sizes)]
    names = [f"{SIGNS[queue.status]} {queue.name}" for queue in queues]
    left = [[row[name] for name in shown] for row in sizes]
    right = [list(row.values()) for row in rates]
    if 0 < screen.width < WIDE:
        screen.table(["queue", *shown], [[name, *row] for name, row in zip(names, left, strict=True)])
        screen.line()
        screen.table(["queue", *rates[0]], [[name, *row] for name, row in zip(names, right, strict=True)])
    else:
        rows = [[name, *row, *more] for name, row, more in zip(names, left, right, strict=True)]
        screen.table(["queue", *shown, *rates[0]], rows)


def _sizes(queue: QueueHealth) -> dict[str, object]:
    vitals = queue.vitals
    return {
        "ready": vitals.size("ready"),
        "oldest": _age(vitals.states["ready"].oldest_age_ms),
        "target": spoken(queue.slo) if queue.slo else "-",
        "scheduled": vitals.size("scheduled"),
        "overdue": vitals.overdue,
        "waiting": vitals.size("waiting"),
        "running": vitals.size("running"),
        "stuck": vitals.stuck if _is_counted(queue) else f"~{vitals.stuck:,}",
        "dead": vitals.size("dead"),
        "workers": queue.workers,
    }


def _rates(queue: QueueHealth) -> dict[str, object]:
    rates = queue.vitals.rates.get("5m")
    return {
        "in/min": _rate(rates, "enqueued"),
        "out/min": _rate(rates, "done"),
        "failed/min": _rate(rates, "failed"),
        "clears in": _clears(queue.vitals, rates),
    }


def _is_counted(queue: QueueHealth) -> bool:
    return all(one.exact for one in queue.vitals.states.values() if one.stuck)


def _age(ms: int | None) -> str:
    return "-" if ms is None else spoken(round(ms / 1000))


def _rate(rates: Rates | None, what: str) -> str:
    if rates is None:
        return "-"
    value: float = getattr(rates, what)
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _clears(vitals: Vitals, rates: Rates | None) -> str:
    if not vitals.size("ready"):
        return "-"
    if vitals.clears_in_s is None:
        return "?" if rates is None else "never"
    return spoken(max(1, round(vitals.clears_in_s)))


def _draw_workers(screen: Screen, health: Health) -> None:
    parts = [plural(health.workers, "worker")]
    if health.lost_workers:
        parts.append(f"{len(health.lost_workers)} lost ({', '.join(health.lost_workers[:5])})")
    if health.paused:
        parts.append(f"paused: {', '.join(health.paused)}")
    if health.orphans:
        parts.append(f"{plural(health.orphans, 'orphan')} met so far")
    screen.line("; ".join(parts))


def _draw_tasks(screen: Screen, queues: Sequence[QueueHealth]) -> None:
    rows = [
        (queue.name, load.task, *(n if load.exact or not n else f"~{n:,}" for n in (load.active, load.waiting)))
        for queue in queues
        for load in queue.vitals.tasks
    ]
    if rows:
        screen.table(["queue", "task", "running", "waiting"], rows)
    else:
        screen.line("no job runs or waits")
