"""`manage.py migrate_taskqueue`: moves the rows of a task queue in the database into relevo, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from relevo.cli.exits import Exit
from relevo.django.management.command_line import errors_as_lines


class Command(BaseCommand):
    """The command. Killed at any moment and run again, it loses no task and doubles none."""

    help = (
        "Move the pending, delayed, retrying and repeated tasks of the table TaskQueueElement into relevo; with "
        "--back, what waits in relevo into the table. Stop the workers first. Run it again after an interruption. "
        "Exit code 1: something was left where it is. 2: the server cannot be reached."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Its options."""
        parser.add_argument("--back", action="store_true", help="from relevo into the table")
        parser.add_argument("--dry-run", action="store_true", help="only read and count")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument("--model", metavar="APP.MODEL", help="the table (default: the one called TaskQueueElement)")
        parser.add_argument("--database", metavar="ALIAS", default="default", help="where it is (default: default)")

    def handle(self, *_: Any, **options: Any) -> None:
        """Move, and report."""
        from relevo.compat.current import current_app
        from relevo.django.discovery import discover
        from relevo.django.migration.back import BackMover
        from relevo.django.migration.forward import Mover
        from relevo.django.migration.report import MoveReport
        from relevo.django.migration.table import Table
        from relevo.django.site_app import app
        from relevo.engine.workers import roll

        discover()
        if current_app() is not app:
            raise CommandError(
                "Enqueue puts tasks elsewhere than this command would. In core/taskqueue.py write: "
                "from relevo.compat import configure; from relevo.django import app; configure(app)"
            )
        table = Table(options["model"], options["database"])
        direction = f"into {table.label}" if options["back"] else "into relevo"
        report = MoveReport(table=table.label, app=app.name, direction=direction, dry_run=options["dry_run"])
        kind = BackMover if options["back"] else Mover
        mover: BackMover | Mover = kind(app, table, report, self._progress(options))
        with errors_as_lines():
            workers = app.engine.run(roll(app.engine.keys, app.engine.run(app.engine.now_ms())))[0]
            if options["back"] and workers and not options["dry_run"]:
                raise CommandError(f"{len(workers)} workers of relevo run; stop them first, or tasks would run twice")
            mover.run()
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json(), indent=2))
        else:
            for line in report.lines():
                self.stdout.write(line)
        if report.left_count:
            sys.exit(int(Exit.WARNING))

    def _progress(self, options: dict[str, Any]) -> Callable[[int, int], None]:
        is_quiet = options["json"] or not options["verbosity"]
        shown = 0

        def tell(done: int, all: int) -> None:
            nonlocal shown
            if not is_quiet and (done - shown >= 2000 or done == all > 2000):
                shown = done
                self.stderr.write(f"{done:,} of {all:,}")

        return tell
