"""`relevo audit`: what operators did, newest first."""

from __future__ import annotations

import argparse
from contextlib import closing

from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, add_page, add_stretch, command, next_of, offset_of
from relevo.cli.screen import Screen, away, tell_more


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
        relevo audit --who ana --what dead --of-app shop
        """,
    )
    add_page(parser)
    add_stretch(parser, "done")
    parser.add_argument("--who", metavar="NAME", help="only by ana@host, by ana on any host, or by a token")
    parser.add_argument("--what", metavar="DEED", help="only this: dead.retry, or dead for all on dead letters")
    parser.add_argument("--of-app", metavar="NAME", help="only operations on this app")
    add_json(parser)
    add_app(parser, needed=False)


def run(args: argparse.Namespace) -> int:
    """Read the trail and print it."""
    screen = Screen()
    with closing(target.find(args, unnamed="relevo")) as app:
        which = {"who": args.who, "what": args.what, "app": args.of_app}
        found = app.audit.list(limit=args.limit, offset=offset_of(args), since=args.since, until=args.until, **which)
    if args.json:
        screen.page(found, next_of(found, args))
    elif found:
        screen.table(
            ["when", "who", "via", "app", "what", "count", "about"],
            [(away(one.at_ms), one.who, one.via, one.app, one.what, one.count, _about(one.about)) for one in found],
        )
        tell_more(next_of(found, args))
    else:
        then = "of that kind" if any(which.values()) else "then" if args.since or args.until else "recently"
        screen.line(f"no operator did anything {then}")
    return Exit.OK


def _about(about: dict[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in about.items())
