"""How health is shown to people: the status and its reasons first, then a line for each queue."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.cli.screen import Screen, away, plural
from relevo.model.durations import spoken
from relevo.model.health import Health, QueueHealth, Status
from relevo.model.vitals import Rates

STYLES = {
    Status.HEALTHY: "bold green",
    Status.DEGRADED: "bold yellow",
    Status.UNHEALTHY: "bold red",
    Status.UNKNOWN: "bold magenta",
}
SIGNS = {Status.HEALTHY: "✓", Status.DEGRADED: "▶", Status.UNHEALTHY: "✗", Status.UNKNOWN: "○"}


def draw(screen: Screen, health: Health, *, tasks: bool = False, is_cached: bool = False) -> None:
    """Show all of it."""
    when = f", as found {away(health.checked_at_ms)}" if is_cached and health.checked_at_ms else ""
    title = f"{SIGNS[health.status]} {health.status}  app {health.app} in {health.env}{when}"
    screen.line(title, STYLES[health.status])
    for reason in health.reasons:
        screen.line(f"  {SIGNS[reason.status]} {reason.text}", STYLES[reason.status].removeprefix("bold "))
    if health.queues:
        screen.line()
        _draw_queues(screen, health.queues)
        screen.line()
        _draw_workers(screen, health)
    if tasks:
        screen.line()
        _draw_tasks(screen, health.queues)
    if any(not state.exact for queue in health.queues for state in queue.vitals.states.values()):
        screen.line("\n~ estimated from 100 jobs at random")


def _draw_queues(screen: Screen, queues: Sequence[QueueHealth]) -> None:
    head = ["queue", "status", "ready", "oldest", "target", "scheduled", "overdue", "waiting", "running", "stuck"]
    head += ["dead", "in/min", "out/min", "failed/min", "clears in"]
    # A column that says nothing only takes room, and a terminal may have little.
    rows = [_row(queue) for queue in queues]
    empty = {"target": "-", "overdue": 0, "waiting": 0, "scheduled": 0, "failed/min": "0"}
    shown = [i for i, name in enumerate(head) if name not in empty or any(row[i] != empty[name] for row in rows)]
    screen.table([head[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _row(queue: QueueHealth) -> list[object]:
    vitals = queue.vitals
    rates = vitals.rates.get("5m")
    is_exact = all(one.exact for one in vitals.states.values() if one.stuck)
    return [
        queue.name,
        str(queue.status),
        vitals.size("ready"),
        _age(vitals.states["ready"].oldest_age_ms),
        spoken(queue.slo) if queue.slo else "-",
        vitals.size("scheduled"),
        vitals.overdue,
        vitals.size("waiting"),
        vitals.size("running"),
        vitals.stuck if is_exact else f"~{vitals.stuck:,}",
        vitals.size("dead"),
        _rate(rates, "enqueued"),
        _rate(rates, "done"),
        _rate(rates, "failed"),
        _clears(vitals.size("ready"), vitals.clears_in_s, rates),
    ]


def _age(ms: int | None) -> str:
    return "-" if ms is None else spoken(round(ms / 1000))


def _rate(rates: Rates | None, what: str) -> str:
    if rates is None:
        return "-"
    value: float = getattr(rates, what)
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _clears(ready: int, seconds: float | None, rates: Rates | None) -> str:
    if not ready:
        return "-"
    if seconds is None:
        return "?" if rates is None else "never"
    return spoken(round(seconds))


def _draw_workers(screen: Screen, health: Health) -> None:
    said = [plural(health.workers, "worker")]
    if health.lost_workers:
        said.append(f"{len(health.lost_workers)} lost ({', '.join(health.lost_workers[:5])})")
    if health.paused:
        said.append(f"paused: {', '.join(health.paused)}")
    if health.orphans:
        said.append(f"{plural(health.orphans, 'orphan')} met so far")
    screen.line("; ".join(said))


def _draw_tasks(screen: Screen, queues: Sequence[QueueHealth]) -> None:
    rows = [
        (queue.name, load.task, *(count if load.exact else f"~{count:,}" for count in (load.active, load.waiting)))
        for queue in queues
        for load in queue.vitals.tasks
    ]
    if rows:
        screen.table(["queue", "task", "running", "waiting"], rows)
    else:
        screen.line("no job runs or waits")
