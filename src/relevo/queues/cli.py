"""`relevo queue`: list queues; show, pause, limit, drain or clear one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Generator
from contextlib import closing
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, add_page, command, group
from relevo.cli.progress import Progress
from relevo.cli.refusing import refuse_unknown_queue
from relevo.cli.screen import Screen, plural, tell_more
from relevo.cli.words import add_name
from relevo.engine.lists import known_queues, listed_queues
from relevo.errors import OptionError
from relevo.limits.cli import limit, limits, pause, resume
from relevo.queues import store as queues
from relevo.queues.searching import ORDER
from relevo.queues.store import Place, QueueStats
from relevo.store.plan import Ahead, Call, Steps
from relevo.text.durations import seconds

#: Actions that are commands by themselves, too.
_LIMITS: dict[str, ModuleType] = {"pause": pause, "resume": resume, "limit": limit, "limits": limits}
#: `relevo queue NAME` is `relevo queue show NAME`, and `relevo queue` alone is `relevo queue list`.
ACTIONS = ("list", "show", *_LIMITS, "drain", "clear")

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
    actions = group(
        subparsers,
        "queue",
        "list queues; show, pause, limit, drain or clear one",
        about="""
        `relevo queue NAME` is short for `relevo queue show NAME`, and `relevo queue` alone for `relevo queue list`.
        `relevo pause`, `resume`, `limit` and `limits` are short for these actions.
        """,
        examples="""
        relevo queue list -A shop:app
        relevo queue mail --name shop
        relevo queue pause mail --name shop --until 2h
        relevo queue drain mail --name shop --timeout 10m
        """,
    )
    _add_list(actions)
    _add_show(actions)
    for name, module in _LIMITS.items():
        module.add(actions, f"relevo queue {name}")
    _add_drain(actions)
    _add_clear(actions)


def _add_list(actions: Subparsers) -> None:
    parser = command(
        actions,
        "list",
        "all queues in use, with how many jobs are in each state",
        examples="""
        relevo queue list -A shop:app
        relevo queue list --name shop --env prod --json
        """,
    )
    add_page(parser, 100)
    add_json(parser)
    add_app(parser)


def _add_show(actions: Subparsers) -> None:
    parser = command(
        actions,
        "show",
        "one queue: how it stands, and where a cluster keeps it",
        about="""
        Of a cluster it shows the slot of the queue, its node, and how many keys move with the slot. A name that is not
        in use is shown as well, to find one on the node you want. Exit code 1: the queue is not in use.
        """,
        examples="""
        relevo queue show mail -A shop:app
        relevo queue show mail --name shop --env prod --json
        """,
    )
    add_name(parser, "queue", metavar="QUEUE")
    add_json(parser)
    add_app(parser)


def _add_drain(actions: Subparsers) -> None:
    parser = command(
        actions,
        "drain",
        "wait until a queue is empty",
        about="""
        Waits until no job is left and all that jobs sent to other queues is delivered. Enqueueing still works: stop the
        producers before, or let them use another queue. Records of ended jobs stay for their time.
        Exit code 1: --timeout passed before it was empty.
        """,
        examples="""
        relevo queue drain mail -A shop:app
        relevo queue drain mail --name shop --timeout 10m
        """,
    )
    add_name(parser, "queue", metavar="QUEUE")
    parser.add_argument("--timeout", type=_duration, metavar="DURATION", help="wait no longer than that, such as 10m")
    add_json(parser)
    add_app(parser)


def _add_clear(actions: Subparsers) -> None:
    parser = command(
        actions,
        "clear",
        "remove all jobs that have not started; running jobs continue",
        about="Without --yes it only says how many there are. What was removed cannot be restored.",
        examples="""
        relevo queue clear mail -A shop:app
        relevo queue clear mail --name shop --yes
        """,
    )
    add_name(parser, "queue", metavar="QUEUE")
    parser.add_argument("--yes", action="store_true", help="do it")
    add_json(parser)
    add_app(parser)


def _duration(text: str) -> float:
    try:
        return seconds(text, what="--timeout")
    except OptionError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--timeout: ")) from error


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if args.action in _LIMITS:
        code: int = _LIMITS[args.action].run(args)
        return code
    with closing(target.find(args)) as app:
        match args.action:
            case "list":
                return _list(app, args)
            case "clear":
                return _clear(app, args)
            case _:
                return _one(app, args)


def _list(app: Relevo, args: argparse.Namespace) -> int:
    found, next = app.engine.run(_page(app, args.limit, args.after))
    if args.json:
        Screen().page(found, next)
        return Exit.OK if found else target.code_of_nothing(app)
    if found:
        Screen().columns(
            {"queue": [one.name for one in found]}
            | {state.value: [getattr(one, state.value) for one in found] for state in ORDER}
            | {"idle": [one.idle_workers for one in found], "paused": [one.paused for one in found]},
            spare=["cancelled", "expired", "done", "idle"],
        )
    else:
        Screen().line("no queues yet")
    tell_more(next)
    return Exit.OK if found else target.code_of_nothing(app)


def _page(app: Relevo, limit: int, after: str) -> Steps[tuple[list[QueueStats], str | None]]:
    names = [name for name in (yield from listed_queues(app.engine)) if name > after]
    found: list[QueueStats] = yield Ahead(queues.count(app.engine.keys_of(name), name) for name in names[:limit])
    return found, names[limit - 1] if len(names) > limit else None


def _clear(app: Relevo, args: argparse.Namespace) -> int:
    refuse_unknown_queue(app, args.queue)
    queue = app.queue(args.queue)
    if args.yes:
        count = queue.clear()
        app.audit.note("queue.clear", via="cli", count=count, queue=args.queue)
    else:
        stats = queue.stats()
        count = stats.living - stats.running
    if args.json:
        Screen().json({"queue": args.queue, "removed": count, "dry_run": not args.yes})
    elif args.yes:
        Screen().line(f"removed {plural(count, 'job')}")
    else:
        Screen().line(f"{plural(count, 'job')} would be removed: say --yes", "yellow")
    return Exit.OK


def _one(app: Relevo, args: argparse.Namespace) -> int:
    """Look at a queue, or wait, and show how it stands."""
    if args.action == "drain":
        refuse_unknown_queue(app, args.queue)
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
            Screen().line("\nnot empty yet" if args.action == "drain" else "\nnot in use", "yellow")
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
