"""`relevo dead retry`, `discard`, `restore` and `edit`."""

from __future__ import annotations

import argparse
import sys
from itertools import groupby, islice
from typing import Any, TypeAlias

import msgspec

from relevo.app import Relevo
from relevo.cli.exits import Exit
from relevo.cli.progress import Progress
from relevo.cli.screen import Screen, plural
from relevo.dead.choosing import Letters, asked, checked, each_of, each_that_fits
from relevo.dead.cli import replays as runs
from relevo.dead.cli.filters import (
    audit_details,
    filters_of,
    is_filtered,
    refuse_unknown_filters,
    refuse_what_finds_nothing,
)
from relevo.dead.deeds import Bin, Revival
from relevo.engine.engine import Engine
from relevo.errors import ConfigurationError, JobError
from relevo.store.plan import Steps

#: Job ids, with the queue of each where it is known.
Wanted: TypeAlias = list[tuple[str, str | None]]

#: Dead letters listed one by one that could not be acted on: more than fit on a screen are of no use.
_LISTED = 20
_DONE = {"retry": "retried", "discard": "discarded", "restore": "restored"}


def check_which(args: argparse.Namespace) -> None:
    """Refuse a command line that names no dead letters, or names them twice."""
    chooses = args.all or is_filtered(args) or args.limit is not None or getattr(args, "yes", False)
    if args.ids and chooses:
        raise ConfigurationError("ids name the dead letters already: leave them out, or filters, --all, --limit, --yes")
    if not args.ids and not args.all and not is_filtered(args):
        raise ConfigurationError(
            "which dead letters? Give their ids, filters such as --task or --error-group, or --all (of one queue: "
            "--queue NAME --all)"
        )


def each(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Retry or discard: some by their ids, or all that fit."""
    check_which(args)
    is_run = args.action == "retry" and bool(args.rate or args.canary)
    if is_run and (args.ids or args.limit is not None or args.sign):
        raise ConfigurationError("--rate and --canary go with filters or --all, and without --limit and --sign")
    if args.action == "retry" and args.sign and not app.engine.keyring:
        raise ConfigurationError("--sign: there are no signing_keys here to sign with")
    if is_run and args.yes:  # the count is not needed: a replay finds them step by step
        refuse_what_finds_nothing(app, args)
        return runs.begin(screen, app, args)
    if args.ids:
        wanted: Wanted = [(id, args.queue) for id in checked(args.ids)]  # all ids, before the first is acted on
    else:
        wanted = app.engine.run(_gathered(app, args))
        if not wanted:
            refuse_unknown_filters(app, args)
        elif not args.yes and not _confirmed(args.action, wanted):
            print("nothing was done", file=sys.stderr)
            return Exit.WARNING
        if is_run and wanted:
            return runs.begin(screen, app, args)
    return _report(screen, args, len(wanted), *_perform(app, args, wanted))


def _gathered(app: Relevo, args: argparse.Namespace) -> Steps[Wanted]:
    """All that fit, the oldest first, so that their number is known before the first is acted on."""
    found: Wanted = []

    def note(_: Engine, some: Letters) -> Steps[int]:
        found.extend((letter.id, letter.queue) for letter in some)
        yield from ()
        return len(some)

    yield from each_that_fits(app.engine, (yield from asked(app.engine, filters_of(args))), note, args.limit)
    return found


def _perform(app: Relevo, args: argparse.Namespace, wanted: Wanted) -> tuple[int, dict[str, str]]:
    """Act in batches, and show the progress: returns on how many it acted; the ids on which it could not, and why."""
    revival = Revival(sign=args.action == "retry" and args.sign)
    deed = revival.of if args.action == "retry" else Bin(undo=not args.no_undo).of
    met: set[str] = set()

    def noted(engine: Engine, some: Letters) -> Steps[int]:
        met.update(letter.id for letter in some)
        return deed(engine, some)

    done = 0
    with app.audit.doing(f"dead.{args.action}", via="cli", **audit_details(args)) as doing, Progress() as progress:

        def watch(count: int) -> None:
            doing.tell(before + count)
            progress.tell(f"{before + count:,} of {len(wanted):,}")

        for queue, rows in groupby(sorted(wanted, key=_queue_of), _queue_of):
            before = done
            done += app.engine.run(each_of(app.engine, [id for id, _ in rows], queue or None, noted, watch))
    strange = f"is not a dead letter{'' if args.ids else ' any more'}"
    whys = {id: revival.left.get(id) if id in met else f"{id} {strange}" for id, _ in wanted}
    return done, {id: why for id, why in whys.items() if why}


def _queue_of(row: tuple[str, str | None]) -> str:
    return row[1] or ""


def _report(screen: Screen, args: argparse.Namespace, wanted: int, count: int, left: dict[str, str]) -> int:
    taken = wanted - len(left) - count  # another process was faster, between our listing and our action
    if args.json:
        screen.json({_DONE[args.action]: count, "left": [*left]})
    else:
        screen.line(f"{_DONE[args.action]} {plural(count, 'dead letter')}")
        if args.action == "discard" and count and not args.no_undo:
            print("for ten minutes `relevo dead restore` brings them back", file=sys.stderr)
        for why in islice(left.values(), _LISTED):
            screen.line(f"left: {why}", "yellow")
        if len(left) > _LISTED:
            screen.line(f"left: {len(left) - _LISTED:,} more; --json names all of them", "yellow")
        if taken > 0:
            screen.line(f"left: {plural(taken, 'dead letter')} that another process took first", "yellow")
    return Exit.WARNING if left or taken > 0 else Exit.OK


def _confirmed(action: str, rows: Wanted) -> bool:
    queues = len({queue for _, queue in rows})
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"this would {action} {plural(len(rows), 'dead letter')} and there is no terminal to ask: say --yes"
        )
    print(f"{action} {plural(len(rows), 'dead letter')} of {plural(queues, 'queue')}? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def restore(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Restore discarded dead letters."""
    check_which(args)
    left: dict[str, str] = {}
    count = 0
    with app.audit.doing("dead.restore", via="cli", **audit_details(args)) as doing:
        if not args.ids:
            count = app.dead.restore(all=args.all, limit=args.limit, watch=doing.tell, **filters_of(args))
            if not count:
                refuse_unknown_filters(app, args)
        for id in dict.fromkeys(args.ids):
            why = f"{id} was not discarded in the last ten minutes"
            try:
                back = app.dead.restore([id], queue=args.queue)
            except JobError as full:
                back, why = 0, f"{id}: {full}"
            if back:
                count += 1
                doing.tell(count)
            else:
                left[id] = why
    if args.json:
        screen.json({"restored": count, "left": [*left]})
    else:
        screen.line(f"restored {plural(count, 'dead letter')}")
        for why in left.values():
            screen.line(f"left: {why}", "yellow")
    return Exit.WARNING if left or not count else Exit.OK


def edit(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Run a dead letter with other arguments."""
    given = {name: _json(f"--{name}", getattr(args, name)) for name in ("args", "kwargs")}
    if given["args"] is None and given["kwargs"] is None:
        raise ConfigurationError("give --args, --kwargs or both; `relevo dead retry` runs a dead letter as it is")
    job = app.dead.edit(args.id, args=given["args"], kwargs=given["kwargs"], queue=args.queue)
    changed = [name for name, value in given.items() if value is not None]
    app.audit.note("dead.edit", via="cli", id=args.id, queue=job.queue, job=job.id, changed=changed)
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
