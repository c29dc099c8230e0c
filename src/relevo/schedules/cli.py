"""`relevo schedules`: list, show, pause, resume, run or remove schedules."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from itertools import islice
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.audit.trail import of_control
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command, group, whole
from relevo.cli.screen import Screen
from relevo.cli.words import add_name
from relevo.engine.handle import Job
from relevo.engine.ids import made_ms
from relevo.engine.job import State
from relevo.errors import ConfigurationError, UnknownJob, UnknownSchedule
from relevo.schedules import cli_view as view
from relevo.schedules import store
from relevo.schedules.handle import ScheduleInfo
from relevo.text.legible import clean
from relevo.web.shown import shown_schedule

#: `relevo schedules` alone is `relevo schedules list`, and `relevo schedules NAME` is `relevo schedules show NAME`.
ACTIONS = ("list", "show", "pause", "resume", "run", "remove")

#: Ticks that `show` lists ahead.
AHEAD = 5

_DONE = {"pause": "paused", "resume": "resumed", "remove": "removed"}
_SO_ALREADY = {"pause": "was paused already", "resume": "was not paused"}
_NAMED_BY = {"code": "a decorator names it", "settings": "the settings name it"}


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    actions = group(
        subparsers,
        "schedules",
        "list schedules; show, pause, resume, run or remove one",
        about="""
        Schedules make jobs by the clock. `relevo schedules` alone lists them, and `relevo schedules NAME` shows one.
        Exit code 1: there is no such schedule.
        """,
        examples="""
        relevo schedules -A shop:app
        relevo schedules nightly --name shop
        relevo schedules pause nightly --name shop
        relevo schedules run nightly --name shop         now, once
        relevo schedules remove --stale --name shop      those that no code names any more
        """,
    )
    listing = command(
        actions,
        "list",
        "all of them, by name",
        examples="""
        relevo schedules list -A shop:app
        relevo schedules list --name shop --json
        """,
    )
    show = command(
        actions,
        "show",
        "one of them: its rule, when it fires, what it did",
        examples="""
        relevo schedules show nightly -A shop:app
        relevo schedules show nightly --name shop --limit 50
        """,
    )
    show.add_argument("--limit", type=whole, default=10, metavar="N", help="its last N runs (default: 10, at most 50)")
    pause = command(
        actions,
        "pause",
        "fire no more ticks",
        about="`relevo pause --schedule NAME` takes a reason and an end, too.",
        examples="""
        relevo schedules pause nightly -A shop:app
        relevo schedules pause nightly hourly --name shop
        """,
    )
    resume = command(
        actions,
        "resume",
        "continue with the next tick",
        examples="""
        relevo schedules resume nightly -A shop:app
        relevo schedules resume nightly hourly --name shop
        """,
    )
    run_now = command(
        actions,
        "run",
        "queue one job of it now; prints its id",
        examples="""
        relevo schedules run nightly -A shop:app
        relevo schedules run nightly --name shop --json
        """,
    )
    remove = command(
        actions,
        "remove",
        "remove them and their history; jobs they queued stay",
        examples="""
        relevo schedules remove nightly hourly --name shop
        relevo schedules remove --stale --name shop
        """,
    )
    for one in (show, run_now):
        add_name(one, "schedule", metavar="NAME")
    for one in (pause, resume):
        add_name(one, "schedules", metavar="NAME", nargs="+")
    add_name(remove, "schedules", metavar="NAME", nargs="*")
    remove.add_argument("--stale", action="store_true", help="all that code or settings once named and no longer do")
    for one in (listing, show, pause, resume, run_now, remove):
        add_json(one)
        add_app(one)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    with closing(target.find(args)) as app:
        match args.action:
            case "list":
                return _list(screen, app, args)
            case "show":
                return _show(screen, app, args)
            case "run":
                return _run(screen, app, args)
            case _:
                return _each(screen, app, args)


def _list(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    rows = [(shown_schedule(app, info), _last_run(app, info)) for info in app.schedules.list()]
    if args.json:
        screen.page([{**_fields(info), "last": last} for info, last in rows])
    elif rows:
        view.draw_list(screen, rows)
    else:
        screen.line("no schedules")
    return Exit.OK if rows else target.code_of_nothing(app)


def _last_run(app: Relevo, info: ScheduleInfo) -> view.LastRun | None:
    if not info.last_job:
        return None
    try:
        job = Job[Any](app.engine, info.last_job, info.queue).info()
    except UnknownJob:  # it has ended, and its record has expired
        return view.LastRun(info.last_job, State.UNKNOWN, made_ms(info.last_job))
    return view.LastRun(info.last_job, job.state, job.ended_ms or job.started_ms or job.enqueued_ms)


def _fields(info: ScheduleInfo) -> dict[str, Any]:
    return {**msgspec.to_builtins(info), "late": view.is_late(info)}


def _show(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    handle = app.schedules.get(args.schedule)
    info, history = shown_schedule(app, handle.info()), handle.history(min(args.limit, store.RUNS_MAX))
    standing = next(iter(app.engine.run(store.look(app.engine.keys_of(info.queue), [info.name]))), None)
    if standing is None:
        raise UnknownSchedule(f"no schedule {info.name!r:.80}: it was removed just now")
    ahead = list(islice(view.ticks(standing.schedule.when, info.next_ms), AHEAD))
    ids = dict.fromkeys(ran.job for ran in history if ran.job)
    states = {id: Job[Any](app.engine, id, info.queue).state() for id in ids}
    if args.json:
        runs = [{**msgspec.structs.asdict(ran), "state": states.get(ran.job)} for ran in history]
        more = {"seen_ms": standing.seen_ms, "options": view.options(standing), "ahead_ms": ahead, "history": runs}
        screen.json({**_fields(info), **more})
    else:
        view.describe(screen, info, standing)
        view.draw_ahead(screen, info, ahead)
        view.draw_history(screen, info, history, states)
    return Exit.OK


def _run(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    job = app.schedules.get(args.schedule).run_now()
    app.audit.note("schedule.run", via="cli", name=args.schedule, id=job.id)
    if args.json:
        screen.json({"job": job.id, "queue": job.queue})
    else:
        screen.line(job.id)  # nothing else, for `relevo job $(relevo schedules run nightly)`
    return Exit.OK


def _each(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    if args.action == "remove" and bool(args.schedules) == args.stale:
        raise ConfigurationError("which schedules? Give their names, or --stale; not both")
    if args.action == "remove" and args.stale:
        removed = app.schedules.remove_stale()
        if removed:
            app.audit.note("schedule.remove_stale", via="cli", count=len(removed), names=removed[:20])
        if args.json:
            screen.json({"removed": removed, "left": []})
        else:
            screen.line("\n".join(f"removed {name}" for name in removed) or "no stale schedules")
        return Exit.OK
    done: list[str] = []
    left: list[str] = []
    for name in dict.fromkeys(args.schedules):
        try:
            text = _perform(app, args.action, name)
        except UnknownSchedule as unknown:  # go on with the others
            left.append(name)
            print(f"relevo: {clean(str(unknown))}", file=sys.stderr)
        else:
            done.append(name)
            if not args.json:
                screen.line(text)
    if args.json:
        screen.json({_DONE[args.action]: done, "left": left})
    return Exit.WARNING if left else Exit.OK


def _perform(app: Relevo, action: str, name: str) -> str:
    """Act on one of them: returns the line to print."""
    handle = app.schedules.get(name)
    if action == "remove":
        info = handle.info()
        handle.remove()
        app.audit.note("schedule.remove", via="cli", name=name)
        if info.origin in _NAMED_BY and not info.stale:
            # Printed after the removal: the code may be about to be removed, too.
            print(
                f"relevo: warning: {clean(name)} comes back with the next worker as long as {_NAMED_BY[info.origin]}; "
                f"to keep it from running, pause it",
                file=sys.stderr,
            )
        return f"removed {name}"
    changed = handle.pause() if action == "pause" else handle.resume()
    if changed:
        deed, details = of_control(action, schedule=name)
        app.audit.note(deed, via="cli", **details)
    return f"{_DONE[action]} {name}" if changed else f"{name} {_SO_ALREADY[action]}"
