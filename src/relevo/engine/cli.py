"""`relevo job`: one job with its whole story; cancel it, or run it again."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import Screen, moment, plural
from relevo.engine.handle import Job, JobInfo
from relevo.engine.job import Attempt, State
from relevo.errors import UnknownJob
from relevo.text.durations import spoken
from relevo.web.shown import shown_job, shown_text

#: Characters of arguments: a screen full.
LONGEST = 2000

STYLES = {State.DONE: "green", State.DEAD: "bold red", State.CANCELLED: "yellow", State.EXPIRED: "yellow"}


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "job",
        "show one job; cancel it or run it again",
        about="Exit code 1: there is no such job, or what was asked cannot be done to it.",
        examples="""
        relevo job 01k9q4w2zhq3mf7d0a2f -A shop:app
        relevo job 01k9q4w2zhq3mf7d0a2f --name shop --logs
        relevo job 01k9q4w2zhq3mf7d0a2f --name shop --cancel
        """,
    )
    parser.add_argument("id", metavar="ID", help="20 letters and digits")
    parser.add_argument("--queue", metavar="NAME", help="where it is; without it all queues are asked")
    parser.add_argument("--logs", action="store_true", help="also what it wrote")
    deed = parser.add_mutually_exclusive_group()
    deed.add_argument("--cancel", action="store_true", help="cancel it; if it runs, its worker stops it")
    deed.add_argument("--retry", action="store_true", help="run it again, if it is dead, cancelled or expired")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Show the job, after doing to it what was asked."""
    screen = Screen()
    with closing(target.find(args)) as app:
        job = _find(app, args.id, args.queue)
        done: dict[str, bool] = {}
        if args.cancel:
            done["cancelled"] = job.cancel()
        elif args.retry:
            done["retried"] = job.retry()
        if any(done.values()):
            app.audit.note(f"job.{'cancel' if args.cancel else 'retry'}", via="cli", id=job.id, queue=job.queue)
        info = shown_job(app, job.info())
        if args.json:
            logs = {"logs": shown_text(app, job.logs())} if args.logs else {}
            screen.json({**msgspec.to_builtins(info), **done, **logs})
        else:
            _tell(screen, info, done)
            describe(screen, info)
            if args.logs:
                _show_logs(screen, shown_text(app, job.logs()).rstrip())
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


def describe(screen: Screen, info: JobInfo) -> None:
    """Everything known about a job, for people."""
    state = info.state.value + (f": {info.reason}" if info.reason else "")
    if info.cancel_asked:
        state += " (cancellation requested)"
    screen.line(f"job {info.id} is {state}", STYLES.get(info.state, ""))
    progress = f"{info.progress.fraction:.0%} {info.progress.message}".strip() if info.progress else ""
    screen.fields(
        [
            ("task", info.task),
            ("queue", info.queue),
            ("arguments", _not_too_long(_arguments(info.args, info.kwargs))),
            ("priority", "" if info.priority is None else str(info.priority)),
            ("name", info.name or ""),
            ("tenant", info.tenant or ""),
            ("tags", ", ".join(info.tags or ())),
            ("workflow", info.workflow or ""),
            ("waits for", f"{plural(info.waits_for, 'job')} to end" if info.waits_for else ""),
            ("held up", info.held_up),
            ("enqueued", moment(info.enqueued_ms)),
            ("given up" if info.held_up else "due", moment(info.due_ms)),
            ("started", moment(info.started_ms)),
            ("ended", moment(info.ended_ms)),
            ("worker", info.worker),
            ("progress", progress),
            ("came from", info.came_from),
            ("error group", info.fingerprint),
            ("permanent", "yes: it would fail again as it is" if info.permanent else ""),
            ("in place of", info.origin),
            ("replaced by", info.replaced_by),
            ("operation", info.correlation_id),
            ("caused by", info.causation_id),
            ("sent by", info.source),
            ("session", info.session),
            ("written by", f"relevo {info.version}" if info.version else ""),
            ("result", _compact(info.result) if info.result is not None else ""),
        ]
    )
    for number, attempt in enumerate(info.attempts, 1):
        _show_attempt(screen, number, attempt)


def _show_attempt(screen: Screen, number: int, attempt: Attempt) -> None:
    took = (attempt.ended_ms - attempt.started_ms) / 1000 if attempt.started_ms and attempt.ended_ms else 0
    parts = [
        f"attempt {number}: {attempt.how}",
        f"after {spoken(took)}" if took > 0 else "",
        f"by {attempt.worker}" if attempt.worker else "",
        f"at {moment(attempt.ended_ms)}" if attempt.ended_ms else "",
    ]
    screen.line("\n" + " ".join(part for part in parts if part))
    error = ": ".join(part for part in (attempt.error, attempt.message) if part)
    for line in (attempt.traceback or error).rstrip().splitlines():  # a traceback ends with the error
        screen.line(f"  {line}")


def _show_logs(screen: Screen, text: str) -> None:
    screen.line("\nlogs" if text else "\nno logs")
    if text:
        screen.line(text)


def _arguments(args: Any, kwargs: Any) -> str:
    """As they would stand in a call."""
    if args is None and kwargs is None:
        return "not known"
    named = (f"{name}={_compact(value)}" for name, value in (kwargs or {}).items())
    return ", ".join([*map(_compact, args or ()), *named])


def _not_too_long(text: str) -> str:
    cut = f"{text[:LONGEST]}… ({len(text):,} characters; --json tells all)"
    return text if len(text) <= LONGEST else cut


def _compact(value: Any) -> str:
    return msgspec.json.encode(value).decode()
