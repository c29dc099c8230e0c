"""Sets Django up when imported, unless it is already: the first import of worker processes and their children."""

from __future__ import annotations

from django.apps import apps

import django

if not apps.ready:
    django.setup()
