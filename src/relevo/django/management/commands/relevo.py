"""`manage.py relevo worker|status|health|dead|…`: the command line of relevo for this project's app."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from relevo.django.management.command_line import run


class Command(BaseCommand):
    """The command."""

    help = "The command line of relevo for this project: worker, status, health, dead, schedules, purge, …"
    requires_system_checks: list[str] = []  # noqa: RUF012
    #: What stands before the arguments.
    words: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Give all arguments to relevo's parser; exits with its code."""
        sys.exit(run([*self.words, *argv[2:]]))

    def print_help(self, *_: str) -> None:
        """For `manage.py help relevo`."""
        run([*self.words, "--help"])

    def add_arguments(self, parser: CommandParser) -> None:
        """For `call_command("relevo", "status", "--json")`."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_: Any, **options: Any) -> None:
        """Called by `call_command`."""
        code = run([*self.words, *options["arguments"]])
        if code:
            sys.exit(code)
