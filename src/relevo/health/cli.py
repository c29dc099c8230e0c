"""`relevo health`: whether an app is healthy, and why not, for people and for monitors."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing, suppress

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command, pause
from relevo.cli.screen import Screen
from relevo.cli.status import PATIENCE
from relevo.errors import ConfigurationError, StoreError
from relevo.health.cli_view import draw
from relevo.health.gathering import cached, gathering, keeping
from relevo.health.status import Health, Status

CODES = {
    Status.HEALTHY: Exit.OK,
    Status.DEGRADED: Exit.WARNING,
    Status.UNHEALTHY: Exit.CRITICAL,
    Status.UNKNOWN: Exit.CRITICAL,
}


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "health",
        "show whether an app is healthy, and why not",
        about="""
        Sizes, ages, stuck jobs and rates of every queue, judged by the setting `health_limits`.
        Exit code 0: healthy. 1: degraded. 2: unhealthy, unknown (no recent look, or no such app), or the server
        cannot be reached.
        """,
        examples="""
        relevo health -A shop:app
        relevo health --name shop --env prod --json     for a monitor: imports nothing
        relevo health --name shop --cached              what a worker found last (setting `health`)
        relevo health --name shop --watch 5             look again every five seconds
        """,
    )
    parser.add_argument("--cached", action="store_true", help="what a worker found last, instead of looking now")
    parser.add_argument("--tasks", action="store_true", help="also how many jobs of each task run and wait")
    parser.add_argument("--watch", type=pause, nargs="?", const=2.0, metavar="SECONDS", help="refresh until Ctrl-C")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Look, and show it."""
    if args.watch and (args.json or not sys.stdout.isatty()):
        raise ConfigurationError("--watch refreshes a terminal: leave it out when output is JSON or goes elsewhere")
    screen = Screen()
    with closing(target.find(args)) as app:
        if args.watch:
            _watch(screen, app, args)
        found = look(app, is_cached=args.cached)
        if args.json:
            screen.json(found)
        else:
            draw(screen, found, tasks=args.tasks, is_cached=args.cached)
        return CODES[found.status]


def look(app: Relevo, *, is_cached: bool) -> Health:
    """Ask the server; a monitor needs to know that it is unreachable, not to wait for it."""
    found = app.engine.client.run(cached(app.engine) if is_cached else gathering(app.engine), patience=PATIENCE)
    if not is_cached:
        with suppress(StoreError):  # a read-only user keeps nothing
            app.engine.client.run(keeping(app.engine, found), patience=0)
    return found


def _watch(screen: Screen, app: Relevo, args: argparse.Namespace) -> None:
    while True:  # until Ctrl-C
        try:
            found = look(app, is_cached=args.cached)
        except StoreError as error:  # part of what is watched: show it and look again
            screen.clear()
            screen.line(str(error), "bold red")
        else:
            screen.clear()
            draw(screen, found, tasks=args.tasks, is_cached=args.cached)
        time.sleep(args.watch)
