"""`manage.py cleanup_task_data`: removes the records of tasks that ended long ago."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from relevo.django.management.command_line import errors_as_lines


class Command(BaseCommand):
    """The command."""

    help = "Remove the records of tasks that ended more than --days ago; what waits or runs stays. For a weekly timer."

    def add_arguments(self, parser: CommandParser) -> None:
        """Its options."""
        parser.add_argument("--days", type=float, default=7, help="remove what ended so long ago (default: 7)")
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def handle(self, *_: Any, **options: Any) -> None:
        """Do it, and say how many."""
        from relevo.django.maintenance import TaskQueueCleanup

        with errors_as_lines():
            count = TaskQueueCleanup(options["days"], dry_run=options["dry_run"])
        would = "Would clean up" if options["dry_run"] else "Cleaned up"
        self.stdout.write(f"{would} {count} old task records")
