"""`manage.py ifdbworker`: a worker that runs one task at a time."""

from __future__ import annotations

from relevo.django.management.commands.relevo import Command as RelevoCommand


class Command(RelevoCommand):
    """`relevo worker`, one task at a time unless `-c` and `-t` say otherwise."""

    help = "Run the tasks of the site, one at a time; options as of `relevo worker`: -c and -t for several at once."
    words = ("worker", "--concurrency", "1", "--threads", "1")
