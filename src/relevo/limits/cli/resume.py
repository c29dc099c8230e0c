"""`relevo resume`: resume a queue, a task, a tenant or a schedule, and close the breaker of a task."""

from __future__ import annotations

import argparse
from contextlib import closing

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.screen import Screen
from relevo.limits.cli.pause import Scope, add_scope, scope_of


def add(subparsers: Subparsers, called: str = "relevo resume") -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "resume",
        "start what was paused again; close the breaker of a task",
        about="""
        Idle workers are woken. After an open breaker, all jobs of the task may start at once. Exit code 0, also if
        it was not paused.
        """,
        examples=f"""
        {called} mail --name shop
        {called} --task shop.charge --name shop        in all queues of the app
        {called} --schedule nightly --name shop
        """,
    )
    add_scope(parser)
    add_json(parser)
    add_app(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    with closing(target.find(args)) as app:
        scope = scope_of(app, args)
        changed = _resume(app, scope)
        deed, details = scope.deed("resume")
        app.audit.note(deed, via="cli", count=len(changed), **details)
        if args.json:
            screen.json({"kind": scope.kind, "name": scope.name, "queue": scope.queue, "resumed": changed})
        else:
            screen.line(f"resumed {scope}" if changed else f"{scope} was not paused")
    return Exit.OK


def _resume(app: Relevo, scope: Scope) -> list[str]:
    task, tenant = (scope.name if scope.kind == kind else None for kind in ("task", "tenant"))
    if scope.kind == "schedule":
        return [scope.name] if app.schedules.get(scope.name).resume() else []
    if scope.queue is None:
        return app.resume(task=task, tenant=tenant)
    return [scope.queue] if app.queue(scope.queue).resume(task=task, tenant=tenant) else []
