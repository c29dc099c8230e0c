"""`relevo dead export` and `import`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from relevo.app import Relevo
from relevo.cli.exits import Exit
from relevo.cli.progress import Progress
from relevo.cli.screen import Screen, plural
from relevo.dead.cli.filters import audit_details, filters_of, refuse_what_finds_nothing
from relevo.errors import ConfigurationError


def export(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Write dead letters as lines of JSON."""
    if args.json and args.output == "-":
        raise ConfigurationError(
            "the dead letters go to standard output as lines of JSON already: leave out --json, or give -o"
        )
    count = 0
    refuse_what_finds_nothing(app, args)
    doing = app.audit.doing("dead.export", via="cli", **audit_details(args))
    with doing, _written(args.output) as file, Progress() as progress:
        for line in app.dead.export(**filters_of(args)):
            file.write(line)
            count += 1
            doing.tell(count)
            progress.tell(f"{count:,} dead letters")
        doing.tell(count)  # also if there was none
    if args.json:
        screen.json({"exported": count, "file": args.output})
    elif args.output != "-":
        screen.line(f"exported {plural(count, 'dead letter')} to {args.output}")
    return Exit.OK


@contextlib.contextmanager
def _written(name: str) -> Iterator[BinaryIO]:
    """The file to write to. A pipe or a device is opened itself: replacing it would break it for its other users."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()  # here, where a failure is still part of the export
        return
    path = Path(name)
    try:
        is_file = path.is_file() or not path.exists()
        # A link stays a link: the file that it points to is replaced.
        with _whole(Path(os.path.realpath(path))) if is_file else path.open("wb") as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be written: {error.strerror}") from error


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file that exists complete or not at all, and that only its owner may read: it holds arguments."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Import dead letters from lines of JSON."""
    with app.audit.doing("dead.import", via="cli") as doing, Progress() as progress, _opened(args.file) as file:
        done = app.dead.load(_counted(file, progress), watch=doing.tell)
    if args.json:
        refused = [{"line": number, "why": why} for number, why in done.refused]
        screen.json({"new": done.new, "known": done.known, "refused": refused, "dropped": done.dropped})
    else:
        screen.line(f"imported {plural(done.new, 'dead letter')}, {done.known:,} were there already")
        if done.dropped:
            screen.line(f"dropped: the oldest {done.dropped:,}: a queue keeps {app.settings.dead_max:,}", "yellow")
        for number, why in done.refused:
            screen.line(f"refused: line {number}: {why}", "yellow")
    return Exit.WARNING if done.refused or done.dropped else Exit.OK


@contextlib.contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(name, "rb") as file:
            yield file
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error.strerror}") from error


def _counted(lines: BinaryIO, progress: Progress) -> Iterator[bytes]:
    for number, line in enumerate(lines, 1):
        progress.tell(f"{number:,} lines")
        yield line
