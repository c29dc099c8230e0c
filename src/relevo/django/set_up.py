"""Sets Django up when imported, unless it is already: the first import of worker processes and their children."""

from __future__ import annotations

import django
from django.apps import apps

if not apps.ready:
    django.setup()
