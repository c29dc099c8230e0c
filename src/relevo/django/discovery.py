"""Finds the tasks of a project: imports `tasks.py` of each installed app."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec

from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from relevo.django.site_app import app


def discover() -> None:
    """Import the modules of tasks (`RELEVO["discover"]`) of all installed apps."""
    autodiscover_modules(*app.site.discover)
    if has_tasks():
        from relevo.django.backend import register_tasks_of

        for name in places():
            if name in sys.modules:
                register_tasks_of(sys.modules[name])


def places() -> Iterator[str]:
    """The modules in which workers look for tasks."""
    for one in apps.get_app_configs():
        for name in app.site.discover:
            yield f"{one.name}.{name}"


def has_tasks() -> bool:
    """Whether this Django has tasks, of its own or from django-tasks."""
    return find_spec("django.tasks") is not None or apps.is_installed("django_tasks")
