"""The site of `relevo web` beside the admin, for those who are logged in there:

    # asgi.py
    from django.core.asgi import get_asgi_application
    from relevo.django.web import with_relevo

    application = with_relevo(get_asgi_application(), at="/admin/relevo/web")

Who has all permissions of relevo to look is a viewer, who may also change is an operator, who may also delete an admin.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings as site_settings
from django.contrib import admin
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.module_loading import import_string
from starlette.requests import HTTPConnection

from relevo.app import Relevo
from relevo.django.discovery import discover
from relevo.django.site_app import app
from relevo.errors import ConfigurationError
from relevo.web import needs_extra
from relevo.web.access import Caller, Role
from relevo.web.gate import Gate, tokens_of
from relevo.web.problems import Refused
from relevo.web.site import site

LOOK = ("view_job", "view_deadletter", "view_schedule", "view_queue")
CHANGE = (
    *("view_output_job", "retry_job", "cancel_job", "change_job", "retry_deadletter"),
    *("change_schedule", "run_schedule", "change_queue"),
)
DELETE = ("delete_job", "delete_deadletter", "delete_schedule", "delete_queue")
#: The permissions of relevo that make a role, each with those of the roles below it.
ROLES = ((Role.ADMIN, (*LOOK, *CHANGE, *DELETE)), (Role.OPERATOR, (*LOOK, *CHANGE)), (Role.VIEWER, LOOK))


def with_relevo(django: Any, *, at: str = "/admin/relevo/web") -> Any:
    """The ASGI app of a Django site, with that of `relevo web` under a path."""
    needs_extra()
    if not at.startswith("/") or at.endswith("/"):
        raise ConfigurationError(f"at: a path such as /admin/relevo/web is needed, found {at!r:.80}")
    discover()
    web = site(app, StaffGate(app))

    async def application(scope: Any, receive: Any, send: Any) -> None:
        base = scope.get("root_path", "") + at
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{base}/"):
            await web({**scope, "root_path": base}, receive, send)
        else:
            await django(scope, receive, send)

    return application


class StaffGate(Gate):
    """Admits members of the staff by their session, and programs by the tokens of the setting `web_tokens`."""

    def __init__(self, app: Relevo) -> None:
        super().__init__(tokens_of(app))

    async def admit(
        self,
        asked: HTTPConnection,
        role: Role,
        *,
        changes: bool = False,
        producers: bool = False,
        authorization: str | None = None,
    ) -> Caller:
        """The caller, if its role suffices; otherwise `Refused` with 401 or 403."""
        if authorization is not None or "authorization" in asked.headers:
            return await super().admit(asked, role, changes=changes, producers=producers, authorization=authorization)
        caller = await sync_to_async(_member)(asked.scope, changes)
        if caller.role < role:
            needed = f"{caller.name} has the role {caller.role.label}; this needs {role.label}, which is made of"
            raise _forbidden(f"{needed} permissions: relevo.{', relevo.'.join(dict(ROLES)[role])}", caller.name)
        return caller


def _member(scope: Any, changes: bool) -> Caller:
    """The member of the staff whose session a request has. Asks the database."""
    close_old_connections()
    try:
        request = ASGIRequest(scope, BytesIO())
        store = import_string(f"{site_settings.SESSION_ENGINE}.SessionStore")
        request.session = store(request.COOKIES.get(site_settings.SESSION_COOKIE_NAME))
        request.user = user = get_user(request)
        if not admin.site.has_permission(request):
            raise Refused(401, "Unauthorized", "log in to the admin first, or send `Authorization: Bearer SECRET`")
        if changes and (why := _forged(request)):
            raise _forbidden(f"{why} Send the cookie {site_settings.CSRF_COOKIE_NAME} and its value as X-CSRFToken.")
        for role, permissions in ROLES:
            if user.has_perms([f"relevo.{one}" for one in permissions]):
                return Caller(user.get_username(), role)
        raise _forbidden(f"{user.get_username()} needs the permissions relevo.{', relevo.'.join(LOOK)}")
    finally:
        close_old_connections()


class _Csrf(CsrfViewMiddleware):
    def _reject(self, request: Any, reason: str) -> Any:  # noqa: ARG002  # as the middleware calls it
        return reason


def _forged(request: Any) -> str:
    """Why a request may come from another site; '': it does not."""
    check = _Csrf(lambda _: None)
    check.process_request(request)
    return str(check.process_view(request, None, (), {}) or "")


def _forbidden(message: str, who: str = "") -> Refused:
    return Refused(403, "Forbidden", message, who=who)
