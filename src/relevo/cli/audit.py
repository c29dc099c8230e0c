"""`relevo audit`: what operators did, newest first."""

from __future__ import annotations

import argparse
from contextlib import closing

from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, add_stretch, command, whole
from relevo.cli.screen import Screen, away


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "audit",
        "show what operators did, newest first",
        about="Who did what to queues, jobs and dead letters, when, and to how many; of all apps under prefix and env.",
        examples="""
        relevo audit
        relevo audit --env prod --limit 200 --json
        relevo audit --since 2026-11-16T08:00 --until 2h
        """,
    )
    parser.add_argument("--limit", type=whole, default=50, metavar="N", help="at most so many (default: 50)")
    add_stretch(parser, "done")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Look, and show it."""
    screen = Screen()
    with closing(target.find(args, unnamed="relevo")) as app:
        found = app.audit.list(limit=args.limit, since=args.since, until=args.until)
    if args.json:
        screen.json(found)
    elif found:
        screen.table(
            ["when", "who", "via", "app", "what", "count", "about"],
            [(away(one.at_ms), one.who, one.via, one.app, one.what, one.count, _about(one.about)) for one in found],
        )
    else:
        screen.line("no operator did anything " + ("then" if args.since or args.until else "of late"))
    return Exit.OK


def _about(about: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in about.items())
