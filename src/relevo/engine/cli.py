"""`relevo job`: lists jobs, and shows, cancels or retries one."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, add_page, command, group
from relevo.cli.refusing import refuse_unknown, refuse_unknown_queue
from relevo.cli.screen import Screen, away, tell_more
from relevo.cli.words import add_name
from relevo.engine.cli_view import describe, show_logs
from relevo.engine.handle import Job, JobInfo
from relevo.engine.job import State
from relevo.errors import UnknownJob
from relevo.queues.searching import ORDER, FoundJob, JobFilters, searching
from relevo.web.shown import shown_job, shown_text

ID = "01k9q4w2zhq3mf7d0a2f"
#: `relevo job ID` is `relevo job show ID`, and `relevo job` alone is `relevo job list`.
ACTIONS = ("list", "show", "cancel", "retry")


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    actions = group(
        subparsers,
        "job",
        "list jobs; show one with its history, cancel or retry it",
        about="""
        `relevo job ID` is short for `relevo job show ID`, and `relevo job` alone for `relevo job list`.
        Exit code 1: there is no such job, or what was asked cannot be done to it.
        """,
        examples=f"""
        relevo job list -A shop:app --state running
        relevo job {ID} -A shop:app
        relevo job {ID} --name shop --logs
        relevo job cancel {ID} --name shop
        relevo job retry {ID} --name shop
        """,
    )
    _add_list(actions)
    show = command(
        actions,
        "show",
        "one job: its arguments, its times, each attempt with its traceback",
        about="Exit code 1: there is no such job.",
        examples=f"""
        relevo job show {ID} -A shop:app
        relevo job show {ID} --name shop --logs
        """,
    )
    cancel = command(
        actions,
        "cancel",
        "cancel one; if it runs, its worker is asked to stop it",
        about="Exit code 1: there is no such job, or it has ended.",
        examples=f"""
        relevo job cancel {ID} -A shop:app
        relevo job cancel {ID} --name shop --env prod --json
        """,
    )
    retry = command(
        actions,
        "retry",
        "run one again that is dead, cancelled or expired",
        about="Exit code 1: there is no such job, or it is in another state.",
        examples=f"""
        relevo job retry {ID} -A shop:app
        relevo job retry {ID} --name shop --env prod --json
        """,
    )
    for one in (show, cancel, retry):
        add_name(one, "id", metavar="ID", help="20 letters and digits")
        one.add_argument("--queue", metavar="NAME", help="where it is; without it all queues are asked")
        one.add_argument("--logs", action="store_true", help="also what it wrote")
        add_json(one)
        add_app(one)


def _add_list(actions: Subparsers) -> None:
    parser = command(
        actions,
        "list",
        "jobs by their state, in the order in which they will run; ended ones newest first",
        about="""
        All options that are given must fit. A page costs the same however many jobs there are, so one may hold few, or
        none, and not be the last. Dead letters have more filters: `relevo dead list`.
        """,
        examples="""
        relevo job list -A shop:app
        relevo job list --name shop --queue mails --state scheduled --limit 200
        relevo job list --name shop --task shop.charge --state running --json
        """,
    )
    parser.add_argument("--queue", metavar="NAME", help="only of this queue")
    states = [state.value for state in ORDER]
    parser.add_argument("--state", choices=states, metavar="STATE", help=f"only in this one: {', '.join(states)}")
    parser.add_argument("--task", metavar="NAME", help="only of this task")
    parser.add_argument("--tenant", metavar="NAME", help="only of this tenant")
    parser.add_argument("--tag", metavar="TAG", help="only with this tag")
    parser.add_argument("--text", metavar="TEXT", help="only where this is in the name or the task")
    add_page(parser)
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    with closing(target.find(args)) as app:
        return _list(screen, app, args) if args.action == "list" else _one(screen, app, args)


def _list(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    refuse_unknown_queue(app, args.queue)
    names = {name: getattr(args, name) or "" for name in ("queue", "task", "tenant", "tag", "text")}
    wanted = JobFilters(state=State(args.state) if args.state else None, **names)
    page = app.engine.run(searching(app.engine, wanted, limit=args.limit, after=args.after))
    if not page.rows and not page.after:
        refuse_unknown(app, "task", args.task, queue=args.queue)
        refuse_unknown(app, "tenant", args.tenant, queue=args.queue)
    if args.json:
        screen.page(page.rows, page.after or None)
    elif page.rows:
        _draw_list(screen, page.rows)
    else:
        screen.line("no jobs" if not page.after else "none of those that were looked at")
    if not args.json:
        tell_more(page.after)
    return Exit.OK if page.rows or page.after else target.code_of_nothing(app)


def _draw_list(screen: Screen, rows: list[FoundJob]) -> None:
    screen.columns(
        {
            "id": [row.id for row in rows],
            "task": [row.task for row in rows],
            "state": [row.state.value for row in rows],
            "when": [away(_when(row)) for row in rows],
            "queue": [row.queue for row in rows],
            "name": [row.name or "" for row in rows],
            "tenant": [row.tenant or "" for row in rows],
            "error": [row.error or row.reason for row in rows],
        },
        spare=["tenant", "name", "error", "queue"],
    )


def _when(row: FoundJob) -> int | None:
    """When it is due, if it is scheduled; when it ended, if it has; else when it was enqueued."""
    return row.due_ms if row.state is State.SCHEDULED else row.ended_ms or row.enqueued_ms


def _one(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Show a job, after doing to it what was asked."""
    job = _find(app, args.id, args.queue)
    done: dict[str, bool] = {}
    if args.action == "cancel":
        done["cancelled"] = job.cancel()
    elif args.action == "retry":
        done["retried"] = job.retry()
    if any(done.values()):
        app.audit.note(f"job.{args.action}", via="cli", id=job.id, queue=job.queue)
    info = shown_job(app, job.info())
    if args.json:
        logs = {"logs": shown_text(app, job.logs())} if args.logs else {}
        screen.json({**msgspec.to_builtins(info), **done, **logs})
    else:
        _tell(screen, info, done)
        describe(screen, info)
        if args.logs:
            show_logs(screen, shown_text(app, job.logs()).rstrip())
    return Exit.OK if all(done.values()) else Exit.WARNING


def _find(app: Relevo, id: str, queue: str | None) -> Job[Any]:
    """The job; the id of a workflow is refused with a hint."""
    try:
        app.workflow(id, queue=queue)  # asked first: one that has ended has a record as a job has
    except UnknownJob:
        return app.job(id, queue=queue)
    raise UnknownJob(f"{id} is a workflow, not a job; `relevo workflow {id}` shows it")


def _tell(screen: Screen, info: JobInfo, done: dict[str, bool]) -> None:
    """What became of the deed."""
    match done:
        case {"cancelled": True} if info.state is State.CANCELLED:
            screen.line("cancelled\n", "green")
        case {"cancelled": True}:
            screen.line("its worker was asked to stop it\n", "green")
        case {"cancelled": False}:
            screen.line("nothing to cancel: it has ended\n", "yellow")
        case {"retried": True}:
            screen.line("it will run again\n", "green")
        case {"retried": False}:
            screen.line("not run again: only a dead, cancelled or expired job can be\n", "yellow")
