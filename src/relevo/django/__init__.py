"""relevo in a Django project: add "relevo.django" to INSTALLED_APPS, and in `tasks.py` of any app:

    from relevo.django import app

    @app.task(retries=3)
    def send_welcome(user_id: int) -> None: ...

    send_welcome.enqueue(user.pk)        # in a transaction: sent when it commits

`RELEVO = {...}` in the Django settings takes the settings of relevo, `REDIS_URL` the server. Workers: `manage.py relevo
worker`. For Django's own tasks, `relevo.django.Backend` is a backend of `TASKS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relevo.django.backend import Backend
    from relevo.django.site_app import SiteApp
    from relevo.django.tasks_options import options
    from relevo.django.testing import RelevoTestCase, RelevoTestMixin, RelevoTransactionTestCase

    app: SiteApp

__all__ = ["Backend", "RelevoTestCase", "RelevoTestMixin", "RelevoTransactionTestCase", "app", "options"]

_HOMES = {
    "app": "site_app",
    "options": "tasks_options",
    "Backend": "backend",
    "RelevoTestCase": "testing",
    "RelevoTestMixin": "testing",
    "RelevoTransactionTestCase": "testing",
}


def __getattr__(name: str) -> Any:
    # Imported when used: Django imports this package before its settings and models are ready.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
