"""`relevo cleanup`: remove the remains of a conversation of the bus, or what is no longer served or used."""

from __future__ import annotations

import argparse
from contextlib import closing

import msgspec

from relevo.app import Relevo
from relevo.bus.conversations import Cleaned
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import Screen, plural
from relevo.cli.words import add_name
from relevo.errors import ConfigurationError
from relevo.upkeep.cli.purge import as_json
from relevo.upkeep.report import UpkeepReport


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "cleanup",
        "remove the rest of a conversation of the bus, or orphans",
        about="""
        Of a conversation: its records, results and logs. What waits or runs is in use and stays, and so do dead
        letters, unless --dead is given. Orphans are subscriptions and queues that have not been served or used for
        long; they are only shown, unless --yes is given.

        Exit code 1: something stays that needs attention.
        """,
        examples="""
        relevo cleanup chat_7 --dry-run                  what would be removed
        relevo cleanup chat_7
        relevo cleanup chat_7 --dead                     dead letters, too
        relevo cleanup --orphans                         only shows them
        relevo cleanup --orphans --yes
        """,
    )
    add_name(
        parser,
        "conversation",
        metavar="CONVERSATION",
        nargs="?",
        help="its id, as it was named when messages were sent",
    )
    parser.add_argument("--dead", action="store_true", help="of a conversation: its dead letters, too")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    parser.add_argument("--orphans", action="store_true", help="what is no longer served or used")
    parser.add_argument("--yes", action="store_true", help="with --orphans: remove them")
    add_json(parser)
    add_app(parser, needed=False)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    _refuse_what_does_not_fit(args)
    screen = Screen()
    with closing(target.find(args, unnamed="relevo")) as app:
        return _orphans(screen, app, args) if args.orphans else _conversation(screen, app, args)


def _refuse_what_does_not_fit(args: argparse.Namespace) -> None:
    if (args.conversation is None) != args.orphans:
        raise ConfigurationError("what is to be cleaned up? Give the id of a conversation, or --orphans; not both")
    if args.orphans and args.dead:
        raise ConfigurationError("--dead is for dead letters of a conversation; a queue that holds some is no orphan")
    if args.yes and not args.orphans:
        raise ConfigurationError("--yes is for --orphans: what is left of a conversation is removed without asking")
    if args.yes and args.dry_run:
        raise ConfigurationError("--yes removes and --dry-run does not: leave one of them out")


def _conversation(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    done = app.conversations.clean(args.conversation, dead=args.dead, dry_run=args.dry_run)
    if done.removed and not done.dry_run:
        app.audit.note(
            "conversation.cleanup", via="cli", count=done.removed, conversation=args.conversation, dead=args.dead
        )
    if args.json:
        totals = {"removed": done.removed, "living": done.living, "dead": done.dead}
        screen.json({**msgspec.to_builtins(done), **totals})
    else:
        _print_conversation(screen, done)
    return Exit.WARNING if done.living or done.dead else Exit.OK


def _print_conversation(screen: Screen, done: Cleaned) -> None:
    verb = "would be removed" if done.dry_run else "removed"
    screen.line(f"conversation {done.conversation}: {done.removed:,} {verb}", "green" if done.removed else "")
    if done.living:
        screen.line(f"left: {plural(done.living, 'message')} in use; what waits or runs is never touched", "yellow")
    if done.dead:
        screen.line(f"left: {plural(done.dead, 'dead letter')}; --dead removes them, too", "yellow")
    if done.queues:
        screen.line()
        screen.table(
            ["queue", "removed", "in use", "dead letters"],
            [(name, one.removed, one.living, one.dead) for name, one in sorted(done.queues.items())],
        )
    else:
        screen.line("nothing is left of it")


def _orphans(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    report = app.sweep(dry_run=not args.yes)
    if report.count and not report.dry_run:
        app.audit.note("orphans.sweep", via="cli", count=report.count)
    if args.json:
        screen.json(as_json(report))
    else:
        _print_orphans(screen, report)
    return Exit.WARNING if report.held or report.skipped else Exit.OK


def _print_orphans(screen: Screen, report: UpkeepReport) -> None:
    if report.skipped:
        screen.line("nothing was looked at: another process is sweeping; try again in a minute", "yellow")
        return
    if not report.purged and not report.held:
        screen.line("no orphans")
        return
    verb = "would be " if report.dry_run else ""
    removed = [(one.kind, one.name, f"{verb}{one.what}", one.reason) for one in report.purged]
    left = [(one.kind, one.name, "left alone", one.why) for one in report.held]
    screen.table(["kind", "name", "what", "why"], [*removed, *left])
    screen.line()
    if not report.dry_run:
        screen.line(f"removed {plural(report.count, 'orphan')}", "green" if report.count else "")
    elif report.count:
        screen.line(f"{plural(report.count, 'orphan')} would be removed: say --yes", "yellow")
    else:
        screen.line("nothing would be removed")
