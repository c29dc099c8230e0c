"""`relevo limits`: what has a limit, is paused or has an open breaker, and the state of each limit."""

from __future__ import annotations

import argparse
from contextlib import closing

import msgspec

from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.refusing import refuse_unknown_queue
from relevo.cli.screen import Screen
from relevo.cli.words import add_name
from relevo.limits.store import LimitInfo


def add(subparsers: Subparsers, called: str = "relevo limits") -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "limits",
        "list the limits, and how many jobs wait because of them",
        examples=f"""
        {called} --name shop
        {called} mail --name shop --json
        """,
    )
    add_name(parser, "queue", nargs="?", metavar="QUEUE", help="of this queue only")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """List them."""
    screen = Screen()
    with closing(target.find(args)) as app:
        refuse_unknown_queue(app, args.queue)
        names = app.queues() if args.queue is None else [args.queue]
        rows = [(name, one) for name in names for one in app.queue(name).limits()]
        if args.json:
            screen.page([{"queue": name, "kind": one.kind, **msgspec.structs.asdict(one)} for name, one in rows])
        elif rows:
            screen.table(
                ["queue", "limit of", "at once", "rate", "burst", "running", "parked", "state"],
                [
                    (name, _what(one), one.concurrency, one.rate, one.burst, one.running, one.parked, _state(one))
                    for name, one in rows
                ],
            )
        else:
            screen.line("no limits")
        return Exit.OK if rows else target.code_of_nothing(app)


def _what(one: LimitInfo) -> str:
    return f"{one.kind} {one.task or one.tenant}" if one.kind != "queue" else "the queue"


def _state(one: LimitInfo) -> str:
    breaker = {"": "", "open": "breaker open", "half_open": "breaker half open"}[one.breaker]
    origin = "" if not one.default else f"instead of {one.default}" if one.is_overridden else "from the code"
    return ", ".join(filter(None, ("paused" if one.paused else "", breaker, origin)))
