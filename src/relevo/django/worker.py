"""The app for worker processes and the command line: `relevo worker relevo.django.worker:app`.

Sets Django up (DJANGO_SETTINGS_MODULE) and imports all tasks.
"""

from __future__ import annotations

import relevo.django.set_up  # noqa: F401  # before anything that needs the settings
from relevo.django.discovery import discover
from relevo.django.site_app import app

__all__ = ["app"]

discover()
