"""`relevo workflow`: lists workflows, shows one as a tree, cancels or retries it."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, add_page, command, group, next_of, offset_of, pause
from relevo.cli.refusing import refuse_unknown_queue
from relevo.cli.screen import Screen, away, moment, plural, tell_more
from relevo.cli.words import add_name
from relevo.engine.job import State
from relevo.errors import ConfigurationError, StoreError, UnknownJob
from relevo.text.durations import spoken
from relevo.workflows.cli_tree import ROOM, SIGNS, forest
from relevo.workflows.workflow import Workflow, WorkflowInfo, WorkflowProgress, recent

ID = "01k9q4w2zhq3mf7d0a2f"
#: `relevo workflow ID` is `relevo workflow show ID`, and `relevo workflow` alone is `relevo workflow list`.
ACTIONS = ("list", "show", "cancel", "retry")
#: Workflows listed without --limit.
LIMIT = 20
#: Cells of the progress bar.
BAR = 20
#: Lines that are reserved beside the tree while it is refreshed.
HEAD = 12


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    actions = group(
        subparsers,
        "workflow",
        "list workflows; show one as a tree, cancel or retry it",
        about="""
        `relevo workflow ID` is short for `relevo workflow show ID`, and `relevo workflow` alone for `relevo workflow
        list`. Exit code 1: there is no such workflow, or what was asked cannot be done to it.
        """,
        examples=f"""
        relevo workflow -A shop:app                                 the newest
        relevo workflow {ID} --name shop            one of them
        relevo workflow retry {ID} --name shop
        """,
    )
    listing = command(
        actions,
        "list",
        "the newest",
        examples="""
        relevo workflow list -A shop:app
        relevo workflow list --name shop --queue mails --limit 5
        """,
    )
    add_page(listing, LIMIT)
    listing.add_argument("--queue", metavar="NAME", help="only of this queue")
    show = command(
        actions,
        "show",
        "one of them, as a tree of its jobs",
        about="Exit code 1: there is no such workflow, or it was watched and did not end well.",
        examples=f"""
        relevo workflow show {ID} -A shop:app
        relevo workflow show {ID} --name shop --watch
        """,
    )
    cancel = command(
        actions,
        "cancel",
        "cancel its jobs; running ones are asked to stop",
        examples=f"""
        relevo workflow cancel {ID} -A shop:app
        relevo workflow cancel {ID} --name shop --env prod
        """,
    )
    retry = command(
        actions,
        "retry",
        "run its jobs again that died, expired or were cancelled, and what follows",
        examples=f"""
        relevo workflow retry {ID} -A shop:app
        relevo workflow retry {ID} --name shop --watch
        """,
    )
    for one in (show, cancel, retry):
        add_name(one, "id", metavar="ID", help="20 letters and digits")
        one.add_argument("--queue", metavar="NAME", help="where it is kept; without it all queues are asked")
        one.add_argument("--all", action="store_true", help="draw every job, however many there are")
        one.add_argument(
            "--watch", type=pause, nargs="?", const=1.0, metavar="SECONDS", help="refresh until it ends, or Ctrl-C"
        )
    for one in (listing, show, cancel, retry):
        add_json(one)
        add_app(one)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    if args.action != "list" and args.watch and args.json:
        raise ConfigurationError("--watch shows one state after the other: leave it out when output is JSON")
    with closing(target.find(args)) as app:
        return _list(screen, app, args) if args.action == "list" else _one(screen, app, args)


def _one(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Show a workflow, after doing to it what was asked."""
    flow = _find(app, args.id, args.queue)
    done: dict[str, int] = {}
    if args.action == "cancel":
        done["cancelled"] = flow.cancel()
    elif args.action == "retry":
        done["retried"] = flow.retry()
    if count := sum(done.values()):
        app.audit.note(f"workflow.{args.action}", via="cli", count=count, id=args.id, queue=flow.queue)
    info = flow.info()
    if args.json:
        screen.json({**msgspec.to_builtins(info), **done})
    else:
        _print_result(screen, info, done)
        if args.watch:
            info = _watch(screen, flow, args)
        else:
            describe(screen, info, None if args.all else ROOM)
    went_wrong = not all(done.values()) or (args.watch and info.state is not State.DONE)
    return Exit.WARNING if went_wrong else Exit.OK


def _find(app: Relevo, id: str, queue: str | None) -> Workflow[Any]:
    """The workflow; the id of a job is refused with a hint."""
    try:
        return app.workflow(id, queue=queue)
    except UnknownJob as unknown:
        try:
            job = app.job(id, queue=queue).info()
        except UnknownJob:
            raise unknown from None
        shown = (
            f"`relevo workflow {job.workflow}` shows its workflow" if job.workflow else f"`relevo job {id}` shows it"
        )
        raise UnknownJob(f"{id} is a job, not a workflow; {shown}") from None


def _list(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    rows = app.engine.run(recent(app.engine, args.limit, args.queue, offset_of(args)))
    if not rows:
        refuse_unknown_queue(app, args.queue)
    if args.json:
        screen.page(rows, next_of(rows, args))
    elif rows:
        screen.table(
            ["id", "queue", "state", "ended", "failed", "began", "took"],
            [
                (
                    row.id,
                    row.queue,
                    row.state.value,
                    f"{row.progress.total - row.progress.open:,}/{row.progress.total:,}",
                    row.progress.failed,
                    away(row.began_ms),
                    _took(row.began_ms, row.ended_ms) if row.ended_ms else "",
                )
                for row in rows
            ],
        )
        tell_more(next_of(rows, args))
    else:
        screen.line("no workflows")
    return Exit.OK if rows else target.code_of_nothing(app)


def _print_result(screen: Screen, info: WorkflowInfo, done: dict[str, int]) -> None:
    """Print the outcome of cancelling or retrying."""
    match done:
        case {"cancelled": 0}:
            screen.line("nothing to cancel: it has ended\n", "yellow")
        case {"cancelled": count} if info.state.has_ended:
            screen.line(f"cancelled {plural(count, 'job')}\n", "green")
        case {"cancelled": count}:
            screen.line(f"cancelled {plural(count, 'job')}; workers were asked to stop those that run\n", "green")
        case {"retried": 0}:
            screen.line("nothing to run again: only dead, cancelled or expired jobs can be\n", "yellow")
        case {"retried": count}:
            screen.line(f"{plural(count, 'job')} will run again, and what waits for {_them(count)}\n", "green")


def _watch(screen: Screen, flow: Workflow[Any], args: argparse.Namespace) -> WorkflowInfo:
    """Show it until it has ended: refreshed on a terminal, line by line elsewhere."""
    return (_watch_refreshed if screen.is_live else _watch_by_line)(screen, flow, args)


def _watch_refreshed(screen: Screen, flow: Workflow[Any], args: argparse.Namespace) -> WorkflowInfo:
    with screen.replacing() as replace:
        while True:
            try:
                info = flow.info()
            except StoreError as error:  # a user is watching, and sees when the server is back
                replace(partial(screen.line, str(error), "bold red"))
            else:
                room = ROOM if info.state.has_ended else max(HEAD, min(ROOM, screen.height - HEAD))
                replace(partial(describe, screen, info, None if args.all else room))
                if info.state.has_ended:
                    return info
            time.sleep(args.watch)


def _watch_by_line(screen: Screen, flow: Workflow[Any], args: argparse.Namespace) -> WorkflowInfo:
    last = ""
    while True:
        info = flow.info()
        text = f"{info.state:<9}  {_counted(info.progress)}"
        if text != last:
            screen.line(f"{datetime.now():%H:%M:%S}  {text}")
            sys.stdout.flush()  # the reader of a pipe needs it now
            last = text
        if info.state.has_ended:
            screen.line()
            describe(screen, info, None if args.all else ROOM)
            return info
        time.sleep(args.watch)


def describe(screen: Screen, info: WorkflowInfo, room: int | None = ROOM) -> None:
    """Draw everything known about a workflow."""
    sign, style = SIGNS[info.state]
    screen.line(f"{sign} workflow {info.id} is {info.state}", style)
    took = _took(info.began_ms, info.ended_ms)
    screen.fields(
        [
            ("queue", info.queue),
            ("progress", f"{bar(info.progress)}  {_counted(info.progress)}"),
            ("began", moment(info.began_ms)),
            ("took" if info.ended_ms else "so far", took),
        ]
    )
    screen.line()
    screen.forest(forest(info, room))


def bar(progress: WorkflowProgress) -> str:
    """The progress bar: done, failed and open members as cells, each kind with at least one cell."""
    counts = {"█": progress.done, "▒": progress.failed, "░": progress.open}
    cells = {sign: max(1, count * BAR // progress.total) if count else 0 for sign, count in counts.items()}
    cells[max(counts, key=lambda sign: counts[sign])] += BAR - sum(cells.values())
    return "".join(sign * count for sign, count in cells.items())


def _counted(progress: WorkflowProgress) -> str:
    ended = progress.total - progress.open
    parts = [("done", progress.done), ("failed", progress.failed), ("open", progress.open)]
    counts = ", ".join(f"{count:,} {name}" for name, count in parts if count)
    return f"{ended:,} of {plural(progress.total, 'job')} ended" + (f": {counts}" if counts else "")


def _them(count: int) -> str:
    return "it" if count == 1 else "them"


def _took(began_ms: int, ended_ms: int | None) -> str:
    if ended_ms is None:
        return spoken(max(0, round(time.time() - began_ms / 1000)))
    return spoken(max(0, ended_ms - began_ms) / 1000)
