"""`relevo conversation`: what was made in a conversation of the bus and still exists."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from relevo.bus.conversations import LISTED, Made
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import Screen, away, plural
from relevo.cli.words import add_name
from relevo.errors import UnknownJob
from relevo.workflows.cli_tree import SIGNS

#: Messages listed without --all.
ROOM = 50


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "conversation",
        "show the messages of a conversation of the bus",
        about="""
        Messages that were sent with conversation=ID, and what was made while they were handled, as far as it still
        exists: active, if it waits or runs, else inactive, which are records that expire by themselves or are removed
        by `relevo cleanup ID`.

        Exit code 1: there is nothing.
        """,
        examples="""
        relevo conversation chat_7
        relevo conversation chat_7 --env prod --json
        relevo conversation chat_7 --all                         every message
        """,
    )
    add_name(parser, "id", metavar="ID", help="the conversation, as it was named when its messages were sent")
    parser.add_argument("--all", action="store_true", help=f"list every message, not only the newest {ROOM}")
    add_json(parser)
    add_app(parser, needed=False)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    with closing(target.find(args, unnamed="relevo")) as app:
        found = app.conversations.list(args.id)
        if not found:
            raise UnknownJob(
                f"nothing of conversation {args.id!r:.80} exists: it never did, all has ended, or it was cleaned up; "
                "`relevo trace` may know what became of it"
            )
    if args.json:
        screen.json(_fields(args.id, found))
    else:
        _draw(screen, args.id, found, None if args.all else ROOM)
    return Exit.OK


def _by_queue(found: Sequence[Made]) -> dict[tuple[str, str], Counter[str]]:
    """How many are in which state, by kind and queue."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for one in sorted(found, key=lambda one: (one.kind, one.queue)):
        counts.setdefault((one.kind, one.queue), Counter())[one.state.value] += 1
    return counts


def _active(states: Counter[str]) -> int:
    return sum(count for state, count in states.items() if state not in _ENDED)


_ENDED = {state.value for state in SIGNS if state.has_ended}


def _fields(id: str, found: Sequence[Made]) -> dict[str, Any]:
    active = sum(not one.state.has_ended for one in found)
    return {
        "conversation": id,
        "active": active,
        "inactive": len(found) - active,
        "queues": [
            {
                "kind": kind,
                "queue": queue,
                "active": _active(states),
                "inactive": states.total() - _active(states),
                "states": states,
            }
            for (kind, queue), states in _by_queue(found).items()
        ],
        "made": found,
    }


def _draw(screen: Screen, id: str, found: Sequence[Made], room: int | None) -> None:
    active = sum(not one.state.has_ended for one in found)
    more = ", the first of them" if len(found) >= LISTED else ""
    screen.line(
        f"conversation {id}: {plural(len(found), 'message')}{more}, {active:,} active", "cyan" if active else ""
    )
    screen.line()
    screen.table(
        ["kind", "queue", "active", "inactive", "states"],
        [
            (kind, queue, _active(states), states.total() - _active(states), _by_state(states))
            for (kind, queue), states in _by_queue(found).items()
        ],
    )
    screen.line()
    shown = found if room is None else found[-room:]
    if len(shown) < len(found):
        screen.line(f"… {len(found) - len(shown):,} older; --all shows them", "dim")
    screen.table(
        ["id", "type", "state", "made"],
        [(one.id, one.type or None, f"{SIGNS[one.state][0]} {one.state.value}", away(one.made_ms)) for one in shown],
    )


def _by_state(states: Counter[str]) -> str:
    return ", ".join(f"{states[state.value]:,} {state.value}" for state in SIGNS if states[state.value])
