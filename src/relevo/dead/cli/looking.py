"""`relevo dead list`, `show` and `error-groups`."""

from __future__ import annotations

import argparse

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import next_of, offset_of
from relevo.cli.refusing import refuse_unknown_queue
from relevo.cli.screen import Screen, away, plural, tell_more
from relevo.dead.cli.filters import filters_of, refuse_unknown_filters
from relevo.dead.paging import DeadRow, paging
from relevo.engine.cli_view import describe
from relevo.engine.engine import Engine
from relevo.engine.job import State
from relevo.engine.lists import listed_queues
from relevo.errors import UnknownJob
from relevo.queues.store import QueueStats, count
from relevo.store.plan import Ahead, Steps
from relevo.text.names import is_pool_name
from relevo.web.shown import shown_job


def letters(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """List them."""
    page = app.engine.run(paging(app.engine, filters_of(args), limit=args.limit, after=args.after))
    rows = page.rows
    if not rows:
        refuse_unknown_filters(app, args)
    if args.json:
        screen.page(rows, page.after or None)
    elif rows:
        screen.columns(
            {
                "id": [row.id for row in rows],
                "queue": [row.queue for row in rows],
                "task": [_task(row) for row in rows],
                "ended": [away(row.ended_ms) for row in rows],
                "reason": [row.reason for row in rows],
                "permanent": [row.permanent for row in rows],
                "error": [row.error for row in rows],
            },
            spare=["queue", "reason" if all(row.error for row in rows) else "error"],
        )
    else:
        screen.line("no dead letters")
    if not args.json:
        tell_more(page.after)
    return Exit.OK if rows else target.code_of_nothing(app)


def _task(row: DeadRow) -> str:
    """Its task; in a pool, also the entity."""
    return f"{row.task} {row.name}" if is_pool_name(row.queue) else row.task


def show(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Show one of them with its history."""
    info = shown_job(app, app.dead.show(args.id, queue=args.queue))
    if info.state is not State.DEAD:
        raise UnknownJob(f"job {info.id} is {info.state.value}, not a dead letter; `relevo job {info.id}` shows it")
    if args.json:
        screen.json(info)
    else:
        describe(screen, info)
    return Exit.OK


def error_groups(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Show the error groups, the largest first."""
    found = app.dead.error_groups(args.queue, permanent=args.permanent, limit=args.limit, offset=offset_of(args))
    if not found:
        refuse_unknown_queue(app, args.queue)
    if args.json:
        screen.page(found, next_of(found, args))
    elif found:
        screen.columns(
            {
                "group": [one.fingerprint for one in found],
                "count": [one.count for one in found],
                "last hour": [one.recent for one in found],
                "trend": [one.trend for one in found],
                "permanent": [one.permanent for one in found],
                "first": [away(one.first_ms) for one in found],
                "last": [away(one.last_ms) for one in found],
                "tasks": [_some(one.tasks) for one in found],
                "tenants": [_some(one.tenants) for one in found],
                "error": [one.error or one.reason for one in found],
            },
            spare=["first", "last hour", "tenants", "tasks"],
        )
        tell_more(next_of(found, args))
        screen.line(f"\n{plural(sum(one.count for one in found), 'dead letter')} of {plural(len(found), 'kind')}")
        _draw_dropped(screen, app, args.queue)
    else:
        screen.line("no dead letters")
    return Exit.OK if found else target.code_of_nothing(app)


def _draw_dropped(screen: Screen, app: Relevo, queue: str | None) -> None:
    """What is not among them any more."""
    for one in app.engine.run(_counted(app.engine, queue)):
        if dropped := one.totals.get("dropped"):
            most = app.settings.dead_max
            text = f"{one.name}: {plural(dropped, 'older one')} dropped, because it had more than {most:,} (dead_max)"
            screen.line(text, "yellow")


def _counted(engine: Engine, queue: str | None) -> Steps[list[QueueStats]]:
    names = yield from listed_queues(engine, queue)
    stats: list[QueueStats] = yield Ahead(count(engine.keys_of(name), name) for name in names)
    return stats


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")
