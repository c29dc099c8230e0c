"""relevo as an installed app of a Django project."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed


class RelevoConfig(AppConfig):
    """Registers the system checks, and follows `override_settings`."""

    name = "relevo.django"
    label = "relevo"
    verbose_name = "Relevo"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django when all apps are loaded."""
        from relevo.django.checks import check_deployment, check_settings

        checks.register(check_settings, "relevo")
        checks.register(check_deployment, "relevo", deploy=True)
        setting_changed.connect(_follow, dispatch_uid="relevo.django")


def _follow(*, setting: str, **_: Any) -> None:
    if setting in ("RELEVO", "REDIS_URL"):
        from relevo.django.site_app import app

        app.follow_settings()
