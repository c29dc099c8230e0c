"""`manage.py relevo worker|status|health|dead|…`: the command line of relevo for this project's app."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

APP = "relevo.django.worker:app"


class Command(BaseCommand):
    """The command."""

    help = "The command line of relevo for this project: worker, status, health, dead, schedules, purge, …"
    requires_system_checks: list[str] = []  # noqa: RUF012

    def run_from_argv(self, argv: list[str]) -> None:
        """Give all arguments but Django's own to relevo's parser; exits with its code."""
        sys.exit(run(argv[2:]))

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command("relevo", "status", "--json")`."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_: Any, **options: Any) -> None:
        """Called by `call_command`."""
        code = run([*options["arguments"]])
        if code:
            sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command of relevo with the app of this project."""
    from relevo.cli.main import main

    os.environ["RELEVO_APP"] = APP
    return main(arguments)
