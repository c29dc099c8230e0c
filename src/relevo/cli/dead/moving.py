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
from relevo.cli.dead.filters import filters_of, refuse_unknown_queue, said
from relevo.cli.dead.runs import Progress
from relevo.cli.exits import Exit
from relevo.cli.screen import Screen, plural
from relevo.errors import ConfigurationError


def export(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """Write letters as lines."""
    if args.json and args.output == "-":
        raise ConfigurationError(
            "the letters go to standard output as lines of JSON already: leave out --json, or say -o"
        )
    count = 0
    refuse_unknown_queue(app, args.queue)
    with _written(args.output) as file, Progress() as progress:
        for line in app.dead.export(**filters_of(args)):
            file.write(line)
            count += 1
            progress.tell(f"{count:,} letters")
    app.audit.note("dead.export", via="cli", count=count, **said(args))
    if args.json:
        screen.json({"exported": count, "file": args.output})
    elif args.output != "-":
        screen.line(f"exported {plural(count, 'dead letter')} to {args.output}")
    return Exit.OK


@contextlib.contextmanager
def _written(name: str) -> Iterator[BinaryIO]:
    """A file that is there as a whole or not at all, and that nobody else may read: it holds arguments."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def load(screen: Screen, app: Relevo, args: argparse.Namespace) -> int:
    """File letters from lines."""
    with Progress() as progress, _opened(args.file) as file:
        done = app.dead.load(_counted(file, progress))
    if done.new:
        app.audit.note("dead.import", via="cli", count=done.new)
    if args.json:
        refused = [{"line": number, "why": why} for number, why in done.refused]
        screen.json({"new": done.new, "known": done.known, "refused": refused})
    else:
        screen.line(f"imported {plural(done.new, 'dead letter')}, {done.known:,} were there already")
        for number, why in done.refused:
            screen.line(f"refused: line {number}: {why}", "yellow")
    return Exit.WARNING if done.refused else Exit.OK


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
