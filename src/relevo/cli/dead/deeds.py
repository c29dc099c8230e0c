"""`relevo dead retry`, `discard`, `restore` and `edit`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.cli.dead import runs
from relevo.cli.dead.filters import is_filtered, refuse_unknown_queue, said
from relevo.cli.dead.looking import matching
from relevo.cli.exits import Exit
from relevo.cli.screen import Screen, plural
from relevo.dead import DeadRow
from relevo.errors import ConfigurationError

_DONE = {"retry": "retried", "discard": "discarded", "restore": "restored"}


def each(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Retry or discard: some by their ids, or all that fit."""
    if bool(args.ids) == args.all:
        raise ConfigurationError("which dead letters? Give their ids, or --all; not both")
    if args.ids and (is_filtered(args) or args.limit or args.yes):
        raise ConfigurationError("filters, --limit and --yes go with --all; ids name the dead letters already")
    is_run = args.action == "retry" and bool(args.rate or args.canary)
    if is_run and (args.ids or args.limit):
        raise ConfigurationError("--rate and --canary go with --all, and without --limit")
    if is_run and args.yes:  # nobody need be told how many: they are looked at on the way
        refuse_unknown_queue(app, args.queue)
        return runs.begin(screen, app, args)
    if args.ids:
        wanted = [(id, args.queue) for id in dict.fromkeys(args.ids)]
    else:
        rows = matching(app, args)
        if not rows:
            refuse_unknown_queue(app, args.queue)
        elif not args.yes and not _confirmed(args.action, rows):
            print("nothing was done", file=sys.stderr)
            return Exit.WARNING
        if is_run and rows:
            return runs.begin(screen, app, args)
        wanted = [(row.id, row.queue) for row in rows]
    left = _perform(_deed(app, args), wanted)
    return _report(screen, app, args, left, len(wanted))


def _deed(app: Relevo, args: argparse.Namespace) -> Callable[[str, str | None], int]:
    if args.action == "retry":
        return lambda letter, queue: app.dead.retry([letter], queue=queue)
    return lambda letter, queue: app.dead.discard([letter], queue=queue, undo=not args.no_undo)


def _perform(deed: Callable[[str, str | None], int], wanted: list[tuple[str, str | None]]) -> list[str]:
    """Do it to one after the other, and say how far it is; the ids it could not be done to."""
    left = []
    with runs.Progress() as progress:
        for number, (id, queue) in enumerate(wanted, 1):
            if not deed(id, queue):
                left.append(id)
            progress.tell(f"{number:,} of {len(wanted):,}")
    return left


def _report(screen: Screen, app: Relevo, args: argparse.Namespace, left: list[str], asked: int) -> int:
    count = asked - len(left)
    if count:
        app.audit.note(f"dead.{args.action}", via="cli", count=count, **said(args))
    if args.json:
        screen.json({_DONE[args.action]: count, "left": left})
    else:
        screen.line(f"{_DONE[args.action]} {plural(count, 'dead letter')}")
        if args.action == "discard" and count and not args.no_undo:
            print("for ten minutes `relevo dead restore` brings them back", file=sys.stderr)
        for id in left:
            screen.line(
                f"left: {id} is not a dead letter{'' if args.ids else ' any more, or cannot run again'}", "yellow"
            )
    return Exit.WARNING if left else Exit.OK


def _confirmed(action: str, rows: list[DeadRow]) -> bool:
    queues = len({row.queue for row in rows})
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"this would {action} {plural(len(rows), 'dead letter')} and there is nobody to ask: say --yes"
        )
    print(f"{action} {plural(len(rows), 'dead letter')} of {plural(queues, 'queue')}? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def restore(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Bring back what was discarded."""
    if bool(args.ids) == args.all:
        raise ConfigurationError("which letters? Give their ids, or --all; not both")
    if args.all:
        count = app.dead.restore(all=True, queue=args.queue)
        left: list[str] = []
    else:
        ids = list(dict.fromkeys(args.ids))
        left = [id for id in ids if not app.dead.restore([id], queue=args.queue)]
        count = len(ids) - len(left)
    if count:
        app.audit.note("dead.restore", via="cli", count=count, queue=args.queue)
    if args.json:
        screen.json({"restored": count, "left": left})
    else:
        screen.line(f"restored {plural(count, 'dead letter')}")
        for id in left:
            screen.line(f"left: {id} was not discarded in the last ten minutes", "yellow")
    return Exit.WARNING if left or not count else Exit.OK


def edit(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Run one with other arguments."""
    given = {name: _json(f"--{name}", getattr(args, name)) for name in ("args", "kwargs")}
    if given["args"] is None and given["kwargs"] is None:
        raise ConfigurationError("give --args, --kwargs or both; `relevo dead retry` runs a letter as it is")
    job = app.dead.edit(args.id, args=given["args"], kwargs=given["kwargs"], queue=args.queue)
    app.audit.note("dead.edit", via="cli", queue=job.queue, letter=args.id, job=job.id)
    if args.json:
        screen.json({"job": job.id, "queue": job.queue, "origin": args.id})
    else:
        screen.line(f"job {job.id} takes the place of {args.id}")
    return Exit.OK


def _json(option: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{option}: this is no JSON: {error}") from error
