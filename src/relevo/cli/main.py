"""The command `relevo`: finds the subcommand, runs it, and returns its exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import sys
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from relevo.audit import system_log
from relevo.cli import output, words
from relevo.cli.exits import Exit
from relevo.cli.options import HelpFormatter, Subparsers
from relevo.cli.screen import Screen
from relevo.errors import JobError, RelevoError, message_of
from relevo.text.legible import clean
from relevo.text.nearest import did_you_mean
from relevo.version import __version__

#: Each command is a module with `add` and `run`, imported when it is needed.
COMMANDS = {
    "worker": "relevo.cli.worker",
    "status": "relevo.cli.status",
    "top": "relevo.cli.top.command",
    "health": "relevo.health.cli",
    "queue": "relevo.queues.cli",
    "job": "relevo.engine.cli",
    "workflow": "relevo.workflows.cli",
    "dead": "relevo.dead.cli",
    "pause": "relevo.limits.cli.pause",
    "resume": "relevo.limits.cli.resume",
    "limit": "relevo.limits.cli.limit",
    "limits": "relevo.limits.cli.limits",
    "schedules": "relevo.schedules.cli",
    "services": "relevo.bus.cli.services",
    "trace": "relevo.bus.cli.trace",
    "conversation": "relevo.bus.cli.conversation",
    "cleanup": "relevo.upkeep.cli.cleanup",
    "purge": "relevo.upkeep.cli.purge",
    "audit": "relevo.audit.cli",
    "web": "relevo.cli.web",
    "doctor": "relevo.cli.doctor",
    "server": "relevo.cli.server",
    "completion": "relevo.cli.completion",
    "demo": "relevo.cli.demo.command",
}

DESCRIPTION = "Background jobs on Redis or Valkey: run them, watch them, repair them."
EPILOG = """\
examples:
  relevo demo                    see it work, with nothing to install
  relevo worker shop:app         run the jobs of the app in shop.py
  relevo status shop:app         how its queues and workers stand
  relevo job 01k9q4w2zhq3mf7d0a2f -A shop:app     why that job failed
  relevo doctor                  whether the server is fit to keep jobs

Each command explains itself: relevo COMMAND --help
Exit codes: 0 fine; 1 needs attention, or not found; 2 server unreachable, wrong
usage, or nowhere to write."""


class Command(Protocol):
    """A module of a command."""

    def add(self, subparsers: Subparsers) -> None:
        """Add the command and its options."""

    def run(self, args: argparse.Namespace) -> int:
        """Run the command; its exit code."""


def load(name: str) -> Command:
    """The module of a command."""
    return cast("Command", importlib.import_module(COMMANDS[name]))


def whole_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    build_parser(parser := _parser())
    return parser


def build_parser(parser: argparse.ArgumentParser, names: Iterable[str] = tuple(COMMANDS)) -> None:
    """Add the commands to a parser; a Django command brings its own."""
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    for name in names:
        load(name).add(subparsers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    output.open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not end a command
    try:
        try:
            args = _parse(arguments)
            # `relevo web` logs by itself.
            with contextlib.nullcontext() if args.command == "web" else system_log.copied():
                code = perform(args)
        except SystemExit:  # --help writes output, too
            sys.stdout.flush()
            raise
        sys.stdout.flush()  # here, where the error of a closed pipe or a full disk can still be handled
    except KeyboardInterrupt as stop:
        if how_far := getattr(stop, "__notes__", ()):
            print(f"relevo: {'; '.join(how_far)}", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        output.give_up()
        return Exit.PIPE_CLOSED
    except OSError as error:
        if not output.is_of_output(error):
            raise
        with contextlib.suppress(OSError):  # standard error may be on the full disk
            print(f"relevo: output cannot be written: {error.strerror}", file=sys.stderr)
        output.give_up()
        return Exit.CRITICAL
    return code


def perform(args: argparse.Namespace) -> int:
    """Run the command that was parsed. An error of relevo becomes one line and an exit code."""
    try:
        return load(args.command).run(args)
    except RelevoError as error:
        if getattr(args, "json", False):
            Screen().json({"error": _kind(error), "message": message_of(error)})
        print(f"relevo: {clean(message_of(error))}", file=sys.stderr)
        return Exit.WARNING if isinstance(error, JobError) else Exit.CRITICAL


def _kind(error: RelevoError) -> str:
    """The documented name of the error, not that of a subclass inside the store."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "relevo.errors")


def _parser() -> argparse.ArgumentParser:
    """The parser without its commands."""
    parser = argparse.ArgumentParser(
        "relevo",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"relevo {__version__}")
    return parser


def _parse(arguments: list[str]) -> argparse.Namespace:
    arguments = words.app_last(arguments)
    parser = _parser()
    first = arguments[0] if arguments else ""
    if first and not first.startswith("-") and first not in COMMANDS:
        near = did_you_mean(first, COMMANDS) or "."
        parser.error(f"unknown command {first!r}{near} There are: {', '.join(COMMANDS)}")
    # Only this command is imported: a fault in one must not stop the others.
    build_parser(parser, [first] if first in COMMANDS else COMMANDS)
    if first in COMMANDS:
        arguments = words.with_action(arguments, getattr(load(first), "ACTIONS", ()))
    args, surplus = parser.parse_known_args(arguments)
    if hasattr(args, "module_app"):
        words.assign(args, surplus)
    elif surplus:
        parser.error(f"unrecognized arguments: {' '.join(surplus)}")
    return args


if __name__ == "__main__":
    sys.exit(main())
