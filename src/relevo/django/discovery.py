"""Finds the tasks of a project: imports `tasks.py` of each installed app."""

from __future__ import annotations

from django.utils.module_loading import autodiscover_modules

from relevo.django.site_app import app


def discover() -> None:
    """Import the modules of tasks (`RELEVO["discover"]`) of all installed apps."""
    autodiscover_modules(*app.site.discover)
