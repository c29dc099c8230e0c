"""`manage.py redis_queue_status`: the state of the queue in a few lines, and an exit code for monitors."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand

from relevo.cli.exits import Exit
from relevo.cli.status import Report, look
from relevo.django.management.command_line import errors_as_lines
from relevo.text.legible import clean

ENDED = ("done", "dead", "cancelled", "expired")


class Command(BaseCommand):
    """The command."""

    help = (
        "Show the connection, how many tasks wait and how many records are kept, and the next five tasks. "
        "Exit code 0: fine. 1: no worker, or something needs attention. 2: the server cannot be reached."
    )

    def handle(self, *_: Any, **__: Any) -> None:
        """Look, show it, and exit with the code."""
        from relevo.django.site_app import app

        with errors_as_lines():
            report = look(app, 5)
        warnings = _warnings(report)
        for line in _lines(report):
            self.stdout.write(clean(line))
        for warning in warnings:
            self.stdout.write(self.style.WARNING(f"✗ {clean(warning)}"))
        if warnings:
            sys.exit(int(Exit.WARNING))


def _lines(report: Report) -> list[str]:
    living = sum(queue.living for queue in report.queues)
    ended = sum(getattr(queue, state) for queue in report.queues for state in ENDED)
    lines = [
        f"✓ Redis connection: OK ({report.server.engine} {report.server.version} at {report.server.address})",
        f"✓ Workers: {len(report.workers)}",
        f"✓ Tasks in queue: {living}",
        f"✓ Task data entries: {living + ended}",
    ]
    if report.next:
        lines += ["", "Next 5 tasks in queue:"]
        lines += [f"  - {job.name or job.task} (priority: {job.priority})" for job in report.next[:5]]
    return lines


def _warnings(report: Report) -> list[str]:
    return report.warnings if report.workers else ["no worker is running", *report.warnings]
