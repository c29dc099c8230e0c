"""The app for worker processes and the command line: `relevo worker relevo.django.worker:app`.

Sets Django up (DJANGO_SETTINGS_MODULE) and imports all tasks.
"""

from __future__ import annotations

from relevo.django.set_up import app  # first: all else needs the settings

# isort: split
from relevo.django.discovery import discover

__all__ = ["app"]

discover()
