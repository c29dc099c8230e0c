"""`manage.py import_celery_beat`: makes schedules of relevo from those of django-celery-beat."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec
from django.apps import apps
from django.core.management.base import BaseCommand, CommandError, CommandParser

from relevo.cli.exits import Exit
from relevo.django.management.command_line import errors_as_lines


class Command(BaseCommand):
    """The command. Run again, it makes nothing twice."""

    help = (
        "Make schedules of relevo from the periodic tasks of django-celery-beat: intervals, crontabs and clocked ones. "
        "Its tables stay as they are. Stop Celery's beat first. Exit code 1: some cannot be imported. 2: the server "
        "cannot be reached."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Its options."""
        parser.add_argument("--dry-run", action="store_true", help="only read and count")
        parser.add_argument("--json", action="store_true", help="print the report as JSON")
        parser.add_argument(
            "--map",
            metavar="OLD=NEW",
            action="append",
            default=[],
            help="the task of Celery called OLD is called NEW now; may be repeated",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Import, and report."""
        if not apps.is_installed("django_celery_beat"):
            raise CommandError('"django_celery_beat" is not in INSTALLED_APPS: its tables cannot be read')
        from relevo.django.celery_beat.importing import Importer, ImportReport
        from relevo.django.discovery import discover
        from relevo.django.site_app import app

        discover()
        report = ImportReport(dry_run=options["dry_run"])
        with errors_as_lines():
            rows = apps.get_model("django_celery_beat", "PeriodicTask")._default_manager.all()
            Importer(app, _mapped(options["map"]), report).run(rows)
        if options["json"]:
            self.stdout.write(json.dumps(msgspec.to_builtins(report), indent=2))
        else:
            self._write(report)
        if report.left:
            sys.exit(int(Exit.WARNING))

    def _write(self, report: Any) -> None:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(report.imported.items()))
        verb = "would be imported" if report.dry_run else "imported"
        self.stdout.write(f"{sum(report.imported.values())} {verb}{f' ({kinds})' if kinds else ''}")
        if report.unchanged:
            self.stdout.write(f"{report.unchanged} are there already")
        if report.paused:
            self.stdout.write(f"{report.paused} of them paused, as they are not enabled")
        for note in report.notes:
            self.stdout.write(f"  {note['name']}: {note['note']}")
        if report.left:
            self.stdout.write(f"{len(report.left)} not imported:")
        for one in report.left:
            self.stdout.write(f"  {one['name']}: {one['reason']}")


def _mapped(given: list[str]) -> dict[str, str]:
    found = {}
    for text in given:
        old, sign, new = text.partition("=")
        if not (old and sign and new):
            raise CommandError(f"--map: OLD=NEW is needed, found {text!r:.80}")
        found[old] = new
    return found
