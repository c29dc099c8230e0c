"""`relevo dead list`, `show` and `groups`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from relevo.app import Relevo
from relevo.cli.dead.filters import filters_of, refuse_unknown_queue
from relevo.cli.exits import Exit
from relevo.cli.job import describe
from relevo.cli.screen import Screen, away, plural
from relevo.dead import DeadRow
from relevo.errors import UnknownJob
from relevo.model.job import State
from relevo.web.shown import shown_job

PAGE = 1000


def letters(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """List them."""
    rows: list[DeadRow] = []
    after = args.after
    while True:
        page = app.dead.page(limit=args.limit - len(rows), after=after, **filters_of(args))
        rows += page.rows
        after = page.after
        if not after or len(rows) == args.limit:
            break
    if not rows:
        refuse_unknown_queue(app, args.queue)
    if args.json:
        screen.json(rows)
    elif rows:
        screen.table(
            ["id", "queue", "task", "ended", "reason", "error"],
            [(row.id, row.queue, row.task, away(row.ended_ms), _reason(row), row.error) for row in rows],
        )
    else:
        screen.line("no dead letters")
    if after:  # not on standard output, which has one table or one JSON value and nothing else
        print(f"there may be more: --after {after}", file=sys.stderr)
    return Exit.OK


def _reason(row: DeadRow) -> str:
    return f"{row.reason} (for good)" if row.permanent and row.reason != "permanent" else row.reason


def matching(app: Relevo, args: argparse.Namespace) -> list[DeadRow]:
    """All that fit, gathered before any is touched: what is retried leaves the list."""
    rows: list[DeadRow] = []
    for row in _each(app, args):
        rows.append(row)
        if len(rows) == args.limit:
            break
    return rows


def _each(app: Relevo, args: argparse.Namespace) -> Iterator[DeadRow]:
    after = ""
    while True:
        page = app.dead.page(limit=PAGE, after=after, **filters_of(args))
        yield from page.rows
        after = page.after
        if not after:
            return


def show(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """One of them with its story."""
    info = shown_job(app, app.dead.show(args.id, queue=args.queue))
    if info.state is not State.DEAD:
        raise UnknownJob(f"job {info.id} is {info.state.value}, not a dead letter; `relevo job {info.id}` shows it")
    if args.json:
        screen.json(info)
    else:
        describe(screen, info)
    return Exit.OK


def groups(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Those that died alike, the largest group first."""
    found = app.dead.groups(args.queue, limit=args.limit)
    if not found:
        refuse_unknown_queue(app, args.queue)
    if args.json:
        screen.json(found)
    elif found:
        screen.table(
            ["group", "count", "last hour", "trend", "first", "last", "tasks", "tenants", "error"],
            [
                (
                    one.fingerprint,
                    one.count,
                    one.recent,
                    one.trend,
                    away(one.first_ms),
                    away(one.last_ms),
                    _some(one.tasks),
                    _some(one.tenants),
                    f"{one.error or one.reason}{' (for good)' if one.permanent else ''}",
                )
                for one in found
            ],
        )
        screen.line(f"\n{plural(sum(one.count for one in found), 'dead letter')} of {plural(len(found), 'kind')}")
    else:
        screen.line("no dead letters")
    return Exit.OK


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")
