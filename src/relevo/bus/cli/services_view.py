"""Draws services for people: a table of all, or all details of one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from relevo.bus.catalogue import ActionInfo, Catalogue, QueueInfo, ServiceInfo, SubscriptionInfo
from relevo.bus.cli.schema_view import Shape, signature, structures
from relevo.bus.conversations import Tally
from relevo.cli.screen import Branch, Screen, away, plural
from relevo.text.durations import spoken

#: Columns assumed without a terminal.
ELSEWHERE = 120
#: Columns that are left out if they are empty.
RARE = ("missing", "scheduled", "waiting", "unheard", "paused")
#: Columns that are left out if there is no room for all, one after the other.
SPARED = ("actions", "seen", "load", "live")
#: Seconds: up to which age it is shown to the second, and to the minute. Else to the hour.
_EXACT = ((3_600, 1), (86_400, 60))


def draw_all(screen: Screen, found: Catalogue) -> None:
    """Draw a line for each service, and one for each subscription."""
    subscriptions = [one for service in found.services for one in service.subscriptions]
    names = {service.name for service in found.services}
    also = f", {plural(len(subscriptions), 'subscription')}" if subscriptions else ""
    screen.line(f"bus {found.prefix}:{found.env}: {plural(len(names), 'service')}{also}")
    if found.services:
        screen.line()
        _draw_services(screen, found)
    _draw_subscriptions(screen, subscriptions, found.now_ms)


def _draw_services(screen: Screen, found: Catalogue) -> None:
    services = found.services
    columns: dict[str, list[object]] = {
        "service": [one.label for one in services],
        "live": [len(one.instances) for one in services],
        "load": [f"{one.running:,}/{one.concurrency:,}" if one.instances else None for one in services],
        "actions": [sum(action.served for action in one.actions) for one in services],
        "missing": [sum(not action.served for action in one.actions) for one in services],
        **_sizes([one.queues for one in services], found.now_ms),
    }
    _draw_columns(screen, columns)


def _sizes(rows: Sequence[Sequence[QueueInfo]], now_ms: int) -> dict[str, list[object]]:
    """Sizes of queues, some queues to a row."""
    stats = [[queue.stats for queue in row] for row in rows]
    oldest = [min((queue.oldest_ms for queue in row if queue.oldest_ms), default=None) for row in rows]
    return {
        "ready": [sum(one.ready for one in row) for row in stats],
        "running": [sum(one.running for one in row) for row in stats],
        "scheduled": [sum(one.scheduled for one in row) for row in stats],
        "waiting": [sum(one.waiting for one in row) for row in stats],
        "dead": [sum(one.dead for one in row) for row in stats],
        "oldest": [None if ms is None else _age(now_ms - ms) for ms in oldest],
        "unheard": [sum(one.totals.get("unheard", 0) for one in row) for row in stats],
        "paused": [any(one.paused for one in row) for row in stats],
    }


def _draw_columns(screen: Screen, columns: dict[str, list[object]], rare: Sequence[str] = RARE) -> None:
    """Draw a table; on a narrow terminal without the columns that are shown elsewhere."""
    shown = {name: values for name, values in columns.items() if name not in rare or any(values)}
    for name in SPARED:
        if sum(max(len(head), *(len(f"{one}") for one in cells)) + 2 for head, cells in shown.items()) > width() + 2:
            shown.pop(name, None)
    screen.table([*shown], zip(*shown.values(), strict=True))


def _draw_subscriptions(screen: Screen, subscriptions: Sequence[SubscriptionInfo], now_ms: int) -> None:
    """Draw a line for each; the subscriptions of all processes to one broadcast are one line."""
    if not subscriptions:
        return
    rows: dict[tuple[str, str, str], list[SubscriptionInfo]] = {}
    for one in subscriptions:
        rows.setdefault((one.service, one.pattern, one.kind), []).append(one)
    queues = [[one.queue for one in some] for some in rows.values()]
    sizes = _sizes(queues, now_ms)
    screen.line()
    _draw_columns(
        screen,
        {
            "subscriber": [service for service, _, _ in rows],
            "pattern": [pattern for _, pattern, _ in rows],
            "kind": [kind if kind == "durable" else f"{kind} ({len(some):,})" for (*_, kind), some in rows.items()],
            "backlog": [sum(queue.backlog for queue in some) for some in queues],
            "lag": sizes["oldest"],
            "running": sizes["running"],
            "dead": sizes["dead"],
            "lost": [sum(queue.stats.totals.get("overflow", 0) for queue in some) for some in queues],
            "seen": [away(max(one.seen_ms for one in some)) for some in rows.values()],
            "paused": sizes["paused"],
            "mark": ["warned" if any(one.warned for one in some) else "" for some in rows.values()],
        },
        rare=("running", "dead", "lost", "paused", "mark"),
    )


def draw_tallies(screen: Screen, tallies: Mapping[str, Tally]) -> None:
    """Draw how many messages of each kind were made, and what became of them."""
    names = Tally.__struct_fields__
    rows = [(kind, *(getattr(one, name) for name in names)) for kind, one in sorted(tallies.items()) if one != Tally()]
    if rows:
        screen.line()
        screen.table(["kind", *names], rows)


def draw_one(screen: Screen, found: Catalogue) -> None:
    """Draw all details of a service, in all its contexts."""
    if not found.services:
        return
    screen.line(f"service {found.services[0].name}", "bold")
    instances = {one.id: one for service in found.services for one in service.instances}.values()
    taken, places = sum(one.running for one in instances), sum(one.concurrency for one in instances)
    state = f"{len(instances)} live, {taken:,} of {plural(places, 'place')} taken" if instances else "none live"
    screen.fields([("instances", state)])
    # Most contexts are served by the same code: equal actions are shown once.
    same: dict[bytes, list[ServiceInfo]] = {}
    for service in found.services:
        if service.actions:
            same.setdefault(msgspec.json.encode(service.actions), []).append(service)
    for some in same.values():
        of = "" if len(same) == 1 else " of " + ", ".join(service.label for service in some)
        _draw_actions(screen, some[0].actions, of)
    queues = [queue for service in found.services for queue in service.queues]
    if queues:
        screen.line()
        names: dict[str, list[object]] = {"queue": [queue.stats.name for queue in queues]}
        live: dict[str, list[object]] = {"live": [queue.instances for queue in queues]}
        _draw_columns(screen, {**names, **live, **_sizes([[queue] for queue in queues], found.now_ms)})
    _draw_subscriptions(screen, [one for service in found.services for one in service.subscriptions], found.now_ms)
    if instances:
        screen.line()
        screen.table(
            ["instance", "host", "process", "running", "done", "failed", "since"],
            [(w.id, w.host, str(w.pid), w.running, w.done, w.failed, away(w.started_ms)) for w in instances],
        )


def _draw_actions(screen: Screen, actions: Sequence[ActionInfo], of: str) -> None:
    served = [one for one in actions if one.served]
    missing = [one for one in actions if not one.served]
    if served:
        screen.line(f"\nactions{of}")
        _draw_each(screen, served, "bold cyan")
    if missing:
        screen.line(f"\nmissing: actions{of} that are no longer served", "yellow")
        _draw_each(screen, missing, "yellow")
    named = dict.fromkeys(shape for one in actions for shape in structures(one.takes, one.gives))
    if named:
        screen.line("\nwhere")
        for shape in named:
            _draw_shape(screen, shape, "cyan")


def _draw_each(screen: Screen, actions: Iterable[ActionInfo], style: str) -> None:
    for one in actions:
        _draw_shape(screen, signature(one.name, one.takes, one.gives), style)
        if one.about:
            screen.line(f"      {one.about}", "dim")


def _draw_shape(screen: Screen, shape: Shape, style: str) -> None:
    first, *more = shape.lines(width() - 2)
    screen.forest([Branch([("  ", ""), (shape.name, style), (first.removeprefix(shape.name), "")])])
    for line in more:
        screen.line(f"  {line}")


def width() -> int:
    """Columns available."""
    return shutil.get_terminal_size((ELSEWHERE, 40)).columns if sys.stdout.isatty() else ELSEWHERE


def _age(ms: int) -> str:
    seconds = max(0, ms) // 1000
    unit = next((unit for limit, unit in _EXACT if seconds < limit), 3_600)
    return spoken(seconds // unit * unit)
