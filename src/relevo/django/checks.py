"""System checks: `manage.py check` finds what is wrong with the settings before a job is lost."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.apps import apps
from django.conf import settings as site
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as Caution

from relevo.django import settings as site_settings
from relevo.errors import ConfigurationError

BACKEND = "relevo.django.Backend"


def check_settings(**_: Any) -> list[CheckMessage]:
    """`RELEVO`, and what `TASKS` says about our backend."""
    try:
        site_settings.load()
    except ConfigurationError as error:
        hint = "The names are those of the settings of relevo, and " + ", ".join(site_settings.OWN) + "."
        return [Error(str(error), hint=hint, id="relevo.E001")]
    return [*_check_tasks_package(), *_check_outbox()]


def _check_tasks_package() -> list[CheckMessage]:
    tasks = getattr(site, "TASKS", {})
    ours = [alias for alias, backend in tasks.items() if backend.get("BACKEND") == BACKEND]
    if ours and find_spec("django.tasks") is None and not apps.is_installed("django_tasks"):
        return [
            Error(
                f"TASKS[{ours[0]!r}] uses {BACKEND}, and this Django has no tasks of its own.",
                hint='Install django-tasks (pip install "relevo[django]") and add "django_tasks" to INSTALLED_APPS.',
                id="relevo.E003",
            )
        ]
    return []


def _check_outbox() -> list[CheckMessage]:
    if site_settings.load().outbox and not apps.is_installed("relevo.django.outbox"):
        return [
            Error(
                'RELEVO["outbox"] is on, and its table is not there.',
                hint='Add "relevo.django.outbox" to INSTALLED_APPS and run manage.py migrate.',
                id="relevo.E002",
            )
        ]
    return []


def check_deployment(**_: Any) -> list[CheckMessage]:
    """With `manage.py check --deploy`."""
    try:
        found = site_settings.load()
    except ConfigurationError:
        return []  # an error of its own
    if found.relevo.url is None:
        return [
            Caution(
                "No server is named, so jobs are kept by the embedded server, which is for development.",
                hint="Set REDIS_URL in the Django settings, or RELEVO_URL in the environment.",
                id="relevo.W002",
            )
        ]
    return []
