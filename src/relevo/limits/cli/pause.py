"""`relevo pause`: stop a queue, a task, a tenant or a schedule, for a while or until it is resumed."""

from __future__ import annotations

import argparse
from contextlib import closing
from datetime import datetime
from typing import Any

from msgspec import Struct

from relevo.app import Relevo
from relevo.audit.trail import of_control, whoami
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.refusing import refuse_unknown, refuse_unknown_queue
from relevo.cli.screen import Screen
from relevo.cli.words import add_name
from relevo.engine.pauses import Until
from relevo.errors import ConfigurationError, OptionError
from relevo.text.durations import milliseconds

#: At the end of a refusal: jobs of a new name may come.
FORCE_HINT = " (--force if the name is right, and its first job is still to come)"


class Scope(Struct, frozen=True):
    """What a command acts on."""

    #: queue, task, tenant or schedule
    kind: str
    name: str
    #: None: all queues of the app.
    queue: str | None = None

    def __str__(self) -> str:
        where = "" if self.kind in ("queue", "schedule") else f" in {self.queue or 'all queues'}"
        return f"{self.kind} {self.name}{where}"

    def deed(self, verb: str, *, reason: str = "", until: Until = None) -> tuple[str, dict[str, Any]]:
        """The action and its details for the audit trail."""
        named = {"queue": self.queue, self.kind: self.name}
        return of_control(verb, **named, reason=reason, until=until)


def add(subparsers: Subparsers, called: str = "relevo pause") -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "pause",
        "stop a queue, a task, a tenant or a schedule for a while",
        about="""
        No more jobs of it start; of a schedule, no more ticks fire. Running jobs continue, and enqueueing still works.
        With --until the pause expires by itself, by the server's clock; else `relevo resume` ends it. `relevo status`
        shows who paused what, why and until when.
        """,
        examples=f"""
        {called} mail --name shop --reason "new templates" --until 2h
        {called} --task shop.charge --name shop --reason "bank is down"     in all queues of the app
        {called} mail --tenant acme --name shop --until 2031-05-01T08:00+02:00
        {called} --schedule nightly --name shop
        """,
    )
    add_scope(parser)
    add_force(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="shown with the pause")
    parser.add_argument("--until", type=until, metavar="WHEN", help="a duration such as 2h, or a time with its zone")
    add_json(parser)
    add_app(parser)


def add_scope(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to act on; `scope_of` reads them."""
    add_name(parser, "queue", nargs="?", metavar="QUEUE", help="alone: all of it; without: all queues of the app")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--task", metavar="TASK", help="only jobs of this task")
    which.add_argument("--tenant", metavar="NAME", help="only jobs of this tenant")
    which.add_argument("--schedule", metavar="NAME", help="the ticks of a schedule")


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option for a name that nothing is known of yet."""
    parser.add_argument("--force", action="store_true", help="also a task or a tenant that nothing is known of yet")


def until(text: str) -> Until:
    """A duration, or a time with its zone, for argparse."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            milliseconds(text, what="--until")
        except OptionError as error:
            why = str(error).removeprefix("--until: ")  # argparse adds that, too
            raise argparse.ArgumentTypeError(f"{why} A time is written 2031-05-01T08:00+02:00.") from error
        return text
    if at.tzinfo is None:
        zoned = f"{at.isoformat()}+00:00"
        raise argparse.ArgumentTypeError(f"{text!r:.40} has no zone: write {zoned}, or the offset you mean")
    return at


def scope_of(app: Relevo, args: argparse.Namespace) -> Scope:
    """What to act on."""
    queue: str | None = args.queue
    if queue is not None:
        if args.schedule:
            raise ConfigurationError("a schedule has a queue of its own: leave out QUEUE or --schedule")
        refuse_unknown_queue(app, queue)
    elif (args.task or args.tenant) and target.is_unheard_of(app):
        raise ConfigurationError(target.unheard_of(app.name, app.settings.env))
    if not getattr(args, "force", False):
        hint = FORCE_HINT if hasattr(args, "force") else ""
        refuse_unknown(app, "task", args.task, queue=queue, hint=hint)
        refuse_unknown(app, "tenant", args.tenant, queue=queue, hint=hint)
    for kind in ("task", "tenant", "schedule"):
        if name := getattr(args, kind):
            return Scope(kind, name, queue)
    if queue is None:
        raise ConfigurationError("what? Give a QUEUE, --task, --tenant or --schedule")
    return Scope("queue", queue, queue)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    screen = Screen()
    with closing(target.find(args)) as app:
        scope = scope_of(app, args)
        changed = _pause(app, scope, args.reason, whoami(), args.until)
        deed, details = scope.deed("pause", reason=args.reason, until=args.until)
        app.audit.note(deed, via="cli", count=len(changed), **details)
        if args.json:
            screen.json({"kind": scope.kind, "name": scope.name, "queue": scope.queue, "paused": changed})
        elif changed:
            screen.line(f"paused {scope}")
        else:
            screen.line(f"{scope} was paused already; its reason and end are now those given here")
    return Exit.OK


def _pause(app: Relevo, scope: Scope, reason: str, by: str, until: Until) -> list[str]:
    """The queues, or the schedule, that were not paused before."""
    task, tenant = (scope.name if scope.kind == kind else None for kind in ("task", "tenant"))
    if scope.kind == "schedule":
        return [scope.name] if app.schedules.get(scope.name).pause(reason=reason, by=by, until=until) else []
    if scope.queue is None:
        return app.pause(task=task, tenant=tenant, reason=reason, by=by, until=until)
    queue = app.queue(scope.queue)
    return [scope.queue] if queue.pause(task=task, tenant=tenant, reason=reason, by=by, until=until) else []
