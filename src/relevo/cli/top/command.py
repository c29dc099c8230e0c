"""`relevo top`: queues, rates, workers, running jobs and failures, live in a terminal."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from msgspec import Struct

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command, pause
from relevo.cli.screen import Screen
from relevo.cli.top.look import Look, Pace, looking, paces, together
from relevo.cli.top.view import draw
from relevo.errors import StoreError

#: Looks whose rates are drawn as bars.
REMEMBERED = 40


class Report(Struct, frozen=True):
    """One look with its rates, and the JSON output."""

    look: Look
    #: Seconds between the two looks.
    seconds: float
    per_second: dict[str, Pace]


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "top",
        "watch queues, rates, workers, running jobs and failures",
        about="""
        Refreshes until q or Ctrl-C; the space bar refreshes at once. Without a terminal, or with --once, it looks
        twice, some seconds apart, and prints what happened in between.

        Exit code 0: fine. 1: the app is unknown. 2: the server cannot be reached.
        """,
        examples="""
        relevo top -A shop:app
        relevo top --name shop --env prod --every 5
        relevo top --name shop --once --json            one report with rates, for a script
        """,
    )
    parser.add_argument("--every", type=pause, default=2.0, metavar="SECONDS", help="between two looks (default: 2)")
    parser.add_argument("--once", action="store_true", help="one report, then end")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Read and draw until it is stopped."""
    screen = Screen()
    with closing(target.find(args)) as app:
        if args.once or args.json or not screen.is_live:
            return _once(screen, app, args)
        _watch(screen, app, args.every)
    return Exit.OK


def _once(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    before = app.engine.run(looking(app))
    time.sleep(args.every)
    after = app.engine.run(looking(app))
    found = paces(before, after)
    if args.json:
        screen.json(Report(after, (after.now_ms - before.now_ms) / 1000, found or {}))
    else:
        draw(screen, after, found, ())
    return Exit.WARNING if after.warning else Exit.OK


def _watch(screen: Screen, app: Relevo, every: float) -> None:
    before: Look | None = None
    went: deque[float] = deque(maxlen=REMEMBERED)
    with _keys() as wait, screen.replacing(whole=True) as replace:
        replace(partial(screen.line, "looking …", "dim"))  # a server that hangs takes some seconds
        while True:
            try:
                after = app.engine.client.run(looking(app), patience=0)
            except StoreError as error:  # an outage is part of the display: show it and try again
                replace(partial(screen.line, str(error), "bold red"))
            else:
                found = paces(before, after)
                if found:
                    went.append(together(found).done)
                before = after
                replace(partial(draw, screen, after, found, went, height=screen.height))
            if "q" in wait(every):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Wait for some seconds or until keys are pressed; returns them. The terminal then sends keys without Enter."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    as_it_was = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield _pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, as_it_was)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _pressed(seconds: float) -> str:
    # All keys, bypassing Python's buffer: select does not see what it holds.
    some = os.read(sys.stdin.fileno(), 1024) if select.select([sys.stdin], [], [], seconds)[0] else b""
    return some.decode(errors="replace")
