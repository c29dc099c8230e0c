"""Sets Django up when imported, unless it is already: the first import of worker processes and their children."""

from __future__ import annotations

from django.apps import apps

import django

__all__ = ["app"]

if not apps.ready:
    django.setup()

from relevo.django.site_app import app  # needs the settings
