"""relevo in Django's admin: jobs, dead letters, schedules and queues, without a table.

The admin finds this package by itself. A site of one's own that is not the default one:

    from relevo.django.admin import register

    register(my_site)
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin

from relevo.django import models
from relevo.django.admin.jobs import JobAdmin

__all__ = ["register"]

PAGES = ((models.Job, JobAdmin),)


def register(site: Any) -> None:
    """Add the pages of relevo to an admin site; those that it has stay."""
    for model, page in PAGES:
        if not site.is_registered(model):
            site.register(model, page)


register(admin.site)
