"""`relevo limit`: how many jobs of a queue, a task or a tenant run at once, and how fast they start."""

from __future__ import annotations

import argparse
from contextlib import closing

from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import Screen
from relevo.cli.words import add_name
from relevo.errors import ConfigurationError
from relevo.limits.cli.pause import add_force, scope_of


def add(subparsers: Subparsers, called: str = "relevo limit") -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "limit",
        "limit how many jobs run at once, or how fast they start",
        about="""
        Of a queue, of a task or of a tenant in it. Takes effect at once, for all workers together; running jobs
        continue. A limit replaces the one before. `relevo limits` lists them.
        """,
        examples=f"""
        {called} mail --concurrency 50 --name shop
        {called} mail --task shop.send --rate 10/s --burst 20 --name shop
        {called} mail --tenant acme --concurrency 2 --rate 100/m --name shop
        {called} mail --tenant acme --remove --name shop
        """,
    )
    add_name(parser, "queue", metavar="QUEUE")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--task", metavar="TASK", help="only jobs of this task")
    which.add_argument("--tenant", metavar="NAME", help="only jobs of this tenant")
    parser.add_argument("--concurrency", type=int, metavar="N", help="so many run at once")
    parser.add_argument("--rate", metavar="RATE", help="so many start: 10/s, 100/m, 5/h, 1/d")
    parser.add_argument("--burst", type=int, metavar="N", help="so many of them at once, after a while without any")
    parser.add_argument("--remove", action="store_true", help="remove the limit; what is paused stays so")
    add_force(parser)
    parser.set_defaults(schedule=None)
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Set the limit, or remove it."""
    screen = Screen()
    terms = {"concurrency": args.concurrency, "rate": args.rate, "burst": args.burst}
    is_given = any(one is not None for one in terms.values())
    if args.remove == is_given:
        raise ConfigurationError("give --concurrency, --rate or both; or --remove")
    with closing(target.find(args)) as app:
        scope, queue = scope_of(app, args), app.queue(args.queue)
        if args.remove:
            changed = queue.unlimit(args.tenant, task=args.task)
        else:
            changed = queue.limit(args.tenant, task=args.task, **terms)
        deed, details = scope.deed("unlimit" if args.remove else "limit")
        app.audit.note(deed, via="cli", count=int(changed), **details, **terms)
        if args.json:
            screen.json({"kind": scope.kind, "name": scope.name, "queue": args.queue, "changed": changed})
        elif args.remove:
            screen.line(f"{scope} has no limit any more" if changed else f"{scope} had no limit")
        else:
            screen.line(f"limited {scope}" if changed else f"{scope} had this limit already")
    return Exit.OK
