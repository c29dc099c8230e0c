"""`relevo services`: the services of the bus, their instances, their actions, and the state of their queues."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from relevo.app import Relevo
from relevo.bus.asyncapi import document
from relevo.bus.catalogue import Catalogue, ServiceInfo, catalogue, concerns
from relevo.bus.cli import services_view as view
from relevo.bus.conversations import Tally
from relevo.cli import target
from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, add_app, add_json, command, pause
from relevo.cli.screen import Screen, plural
from relevo.cli.words import add_name
from relevo.errors import ConfigurationError, StoreError
from relevo.text.legible import clean
from relevo.text.nearest import did_you_mean


class Report(Struct, frozen=True, kw_only=True):
    """All that is shown, and the JSON output."""

    prefix: str
    env: str
    now_ms: int
    level: str
    warnings: list[str]
    services: tuple[ServiceInfo, ...]
    #: Of all services: how many messages of each kind were made, and what became of them.
    tallies: dict[str, Tally]


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "services",
        "show the services of the bus and their actions",
        about="""
        Without a name: all services under the prefix and env. With one: its actions with what they take and return,
        its queues, instances and subscriptions. No app needs to be named: all apps share the bus.

        Exit code 0: fine. 1: messages wait and no process serves them, a queue is paused, a service has no process
        left or no free slot, a subscription is full or about to be removed, or there is no such service. 2: the
        server cannot be reached.
        """,
        examples="""
        relevo services
        relevo services embedding
        relevo services --env prod --json                for a monitor: imports nothing
        relevo services --watch                          look again every two seconds
        relevo services --asyncapi -o bus.json           what all services offer, as AsyncAPI 3.0
        """,
    )
    add_name(parser, "service", metavar="NAME", nargs="?", help="only this one, with all that is known of it")
    parser.add_argument("--watch", type=pause, nargs="?", const=2.0, metavar="SECONDS", help="refresh until Ctrl-C")
    parser.add_argument("--asyncapi", action="store_true", help="print an AsyncAPI 3.0 document (JSON) instead")
    parser.add_argument("-o", "--output", metavar="FILE", help="with --asyncapi: write it there")
    add_json(parser)
    add_app(parser, needed=False)


def run(args: argparse.Namespace) -> int:
    """Look, and show it."""
    if args.watch and (args.json or args.asyncapi or not sys.stdout.isatty()):
        raise ConfigurationError("--watch refreshes a terminal: leave it out when output is JSON or goes elsewhere")
    if args.output and not args.asyncapi:
        raise ConfigurationError("-o names the file of --asyncapi: give that, too, or leave it out")
    screen = Screen()
    with closing(target.find(args, unnamed="relevo")) as app:
        if args.watch:
            _watch(screen, app, args.service, args.watch)
        found, tallies = app.engine.run(catalogue(app.engine)), app.conversations.counts()
    report = _report(found, tallies, args.service)
    if args.asyncapi:
        if not report.services:
            print(f"relevo: nothing to describe: {clean(report.warnings[0])}", file=sys.stderr)
            return Exit.WARNING
        return _export(screen, found if args.service is None else found.of(args.service), args.output)
    if args.json:
        screen.json(report)
    else:
        _draw(screen, report, args.service)
    return Exit.WARNING if report.warnings else Exit.OK


def _watch(screen: Screen, app: Relevo, service: str | None, pause: float) -> None:
    while True:  # until Ctrl-C
        try:
            report = _report(app.engine.run(catalogue(app.engine)), app.conversations.counts(), service)
        except StoreError as error:  # part of what is watched: show it and look again
            screen.clear()
            screen.line(str(error), "bold red")
        else:
            screen.clear()
            _draw(screen, report, service)
        time.sleep(pause)


def _report(found: Catalogue, tallies: dict[str, Tally], service: str | None) -> Report:
    shown = found if service is None else found.of(service)
    warnings = concerns(shown)
    if not shown.services:
        known = sorted({one.name for one in found.services})
        where = f"under {found.prefix!r} in {found.env!r}"
        if known:
            warnings = [f"there is no service {service!r:.80} {where}{did_you_mean(str(service), known)}"]
        else:
            warnings = [f"there is no service {where}: none was served or sent to recently; check --env and the server"]
    level = "warning" if warnings else "ok"
    return Report(
        prefix=found.prefix,
        env=found.env,
        now_ms=found.now_ms,
        level=level,
        warnings=warnings,
        services=shown.services,
        tallies=tallies,
    )


def _draw(screen: Screen, report: Report, service: str | None) -> None:
    found = Catalogue(report.prefix, report.env, report.now_ms, report.services)
    if service is None:
        view.draw_all(screen, found)
        view.draw_tallies(screen, report.tallies)
    else:
        view.draw_one(screen, found)
    if report.warnings and (report.services or service is None):
        screen.line()
    for warning in report.warnings:
        screen.line(f"warning: {warning}", "yellow")


def _export(screen: Screen, found: Catalogue, output: str | None) -> int:
    made = document(found)
    if output is None:
        screen.json(made)
        return Exit.OK
    try:
        Path(output).write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{output} cannot be written: {error.strerror}") from error
    screen.line(
        f"wrote {output}: {plural(len(made['channels']), 'channel')}, {plural(len(made['operations']), 'operation')}"
    )
    return Exit.OK
