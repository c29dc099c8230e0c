"""What all pages of relevo in the admin have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.http import urlencode

from django import VERSION
from relevo.audit.trail import Doing
from relevo.django.discovery import discover
from relevo.django.site_app import app
from relevo.errors import RelevoError, StoreError, UnknownJob, UnknownSchedule, message_of

View = Callable[..., Any]
#: Objects of one action that get an entry in Django's own log; the audit trail of relevo has them all.
LOGGED = 100


def asking(view: View) -> View:
    """A view that asks the server of relevo: errors become messages on the page."""

    @functools.wraps(view)
    def answered(self: RelevoAdmin, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not self.knows_tasks:  # which arguments are secret is known only where the code is
            discover()
            self.knows_tasks = True
        try:
            found: HttpResponse = view(self, request, *args, **kwargs)
        except StoreError as error:
            return self.away(request, error)
        except RelevoError as error:
            here, home = request.get_full_path(), self.changelist_url()
            if request.method != "POST" and here == home:
                return self.away(request, error)
            is_gone = isinstance(error, UnknownJob | UnknownSchedule)
            messages.add_message(request, messages.WARNING if is_gone else messages.ERROR, message_of(error))
            return HttpResponseRedirect(here if request.method == "POST" and not is_gone else home)
        return found

    return answered


class RelevoAdmin(admin.ModelAdmin):
    """A page whose rows are on the server of relevo: nothing here asks the database."""

    #: Whether the tasks of the project are imported.
    knows_tasks = False

    class Media:
        """Beside the style of the admin."""

        css = {"all": ["relevo/admin.css"]}  # noqa: RUF012  # as Django wants it

    def away(self, request: HttpRequest, error: RelevoError) -> HttpResponse:
        """What is shown instead of a page that the server did not answer."""
        context = self.context(request, title="relevo cannot be reached", why=message_of(error))
        return TemplateResponse(request, "admin/relevo/away.html", context, status=503)

    # addresses
    def get_urls(self) -> list[Any]:
        """The list, one object, and its log, under the names that the admin gives to those of a model."""
        return [
            *self.own_urls(),
            self.url("", self.changelist_view, "changelist"),
            self.url("<path:object_id>/history/", self.history_view, "history"),
            self.url("<path:object_id>/change/", self.change_view, "change"),
        ]

    def own_urls(self) -> list[Any]:
        """Pages besides these."""
        return []

    def url(self, route: str, view: View, name: str) -> Any:
        """A page for staff, guarded against forged requests by `admin_view`."""
        return path(route, self.admin_site.admin_view(view), name=self._named(name))

    def _named(self, name: str) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}_{name}"

    def reverse(self, name: str, *args: str, **query: str) -> str:
        """The address of a page of this model."""
        found = reverse(
            f"admin:{self._named(name)}", args=[quote(one) for one in args], current_app=self.admin_site.name
        )
        given = {key: value for key, value in query.items() if value}
        return f"{found}?{urlencode(given)}" if given else found

    def job_url(self, id: str, queue: str) -> str:
        """The address of the page of a job."""
        found = reverse("admin:relevo_job_change", args=[quote(id)], current_app=self.admin_site.name)
        return f"{found}?{urlencode({'queue': queue})}"

    def jobs_url(self, queue: str, state: str = "") -> str:
        """The address of the list of jobs of a queue."""
        found = reverse("admin:relevo_job_changelist", current_app=self.admin_site.name)
        return f"{found}?{urlencode({'queue': queue} | ({'state': state} if state else {}))}"

    def changelist_url(self) -> str:
        """The address of the list."""
        return self.reverse("changelist")

    # permissions
    def has_add_permission(self, request: HttpRequest) -> bool:
        """Jobs are enqueued by code."""
        return False

    def may(self, request: HttpRequest, deed: str) -> bool:
        """Whether the user has the permission `relevo.<deed>_<model>`."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.{deed}_{self.opts.model_name}"))

    def demand(self, request: HttpRequest, deed: str) -> None:
        """Refuse who has not that permission."""
        if not self.may(request, deed):
            raise PermissionDenied

    def demand_view(self, request: HttpRequest) -> None:
        """Refuse who may not look."""
        if not self.has_view_permission(request):
            raise PermissionDenied

    # what is written down
    def doing(self, request: HttpRequest, deed: str, **about: Any) -> Doing:
        """An entry in the audit trail of relevo with the user of Django."""
        return app.audit.doing(deed, who=request.user.get_username(), via="django-admin", **about)

    def log(self, request: HttpRequest, ids: Iterable[str], message: str, *, is_gone: bool = False) -> None:
        """An entry in the log of the admin for each of these objects."""
        objects = [self.model(id=id) for id, _ in zip(ids, range(LOGGED), strict=False)]
        if objects:
            flag = DELETION if is_gone else CHANGE
            LogEntry.objects.log_actions(request.user.pk, objects, flag, change_message=message)

    # what is shown
    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """For the page of the log, which stays when the object is gone."""
        return self.model(id=object_id)

    def context(self, request: HttpRequest, *, title: str, **more: Any) -> dict[str, Any]:
        """What the templates of the admin need."""
        request.current_app = self.admin_site.name
        return {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "crumb": more.get("subtitle") or title,
            "lists_crumbs": VERSION >= (6, 1),  # since then they are a list
            "has_view_permission": self.has_view_permission(request),
            **more,
        }

    def answer(self, request: HttpRequest, template: str, *, title: str, **more: Any) -> TemplateResponse:
        """A page."""
        return TemplateResponse(request, f"admin/relevo/{template}.html", self.context(request, title=title, **more))
