"""`manage.py setup_periodic_tasks`: registers the schedules of the project's tasks and settings now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.core.management.base import BaseCommand
from django.utils.timezone import localtime

from relevo.django.management.command_line import errors_as_lines
from relevo.schedules.firing import registering_all


class Command(BaseCommand):
    """The command. Workers register the same schedules when they start; run again, it changes nothing."""

    help = "Register the schedules of tasks.py and of RELEVO, and list them. Exit code 2: the server is out of reach."

    def handle(self, *_: Any, **__: Any) -> None:
        """Register, and show what stands."""
        from relevo.django.discovery import discover
        from relevo.django.site_app import app

        discover()
        with errors_as_lines():
            app.engine.run(registering_all(app.engine))
            for one in app.schedules.list():
                line = f"{one.name}: {one.task}, {one.words}, priority {one.priority}, next {_time(one.next_ms)}"
                self.stdout.write(line)


def _time(ms: int | None) -> str:
    return "never" if ms is None else f"{localtime(datetime.fromtimestamp(ms / 1000, UTC)):%Y-%m-%d %H:%M}"
