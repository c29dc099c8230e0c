"""Schedules: the list, one of them with its history, and when it fires."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from msgspec import Struct

from django import forms
from relevo.django.admin.actions import Action, ActionPage
from relevo.django.admin.listing import Listing, asked, filter_of
from relevo.django.admin.page import asking
from relevo.django.admin.pausing import PauseForm, pause_of
from relevo.django.site_app import app
from relevo.errors import OptionError
from relevo.schedules.handle import Schedule, ScheduleInfo
from relevo.web.shown import shown_schedule

#: Entries of the history that are shown.
SHOWN = 20
OVERLAPS = ("skip", "queue", "allow")
MISSED = ("once", "all", "skip")


class TimesForm(forms.Form):
    """When a schedule fires."""

    cron = forms.CharField(
        required=False, max_length=200, help_text="Five fields, or six with seconds in front, or @daily."
    )
    tz = forms.CharField(required=False, max_length=60, label="Time zone", help_text="Such as Europe/Madrid.")
    every = forms.CharField(required=False, max_length=40, help_text="Instead of a cron: 30s, 15m, 1h.")
    overlap = forms.ChoiceField(
        choices=[(one, one) for one in OVERLAPS], help_text="What becomes of a tick while the run before still goes on."
    )
    missed = forms.ChoiceField(
        choices=[(one, one) for one in MISSED],
        help_text="Whether ticks are made up for that no worker fired.",
    )
    jitter = forms.CharField(required=False, max_length=40, help_text="Spreads the starts, by so much at the most.")

    def clean(self) -> dict[str, Any]:
        """One of the two."""
        found: dict[str, Any] = super().clean() or {}
        if not self.errors and bool(found.get("cron")) == bool(found.get("every")):
            raise forms.ValidationError("Give a cron, or how often it fires.")
        return found

    def changes(self) -> dict[str, Any]:
        """What `Schedule.edit` takes."""
        given = self.cleaned_data
        when = {"cron": given["cron"], "tz": given["tz"]} if given["cron"] else {"every": given["every"]}
        found = {**when, "overlap": given["overlap"], "missed": given["missed"], "jitter": given["jitter"] or 0}
        return {name: value for name, value in found.items() if value != ""}


class Row(Struct, frozen=True):
    """A schedule in the list."""

    info: ScheduleInfo
    url: str

    @property
    def id(self) -> str:
        """Its name."""
        return self.info.name

    @property
    def state(self) -> str:
        """In one word."""
        return state_of(self.info)


def state_of(info: ScheduleInfo) -> str:
    """In one word."""
    return "paused" if info.paused_ms else "stale" if info.stale else "active"


def _pause(one: Schedule, given: dict[str, Any]) -> str:
    one.pause(**pause_of(given, given["by"]))  # False: it was paused, and the new pause takes the place of that one
    return ""


def _resume(one: Schedule, _: dict[str, Any]) -> str:
    return "" if one.resume() else "it is not paused"


def _run_now(one: Schedule, _: dict[str, Any]) -> str:
    one.run_now()
    return ""


def _remove(one: Schedule, _: dict[str, Any]) -> str:
    return "" if one.remove() else "it was removed just now"


class ScheduleAdmin(ActionPage[Schedule]):
    """Schedules."""

    deeds = (
        Action(
            name="run_now",
            label="Run now",
            done="queued a job",
            permission="run",
            deed="schedule.run",
            perform=_run_now,
        ),
        Action(
            name="pause",
            label="Pause",
            done="paused",
            permission="change",
            deed="schedule.pause",
            perform=_pause,
            form=PauseForm,
            fits=lambda info: not info.paused_ms,
        ),
        Action(
            name="resume",
            label="Resume",
            done="resumed",
            permission="change",
            deed="schedule.resume",
            perform=_resume,
            fits=lambda info: bool(info.paused_ms),
        ),
        Action(
            name="remove",
            label="Remove",
            done="removed",
            permission="delete",
            deed="schedule.remove",
            perform=_remove,
            question="The history goes, jobs stay. One that the code names comes back with the next worker: pause it.",
            removes=True,
        ),
    )

    def own_urls(self) -> list[Any]:
        """When one fires."""
        return [self.url("<path:object_id>/edit/", self.edit_view, "edit")]

    @asking
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """All schedules, by name."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        params = asked(request, ("state", "queue", "q"))
        rows = [Row(info, self.reverse("change", info.name)) for info in app.schedules.list()]
        text = params["q"].lower()
        shown = [
            row
            for row in rows
            if params["state"] in ("", row.state)
            and params["queue"] in ("", row.info.queue)
            and text in f"{row.info.name} {row.info.task}".lower()
        ]
        listing = Listing(
            opts=self.opts,
            params=params,
            result_list=shown,
            filters=[
                filter_of("state", "state", params, ("active", "paused", "stale")),
                filter_of("queue", "queue", params, sorted({row.info.queue for row in rows})),
            ],
            query=params["q"],
            search_help_text="A part of the name or of the task.",
        )
        return self.answer(
            request,
            "schedules",
            title=f"Select {self.opts.verbose_name} to view",
            cl=listing,
            action_form=self.action_form(request),
            selection_note=f"0 of {len(shown)} selected",
        )

    @asking
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Everything known about a schedule."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        schedule = app.schedules.get(unquote(object_id))
        info = shown_schedule(app, schedule.info(), all=request.user.has_perm("relevo.view_output_job"))
        return self.answer(
            request,
            "schedule",
            title="Schedule",
            subtitle=info.name,
            schedule=info,
            state=state_of(info),
            pause=self._pause_of(info),
            history=[(one, self._job_url(one.job, info.queue)) for one in schedule.history(SHOWN)],
            last_url=self._job_url(info.last_job, info.queue),
            actions=[action for action in self.allowed(request) if action.fits(info)],
            tools=[
                *([("Change when it fires", self.reverse("edit", info.name))] if self.may(request, "change") else []),
                ("History", self.reverse("history", info.name)),
            ],
            list_url=self.changelist_url(),
        )

    def _pause_of(self, info: ScheduleInfo) -> Any:
        pauses = app.pauses() if info.paused_ms else []
        return next((one for one in pauses if (one.kind, one.name) == ("schedule", info.name)), None)

    def _job_url(self, id: str, queue: str) -> str:
        return self.job_url(id, queue) if id else ""

    @asking
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Change when it fires."""
        self.demand(request, "change")
        schedule = app.schedules.get(unquote(object_id))
        info = schedule.info()
        form = TimesForm(request.POST or None, initial=_times_of(info))
        if request.method == "POST" and form.is_valid():
            try:
                changes = form.changes()
                after = schedule.edit(**changes)
            except OptionError as error:
                form.add_error(None, str(error))
            else:
                with self.doing(request, "schedule.edit", name=info.name, **changes) as doing:
                    doing.tell(1)
                self.log(request, [info.name], f"Now fires: {after.words}.")
                messages.success(request, f"{info.name} now fires: {after.words}.")
                return HttpResponseRedirect(self.reverse("change", info.name))
        return self.answer(
            request,
            "edit_schedule",
            title="Change when it fires",
            subtitle=info.name,
            form=form,
            origin=info.origin,
            words=info.words,
            back=self.reverse("change", info.name),
        )

    # for actions
    def chosen(self, value: str) -> Schedule:
        """Its name."""
        if not value:
            raise ValueError(value)
        return app.schedules.get(value)

    def id_of(self, one: Schedule) -> str:
        """Its name."""
        return one.name

    def about(self, one: Schedule) -> dict[str, Any]:
        """Its name."""
        return {"name": one.name}


def _times_of(info: ScheduleInfo) -> dict[str, Any]:
    is_cron = bool(info.tz)
    return {
        "cron": info.when if is_cron else "",
        "tz": info.tz,
        "every": "" if is_cron else info.when,
        "overlap": info.overlap,
        "missed": info.missed,
        "jitter": f"{info.jitter:g}s" if info.jitter else "",
    }
