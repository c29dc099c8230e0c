"""The command line of relevo with the app of this project, whatever the arguments say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management.base import CommandError

from relevo.cli.exits import Exit
from relevo.cli.main import main
from relevo.errors import RelevoError

APP = "relevo.django.worker:app"


def run(arguments: list[str]) -> int:
    """Run one command of relevo: its exit code."""
    os.environ["RELEVO_APP"] = APP
    return main(arguments)


@contextmanager
def errors_as_lines() -> Iterator[None]:
    """Errors of relevo as one line, and exit code 2."""
    try:
        yield
    except RelevoError as error:
        raise CommandError(str(error), returncode=int(Exit.CRITICAL)) from error
