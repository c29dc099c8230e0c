"""relevo in Django's admin: jobs, dead letters, schedules and queues, without a table.

The admin finds this package by itself. A site of one's own that is not the default one:

    from relevo.django.admin import register

    register(my_site)
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from relevo.django import models
from relevo.django.admin.dead import DeadLetterAdmin
from relevo.django.admin.jobs import JobAdmin
from relevo.django.admin.queues import QueueAdmin
from relevo.django.admin.schedules import ScheduleAdmin

__all__ = ["register"]

PAGES: tuple[tuple[Any, Any], ...] = (
    (models.Job, JobAdmin),
    (models.DeadLetter, DeadLetterAdmin),
    (models.Schedule, ScheduleAdmin),
    (models.Queue, QueueAdmin),
)


def register(site: Any) -> None:
    """Add the pages of relevo to an admin site; those that it has stay."""
    for model, page in PAGES:
        if not site.is_registered(model):
            site.register(model, page)


register(admin.site)
