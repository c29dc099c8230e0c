"""`relevo dead`: look through the dead letters, run them again, or forget them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import closing

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.job import describe
from relevo.cli.options import Subparsers, add_app, add_json, command, whole
from relevo.cli.screen import Screen, away, plural
from relevo.dead import DeadRow
from relevo.errors import ConfigurationError, UnknownJob
from relevo.model.job import State
from relevo.model.nearest import did_you_mean
from relevo.web.shown import shown_job

PAGE = 1000
_DONE = {"retry": "retried", "discard": "discarded"}


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "dead",
        "list, show, retry or discard dead letters",
        about="Dead letters are jobs that were given up, kept with their whole story.",
        examples="""
        relevo dead list -A shop:app --error Timeout
        relevo dead show 01k9q4w2zhq3mf7d0a2f --name shop
        relevo dead retry 01k9q4w2zhq3mf7d0a2f --name shop
        relevo dead retry --all --queue mails --error Timeout --yes --name shop
        relevo dead discard --all --name shop            asks first
        """,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    listing = command(actions, "list", "newest first", examples="relevo dead list --name shop --limit 20")
    listing.add_argument("--limit", type=whole, default=50, metavar="N", help="at most so many (default: 50)")
    show = command(
        actions, "show", "one of them with its story", examples="relevo dead show 01k9q4w2zhq3mf7d0a2f --name shop"
    )
    show.add_argument("id", metavar="ID")
    retry = command(
        actions, "retry", "run them again, from the start", examples="relevo dead retry --all --yes --name shop"
    )
    discard = command(
        actions, "discard", "forget them", examples="relevo dead discard 01k9q4w2zhq3mf7d0a2f --name shop"
    )
    for deed in (retry, discard):
        deed.add_argument("ids", metavar="ID", nargs="*")
        deed.add_argument("--all", action="store_true", help="all that --queue, --error and --limit leave")
        deed.add_argument("--yes", action="store_true", help="with --all: do not ask")
        deed.add_argument("--limit", type=whole, metavar="N", help="with --all: at most so many, newest first")
    for one in (listing, show, retry, discard):
        one.add_argument("--queue", metavar="NAME", help="only of this queue")
        if one is not show:
            one.add_argument("--error", metavar="TEXT", help="only where the reason or the error holds this text")
        add_json(one)
        add_app(one)


def run(args: argparse.Namespace) -> int:
    """Do what is asked."""
    screen = Screen()
    with closing(target.find(args)) as app:
        match args.action:
            case "list":
                return _list(screen, app, args)
            case "show":
                return _show(screen, app, args)
            case _:
                return _each(screen, app, args)


def _list(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    rows = app.dead.list(queue=args.queue, error=args.error, limit=args.limit)
    if not rows:
        _refuse_unknown_queue(app, args.queue)
    if args.json:
        screen.json(rows)
    elif rows:
        screen.table(
            ["id", "queue", "task", "ended", "reason", "error"],
            [(row.id, row.queue, row.task, away(row.ended_ms), row.reason, row.error) for row in rows],
        )
    else:
        screen.line("no dead letters")
    return Exit.OK


def _refuse_unknown_queue(app: Relevo, queue: str | None) -> None:
    """A misspelt queue has no dead letters either; that must not look like good news."""
    if queue is not None and queue not in (known := app.queues()):
        raise ConfigurationError(f"app {app.name!r} has no queue {queue!r} in use{did_you_mean(queue, known)}")


def _show(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    info = shown_job(app, app.dead.show(args.id, queue=args.queue))
    if info.state is not State.DEAD:
        raise UnknownJob(f"job {info.id} is {info.state.value}, not a dead letter; `relevo job {info.id}` shows it")
    if args.json:
        screen.json(info)
    else:
        describe(screen, info)
    return Exit.OK


def _each(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    if bool(args.ids) == args.all:
        raise ConfigurationError("which dead letters? Give their ids, or --all; not both")
    if args.ids and (args.error or args.limit or args.yes):
        raise ConfigurationError("--error, --limit and --yes go with --all; ids name the dead letters already")
    deed = app.dead.retry if args.action == "retry" else app.dead.discard
    if args.ids:
        wanted = [(id, args.queue) for id in dict.fromkeys(args.ids)]
    else:
        rows = _matching(app, args)
        if not rows:
            _refuse_unknown_queue(app, args.queue)
        elif not args.yes and not _confirmed(args.action, rows):
            print("nothing was done", file=sys.stderr)
            return Exit.WARNING
        wanted = [(row.id, row.queue) for row in rows]
    return _report(screen, args, _perform(deed, wanted), len(wanted))


def _perform(deed: Callable[..., int], wanted: list[tuple[str, str | None]]) -> list[str]:
    """Do it to one after the other; the ids it could not be done to."""
    return [id for id, queue in wanted if not deed([id], queue=queue)]


def _report(screen: Screen, args: argparse.Namespace, left: list[str], asked: int) -> int:
    count = asked - len(left)
    if args.json:
        screen.json({_DONE[args.action]: count, "left": left})
    else:
        screen.line(f"{_DONE[args.action]} {plural(count, 'dead letter')}")
        for id in left:
            screen.line(
                f"left: {id} is not a dead letter{'' if args.ids else ' any more, or cannot run again'}", "yellow"
            )
    return Exit.WARNING if left else Exit.OK


def _matching(app: Relevo, args: argparse.Namespace) -> list[DeadRow]:
    """All of them, gathered before any is touched: what is retried leaves the list."""
    rows: list[DeadRow] = []
    while True:
        limit = min(PAGE, (args.limit or len(rows) + PAGE) - len(rows))
        page = app.dead.list(queue=args.queue, error=args.error, limit=limit, offset=len(rows))
        rows += page
        if len(page) < limit or len(rows) == args.limit:
            return rows


def _confirmed(action: str, rows: list[DeadRow]) -> bool:
    queues = len({row.queue for row in rows})
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"this would {action} {plural(len(rows), 'dead letter')} and there is nobody to ask: say --yes"
        )
    print(f"{action} {plural(len(rows), 'dead letter')} of {plural(queues, 'queue')}? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
