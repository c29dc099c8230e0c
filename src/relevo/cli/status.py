"""`relevo status`: the state of the server, the queues and the workers of an app."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from msgspec import Struct

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command, pause, whole
from relevo.cli.screen import Screen, away, mebibytes, plural
from relevo.engine import workers
from relevo.engine.job import State
from relevo.engine.lists import listed_queues
from relevo.engine.pauses import Pause
from relevo.engine.workers import WorkerInfo, full_since
from relevo.errors import ConfigurationError, StoreError
from relevo.queues import store as queues
from relevo.queues.queue import JobRow, row_of
from relevo.queues.store import QueueStats
from relevo.store.plan import Ahead, Steps
from relevo.store.server_facts import engine, info
from relevo.store.server_time import server_time
from relevo.text.durations import spoken
from relevo.text.legible import clean

#: Seconds to retry a connection. A monitor needs to know, not to wait until it succeeds.
PATIENCE = 1.0


class ServerState(Struct, frozen=True, kw_only=True):
    """The server, in a line."""

    address: str
    engine: str
    version: str
    used_memory: int
    maxmemory: int
    clients: int
    uptime_s: int


class NextJob(JobRow, frozen=True, kw_only=True):
    """A job that is due."""

    queue: str


class Report(Struct, frozen=True, kw_only=True):
    """All that status shows, and the JSON output."""

    app: str
    env: str
    level: str
    warnings: list[str]
    server: ServerState
    queues: list[QueueStats]
    workers: list[WorkerInfo]
    #: Workers lost in the last 15 minutes: they stopped reporting without a shutdown.
    silent_workers: list[str]
    #: What is paused, and tasks whose breaker has opened.
    pauses: list[Pause]
    #: Jobs that are due, in the order they will start; empty unless asked for.
    next: list[NextJob]


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "status",
        "show the server, the queues and the workers of an app",
        about="""
        Exit code 0: fine. 1: a queue is paused, or its jobs are due and no worker serves it, or no live worker knows
        their task, or a task's breaker is open, or the app is unknown. 2: the server cannot be reached.
        """,
        examples="""
        relevo status -A shop:app
        relevo status --name shop --env prod --json     for a monitor: imports nothing
        relevo status --name shop --next 10             and the ten jobs that start next
        relevo status --name shop --watch               look again every two seconds
        """,
    )
    parser.add_argument("--next", type=whole, metavar="N", help="also the next N jobs that are due, of each queue")
    parser.add_argument("--watch", type=pause, nargs="?", const=2.0, metavar="SECONDS", help="refresh until Ctrl-C")
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Read the state and print it."""
    if args.watch and (args.json or not sys.stdout.isatty()):
        raise ConfigurationError("--watch refreshes a terminal: leave it out when output is JSON or goes elsewhere")
    with closing(target.find(args)) as app:
        if args.watch:
            _watch(app, args.next, args.watch)
        report = look(app, args.next)
        if args.json:
            Screen().json(report)
        else:
            draw(Screen(), report)
        return Exit.WARNING if report.warnings else Exit.OK


def _watch(app: Relevo, ahead: int | None, pause: float) -> None:
    screen = Screen()
    while True:  # until Ctrl-C
        try:
            report = look(app, ahead)
        except StoreError as error:  # an outage is part of the display: show it and try again
            screen.clear()
            screen.line(str(error), "bold red")
        else:
            screen.clear()
            draw(screen, report)
        time.sleep(pause)


def look(app: Relevo, ahead: int | None = None) -> Report:
    """Read everything from the server."""
    run = app.engine.client.run
    about = run(info(), patience=PATIENCE)
    now_ms = run(server_time())
    stats = run(_counted(app))
    living, silent = run(workers.roll(app.engine.keys, now_ms))
    pauses = app.pauses()
    warnings = _warnings(app, stats, living, pauses, now_ms)
    next = [job for one in stats for job in _next(app, one.name, ahead, now_ms)] if ahead else []
    which = engine(about)
    return Report(
        app=app.name,
        env=app.settings.env,
        level="warning" if warnings else "ok",
        warnings=warnings,
        server=ServerState(
            address=str(app.engine.client.source.locate(None)),
            engine=which.engine,
            version=which.version,
            used_memory=int(about.get("used_memory", 0)),
            maxmemory=int(about.get("maxmemory", 0)),
            clients=int(about.get("connected_clients", 0)),
            uptime_s=int(about.get("uptime_in_seconds", 0)),
        ),
        queues=stats,
        workers=living,
        silent_workers=silent,
        pauses=pauses,
        next=next,
    )


def _counted(app: Relevo) -> Steps[list[QueueStats]]:
    names = yield from listed_queues(app.engine)
    stats: list[QueueStats] = yield Ahead(queues.count(app.engine.keys_of(name), name) for name in names)
    return stats


def _warnings(
    app: Relevo, stats: Sequence[QueueStats], living: Sequence[WorkerInfo], pauses: Sequence[Pause], now_ms: int
) -> list[str]:
    """What needs attention, as sentences."""
    if not stats and not living:
        return [target.unheard_of(app.name, app.settings.env)]
    warnings = [
        f"queue {one.queue!r}: the breaker of task {one.name!r} is open: {one.reason}"
        for one in pauses
        if one.kind == "breaker"
    ]
    ends = {one.queue: one.until_ms for one in pauses if one.kind == "queue"}
    for queue in stats:
        if queue.paused:
            end = ends.get(queue.name)
            until = "it is resumed" if end is None else f"the pause expires, in {spoken((end - now_ms) // 1000)}"
            warnings.append(f"queue {queue.name!r} is paused: its jobs wait until {until}")
        warnings += [
            f"queue {queue.name!r}: no live worker knows task {task!r}, {plural(count, 'job')} waiting"
            for task, count in queue.unknown_tasks.items()
        ]
        if queue.ready and (since_ms := full_since(living, queue.name)):
            jobs, full_for = plural(queue.ready, "job"), spoken((now_ms - since_ms) // 1000)
            warnings.append(f"queue {queue.name!r}: {jobs} ready and no free slot for {full_for}")
        if queue.idle_workers or any(queue.name in worker.queues for worker in living):
            continue
        overdue = queue.next_due_ms is not None and queue.next_due_ms <= now_ms
        if queue.ready:
            warnings.append(f"queue {queue.name!r}: {plural(queue.ready, 'job')} ready and no worker serves it")
        elif overdue:
            warnings.append(f"queue {queue.name!r}: scheduled jobs are due and no worker serves it")
        if queue.running and _abandoned(app, queue.name, now_ms):
            warnings.append(f"queue {queue.name!r}: jobs of lost workers wait for a worker to take them")
    return warnings


def _abandoned(app: Relevo, queue: str, now_ms: int) -> bool:
    first = app.engine.run(queues.page(app.engine.keys_of(queue), "running", 0, 1))
    return any(job.due_ms is not None and job.due_ms <= now_ms for job in first)


def _next(app: Relevo, queue: str, ahead: int, now_ms: int) -> list[NextJob]:
    """Jobs in the order they will start. Scheduled jobs count only once they are due; then they join their priority."""
    keys = app.engine.keys_of(queue)
    ready = app.engine.run(queues.page(keys, State.READY, 0, ahead))
    scheduled = app.engine.run(queues.page(keys, State.SCHEDULED, 0, ahead))
    due = [job for job in scheduled if job.due_ms is not None and job.due_ms <= now_ms]
    rows = sorted(map(row_of, (*ready, *due)), key=lambda row: row.priority or 0)[:ahead]
    return [NextJob(**{name: getattr(row, name) for name in row.__struct_fields__}, queue=queue) for row in rows]


def draw(screen: Screen, report: Report) -> None:
    """Draw a report for people."""
    server = report.server
    limit = f" of {mebibytes(server.maxmemory)}" if server.maxmemory else ""
    screen.line(
        f"{server.engine} {server.version} at {server.address}, up for {spoken(server.uptime_s)}, "
        f"{mebibytes(server.used_memory)}{limit} used, {plural(server.clients, 'client')}"
    )
    screen.line(f"app {report.app} in {report.env}\n")
    if report.queues:
        _draw_queues(screen, report.queues)
    else:
        screen.line("no queues yet")
    screen.line()
    if report.workers:
        screen.table(
            ["worker", "host", "process", "queues", "running", "done", "failed", "since"],
            [
                (w.id, w.host, str(w.pid), ", ".join(w.queues), w.running, w.done, w.failed, away(w.started_ms))
                for w in report.workers
            ],
        )
    else:
        screen.line("no worker")
    for id in report.silent_workers:
        screen.line(f"worker {id} is lost: it stopped reporting")
    if report.pauses:
        screen.line("\npaused")
        screen.table(
            ["queue", "what", "since", "until", "by", "reason"],
            [
                (one.queue, _what(one), away(one.since_ms), away(one.until_ms), one.by, one.reason)
                for one in report.pauses
            ],
        )
    if report.next:
        screen.line("\nnext")
        screen.table(
            ["id", "queue", "task", "priority", "name", "enqueued"],
            [(job.id, job.queue, job.task, job.priority, job.name, away(job.enqueued_ms)) for job in report.next],
        )
    if report.warnings:
        screen.line()
    for warning in report.warnings:
        screen.line(f"warning: {clean(warning)}", "yellow")


def _what(one: Pause) -> str:
    return "all of it" if one.kind == "queue" else f"{one.kind} {one.name}"


def _draw_queues(screen: Screen, queues: Sequence[QueueStats]) -> None:
    head = ["queue", "ready", "scheduled", "waiting", "running", "done", "dead", "idle", "next due"]
    rows: list[list[object]] = [
        [q.name, q.ready, q.scheduled, q.waiting, q.running, q.done, q.dead, q.idle_workers, away(q.next_due_ms)]
        for q in queues
    ]
    if any(queue.totals.get("dropped") for queue in queues):
        at = head.index("dead") + 1
        head.insert(at, "dropped")
        for row, queue in zip(rows, queues, strict=True):
            row.insert(at, queue.totals.get("dropped", 0))
    if any(queue.paused for queue in queues):  # an empty column would only take room, and a terminal may have little
        head.append("paused")
        for row, queue in zip(rows, queues, strict=True):
            row.append(queue.paused)
    screen.table(head, rows, gives_way=[("idle", 0), ("next due", 0), ("waiting", 0)])
