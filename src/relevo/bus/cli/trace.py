"""`relevo trace`: the path of an operation through all services, as a timeline."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from msgspec.structs import asdict

from relevo.app import Relevo
from relevo.bus.cli import trace_view as view
from relevo.bus.span import Span
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import Screen
from relevo.cli.words import add_name
from relevo.errors import UnknownJob


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "trace",
        "show the path of an operation through all services",
        about="""
        Every attempt to handle one of its messages, below the message that caused it: when it was sent, how long it
        waited and ran, and its outcome. Workers write this down every second; the newest are kept.

        Exit code 1: nothing is known of it.
        """,
        examples="""
        relevo trace chat_7                              a conversation, or a correlation id that was given
        relevo trace 01k9q4w2zhq3mf7d0a2f                a message: shows the operation it is part of
        relevo trace chat_7 --env prod --json
        """,
    )
    add_name(parser, "id", metavar="ID", help="the correlation id, the conversation, or the id of a message")
    parser.add_argument("--all", action="store_true", help=f"every attempt, not only the first {view.ROOM}")
    add_json(parser)
    add_app(parser, needed=False)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    with closing(target.find(args, unnamed="relevo")) as app:
        spans = gather(app, args.id)
        now_ms = app.engine.run(app.engine.now_ms())
        if not spans:
            raise UnknownJob(_why(args.id, app.settings.trace_max))
    rows = view.rows(spans, now_ms)
    if args.json:
        screen.json(_fields(args.id, rows, now_ms))
    else:
        view.draw(screen, args.id, rows, now_ms, None if args.all else view.ROOM)
    return Exit.OK


def gather(app: Relevo, id: str) -> list[Span]:
    """All that is known of an operation; given a message, of the operation it is part of."""
    found = app.conversations.trace(id)
    operations = {span.correlation for span in found}
    others = {span.correlation for span in found if id not in (span.correlation, span.conversation)}
    others |= {span.conversation for span in found if span.conversation}  # finds its messages that still wait or run
    for other in sorted(others - {id}):
        found += [span for span in app.conversations.trace(other) if span.correlation in operations]
    unique = {(span.queue, span.id, span.attempt, span.outcome, span.started_ms): span for span in found}
    return [*unique.values()]


def _why(id: str, kept: int) -> str:
    known = (
        f"it never existed, it is older than the newest {kept:,} messages of all services (the setting trace_max), "
        "or it was handled within the last second"
        if kept
        else "the setting trace_max is 0, so that outcomes of messages are not written down"
    )
    return (
        f"nothing is known of an operation, a conversation or a message {id!r:.80}: {known}; check --env and the server"
    )


def _fields(id: str, rows: list[view.Row], now_ms: int) -> dict[str, Any]:
    return {
        "id": id,
        "now_ms": now_ms,
        "began_ms": min(row.since_ms for row in rows),
        "ended_ms": max(row.until_ms for row in rows) if not any(row.is_open for row in rows) else None,
        "open": sum(row.is_open for row in rows),
        "spans": [
            {**asdict(row.span), "depth": row.depth, "wait_ms": row.wait_ms, "run_ms": row.run_ms} for row in rows
        ],
    }
