"""`relevo purge`: show what is in its state for too long, and end or remove it with --yes."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.ending import as_ctrl_c
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command, whole
from relevo.cli.screen import Screen
from relevo.errors import ConfigurationError
from relevo.text.durations import spoken
from relevo.text.nearest import did_you_mean
from relevo.upkeep.purge import purgeable
from relevo.upkeep.report import UpkeepReport


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "purge",
        "show what is in its state for too long; end it with --yes",
        about="""
        Of all queues and pools of the app, by its setting purge_ages. Without --yes it only shows, entry by entry, what
        would be done; a dry run and a live one list the same. Give -A module:app where tasks have failure handlers or
        pools check whether something still exists: an app that is only named has neither.

        Exit code 1: something stays that needs attention: entries of unknown age, entities whose existence could not be
        checked, more than one run acts on, or a queue that another process is purging. Or nothing is known of the app:
        its name or env may be misspelt.
        """,
        examples="""
        relevo purge -A shop:app                         only shows
        relevo purge -A shop:app --queue mails --json
        relevo purge -A shop:app --yes
        """,
    )
    parser.add_argument("--dry-run", action="store_true", help="only show, as without --yes")
    parser.add_argument("--yes", action="store_true", help="do it")
    parser.add_argument("--queue", metavar="NAME", help="only this queue, or this pool")
    parser.add_argument("--limit", type=whole, default=50, metavar="N", help="entries to show (default: 50)")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Look, and act with --yes."""
    if args.yes and args.dry_run:
        raise ConfigurationError("--yes acts and --dry-run does not: leave one of them out")
    screen = Screen()
    with closing(target.find(args)) as app, as_ctrl_c():
        _refuse_unknown(app, args.queue)
        is_known = args.queue is not None or not target.is_unheard_of(app)
        with app.audit.doing("purge.run", via="cli", queue=args.queue) as doing:
            report = app.purge(dry_run=not args.yes, queue=args.queue, watch=doing.tell)
            if args.yes:
                doing.tell(report.count)
    if args.json:
        screen.json(as_json(report))
    elif is_known:
        _print(screen, report, args.limit)
    else:
        screen.line(target.unheard_of(app.name, app.settings.env), "yellow")
    return Exit.WARNING if report.unknown or report.skipped or report.unfinished or not is_known else Exit.OK


def as_json(report: UpkeepReport) -> dict[str, Any]:
    """A report with its totals."""
    groups = msgspec.to_builtins(report.groups())
    return {**msgspec.to_builtins(report), "count": report.count, "bytes": report.bytes, "groups": groups}


def _refuse_unknown(app: Relevo, name: str | None) -> None:
    """Refuse a misspelt queue: nothing in it is too old either, which must not look like good news."""
    if name is not None and name not in (known := app.engine.run(purgeable(app.engine))):
        raise ConfigurationError(
            f"app {app.name!r} has no queue or pool {name!r:.80} in use{did_you_mean(name, known)}"
        )


def _print(screen: Screen, report: UpkeepReport, limit: int) -> None:
    if report.purged:
        screen.table(
            ["kind", "name", "state", "what", "why", "count", "oldest", "bytes"],
            [
                (
                    one.kind,
                    one.name,
                    one.state,
                    one.what,
                    one.reason,
                    one.count,
                    spoken(one.oldest_ms // 1000),
                    one.bytes,
                )
                for one in report.groups()
            ],
        )
        screen.line()
        screen.table(
            ["name", "id", "state", "age", "limit", "what"],
            [
                (one.name, one.id, one.state, spoken(one.age_ms // 1000), spoken(one.limit_ms / 1000), one.what)
                for one in report.purged[:limit]
            ],
        )
        if report.count > limit:
            screen.line(f"and {report.count - limit:,} more; --json shows all")
        screen.line()
    for some in report.unknown:
        screen.line(f"left alone: {some.count:,} of {some.kind} {some.name}, {some.state}: {some.why}", "yellow")
    for held in report.held:
        screen.line(f"left alone: {held.count:,} of {held.kind} {held.name}, {held.state}: {held.why}")
    for name in report.skipped:
        screen.line(f"not looked at: another process is purging {name}; try again in a minute", "yellow")
    for name in report.unfinished:
        screen.line(f"{name} has more than one run acts on: run it again", "yellow")
    if report.spared:
        screen.line(f"spared: {_entries(report.spared)} that changed during the purge")
    if not report.purged:
        is_all = not (report.unknown or report.held or report.skipped)
        screen.line("nothing is too old" if is_all else "nothing else is too old")
    elif report.dry_run:
        screen.line(f"{_entries(report.count)} would be purged: say --yes", "yellow")
    else:
        screen.line(f"purged {_entries(report.count)}", "green")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"
