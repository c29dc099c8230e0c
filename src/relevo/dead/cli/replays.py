"""Tracked runs: `relevo dead retry --rate/--canary`, `runs`, `resume` and `stop`."""

from __future__ import annotations

import argparse
import sys
import time

from relevo.app import Relevo
from relevo.audit.trail import whoami
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import next_of, offset_of
from relevo.cli.progress import Progress
from relevo.cli.screen import Screen, away, plural, tell_more
from relevo.dead.cli.filters import audit_details, filters_of
from relevo.dead.replay import Replay
from relevo.dead.replay_store import MOST


def how_far(run: Replay) -> str:
    """The progress of a replay in a line."""
    text = f"{run.retried:,} run again, {run.looked:,} of {run.total:,} looked at"
    if run.watched:
        text += f"; waits for {plural(len(run.watched), 'canary').replace('canarys', 'canaries')}"
    return text


def begin(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Replay all that fit."""
    run = Replay(id="")

    def watch(now: Replay) -> None:
        nonlocal run
        is_first, run = not run.id, now
        doing.tell(run.retried, id=run.id, rate=run.rate or None, canary=run.canary or None)
        if is_first:
            print(f"run {now.id}; if this ends, `relevo dead resume {now.id}` goes on", file=sys.stderr, flush=True)
        progress.tell(how_far(run))

    with app.audit.doing("dead.replay", via="cli", **audit_details(args)) as doing, Progress() as progress:
        run = app.dead.replay(
            all=args.all, rate=args.rate, canary=args.canary, who=whoami(), watch=watch, **filters_of(args)
        )
    return _report(screen, args, run)


def resume(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Resume one."""
    run = before = app.dead.run(args.run)
    if run.state == "done":
        return _report_done(screen, args, run)

    def watch(now: Replay) -> None:
        nonlocal run
        run = now
        doing.tell(run.retried - before.retried)
        progress.tell(how_far(run))

    with app.audit.doing("dead.replay_resume", via="cli", id=args.run) as doing, Progress() as progress:
        run = app.dead.resume(args.run, who=whoami(), watch=watch)
    return _report(screen, args, run)


def _report_done(screen: Screen, args: argparse.Namespace, run: Replay) -> int:
    """There is nothing to resume: it must not look as if it had been done again."""
    if args.json:
        screen.json(run)
    else:
        screen.line(f"nothing to resume: the run has ended, and had retried {plural(run.retried, 'dead letter')}")
    return Exit.WARNING


def _report(screen: Screen, args: argparse.Namespace, run: Replay) -> int:
    if args.json:
        screen.json(run)
    elif run.state == "done":
        screen.line(f"retried {plural(run.retried, 'dead letter')}")
        if run.left:
            why = run.why or "no longer there"
            screen.line(f"left: {plural(run.left, 'dead letter')}: {why}", "yellow")
    else:
        screen.line(f"stopped: {run.why}", "bold red")
        screen.line(f"{how_far(run)}; `relevo dead resume {run.id}` goes on")
    return Exit.OK if run.state == "done" and not run.left else Exit.WARNING


def stop(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Ask one to stop."""
    is_led = app.dead.stop(args.run)
    if is_led:
        app.audit.note("dead.replay_stop", via="cli", id=args.run)
    if args.json:
        screen.json({"run": args.run, "asked": is_led})
    else:
        screen.line("it will stop after its next step" if is_led else "nothing to stop: no process leads it")
    return Exit.OK if is_led else Exit.WARNING


def show(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Show those of the last week, or one."""
    found = [app.dead.run(args.run)] if args.run else app.dead.runs(limit=min(args.limit, MOST), offset=offset_of(args))
    if args.json:
        screen.page(found, None if args.run else next_of(found, args))
    elif found:
        screen.columns(
            {
                "run": [run.id for run in found],
                "state": [_state(run) for run in found],
                "began": [away(run.started_ms) for run in found],
                "last heard": [away(run.heard_ms) for run in found],
                "by": [run.who for run in found],
                "looked at": [run.looked for run in found],
                "of": [run.total for run in found],
                "retried": [run.retried for run in found],
                "left": [run.left for run in found],
                "rate": [run.rate or "-" for run in found],
                "why": [run.why for run in found],
            },
            spare=["looked at", "rate", "began", "by"],
        )
        if not args.run:
            tell_more(next_of(found, args))
    else:
        screen.line("no recent tracked runs")
    return Exit.OK if found else target.code_of_nothing(app)


def _state(run: Replay) -> str:
    if run.state == "running" and run.is_silent(time.time_ns() // 1_000_000):
        return "silent: resume it"
    return run.state
