"""`relevo queue`: how one queue stands, where a cluster keeps it, and a wait until it is empty."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

import msgspec
from msgspec import Struct

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command
from relevo.cli.progress import Progress
from relevo.cli.screen import Screen, plural
from relevo.engine.lists import known_queues
from relevo.errors import ConfigurationError, OptionError
from relevo.limits.cli.pause import refuse_unused
from relevo.queues import store as queues
from relevo.queues.store import Place, QueueStats
from relevo.store.plan import Call
from relevo.text.durations import seconds

#: Seconds between two looks of a wait.
EVERY = 0.5


class Report(Struct, frozen=True):
    """A queue, and what is on its way from it."""

    stats: QueueStats
    #: Effects on other queues that were not delivered yet: dependents, callbacks, events.
    letters: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be done."""
        return not self.stats.living and not self.letters


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "queue",
        "show one queue and where a cluster keeps it, or wait until it is empty",
        about="""
        Of a cluster it shows the slot of the queue, its node, and how many keys move with the slot. A name that is not
        in use is shown as well, to find one on the node you want.

        --drain waits until no job is left and all that jobs sent to other queues is delivered. Enqueueing still works:
        stop the producers before, or let them use another queue. Records of ended jobs stay for their time.

        Exit code 1: the queue is not in use, or --timeout passed before it was empty.
        """,
        examples="""
        relevo queue mail -A shop:app
        relevo queue mail --name shop --env prod --json | jq .keys
        relevo queue mail --name shop --drain --timeout 10m
        """,
    )
    parser.add_argument("queue", metavar="QUEUE")
    parser.add_argument("--drain", action="store_true", help="wait until it is empty")
    parser.add_argument("--timeout", type=_duration, metavar="DURATION", help="with --drain: no longer than that")
    add_json(parser)
    add_app(parser)


def _duration(text: str) -> float:
    try:
        return seconds(text, what="--timeout")
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--timeout: ")) from error


def run(args: argparse.Namespace) -> int:
    """Look, or wait, and show how it stands."""
    if args.timeout is not None and not args.drain:
        raise ConfigurationError("--timeout is for --drain: without it there is nothing to wait for")
    with closing(target.find(args)) as app:
        if args.drain:
            refuse_unused(app, args.queue)
            report = _drained(app, args.queue, args.timeout)
            is_well = report.is_empty
        else:
            report = app.engine.run(look(app, args.queue))
            is_well = args.queue in app.engine.run(known_queues(app.engine))
        place = _place(app, args.queue)
        if args.json:
            Screen().json(_as_json(report, place))
        else:
            draw(Screen(), app, report, place)
            if not is_well:
                Screen().line("\nnot empty yet" if args.drain else "\nnot in use", "yellow")
        return Exit.OK if is_well else Exit.WARNING


def look(app: Relevo, name: str) -> Generator[Call[Any], Any, Report]:
    """How a queue stands."""
    keys = app.engine.keys_of(name)
    stats: QueueStats = yield queues.count(keys, name)
    return Report(stats, (yield Call([b"HLEN", keys.key("letters")])))


def _drained(app: Relevo, name: str, timeout: float | None) -> Report:
    """The last look: at an empty queue, or when the time was up."""
    deadline = None if timeout is None else time.monotonic() + timeout
    with Progress() as progress:
        while True:
            report = app.engine.run(look(app, name))
            left = EVERY if deadline is None else deadline - time.monotonic()
            if report.is_empty or left <= 0:
                return report
            progress.tell(_left(report))
            time.sleep(min(EVERY, left))


def _left(report: Report) -> str:
    stats = report.stats
    text = f"{plural(stats.living, 'job')} left, {stats.running:,} running"
    if report.letters:
        text += f", {plural(report.letters, 'message')} to other queues"
    if stats.paused:
        return f"{text}; the queue is paused"
    return f"{text}; no worker waits or works" if stats.ready and not (stats.running or stats.idle_workers) else text


def _place(app: Relevo, name: str) -> Place | None:
    source, keys = app.engine.client.source, app.engine.keys_of(name)
    return app.engine.run(queues.place(keys, str(source.locate(keys.key("jobs"))))) if source.is_cluster else None


def _as_json(report: Report, place: Place | None) -> dict[str, Any]:
    where = dict.fromkeys(Place.__struct_fields__) if place is None else msgspec.to_builtins(place)
    return {**msgspec.to_builtins(report.stats), "letters": report.letters, **where}


def draw(screen: Screen, app: Relevo, report: Report, place: Place | None) -> None:
    """Show it to people."""
    stats = report.stats
    screen.line(f"queue {stats.name} of app {app.name} in {app.settings.env}")
    waits = (
        f"{stats.ready:,} ready, {stats.scheduled:,} scheduled, {stats.waiting:,} waiting, {stats.running:,} running"
    )
    ended = f"{stats.done:,} done, {stats.dead:,} dead, {stats.cancelled:,} cancelled, {stats.expired:,} expired"
    fields = [("jobs", waits), ("records", ended), ("to deliver", plural(report.letters, "message"))]
    fields += [("idle workers", str(stats.idle_workers)), ("paused", "yes" if stats.paused else "no")]
    if place is not None:
        count = "not known: the ACL forbids to ask" if place.keys is None else plural(place.keys, "key")
        fields.append(("slot", f"{place.slot} on {place.node}, {count}"))
    screen.fields(fields)
