"""Queues: the list, and one of them with its limits and pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from msgspec import Struct

from relevo.audit.trail import of_control
from relevo.django.admin.actions import Action, ActionPage
from relevo.django.admin.limit_forms import LimitForm, PausePartForm, part_of
from relevo.django.admin.listing import PER_PAGE, Listing, asked, filter_of
from relevo.django.admin.page import asking
from relevo.django.admin.pausing import PauseForm, pause_of
from relevo.django.site_app import app
from relevo.engine.lists import job_queues
from relevo.errors import OptionError, UnknownJob
from relevo.queues.queue import Queue
from relevo.queues.store import QueueStats, count
from relevo.store.plan import Ahead, Steps


class Row(Struct, frozen=True):
    """A queue in the list."""

    stats: QueueStats
    url: str
    jobs_url: str

    @property
    def id(self) -> str:
        """Its name."""
        return self.stats.name

    @property
    def state(self) -> str:
        """In one word."""
        return "paused" if self.stats.paused else "active"


def _pause(one: Queue, given: dict[str, Any]) -> str:
    one.pause(**pause_of(given, given["by"]))  # False: it was paused, and the new pause takes the place of that one
    return ""


def _resume(one: Queue, _: dict[str, Any]) -> str:
    return "" if one.resume() else "it is not paused"


def _clear(one: Queue, _: dict[str, Any]) -> str:
    return "" if one.clear() else "it holds no job that has not started"


class QueueAdmin(ActionPage[Queue]):
    """Queues."""

    deeds = (
        Action(
            name="pause",
            label="Pause",
            done="paused",
            permission="change",
            deed="queue.pause",
            perform=_pause,
            form=PauseForm,
            fits=lambda stats: not stats.paused,
        ),
        Action(
            name="resume",
            label="Resume",
            done="resumed",
            permission="change",
            deed="queue.resume",
            perform=_resume,
            fits=lambda stats: stats.paused,
        ),
        Action(
            name="clear",
            label="Clear",
            done="cleared",
            permission="delete",
            deed="queue.clear",
            perform=_clear,
            question="All jobs that have not started are removed, and leave no record. This cannot be undone.",
        ),
    )

    @asking
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The queues of the app, by name."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        params = asked(request, ("state", "q"))
        after, text = request.GET.get("after", ""), params["q"].lower()
        names = [name for name in app.engine.run(job_queues(app.engine)) if name > after and text in name.lower()]
        stats = app.engine.run(_stats(names[:PER_PAGE]))
        rows = [row for row in map(self._row, stats) if params["state"] in ("", row.state)]
        listing = Listing(
            opts=self.opts,
            params=params,
            result_list=rows,
            filters=[filter_of("state", "state", params, ("active", "paused"))],
            query=params["q"],
            search_help_text="A part of the name.",
            after=names[PER_PAGE - 1] if len(names) > PER_PAGE else "",
            is_first=not after,
        )
        return self.answer(
            request,
            "queues",
            title=f"Select {self.opts.verbose_name} to view",
            cl=listing,
            action_form=self.action_form(request),
            selection_note=f"0 of {len(rows)} selected",
        )

    def _row(self, stats: QueueStats) -> Row:
        return Row(stats, self.reverse("change", stats.name), self.jobs_url(stats.name))

    @asking
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """A queue, its limits and pauses."""
        self.demand_view(request)
        name = unquote(object_id)
        if name not in app.engine.run(job_queues(app.engine)):
            raise UnknownJob(f"no queue {name!r:.80} is in use")
        queue, limiting, pausing = app.queue(name), LimitForm(), PausePartForm()
        if request.method == "POST":
            verb = request.POST.get("control", "")
            if not verb:
                return self.act(request)
            self.demand(request, "change")
            limiting = LimitForm(request.POST if verb == "limit" else None)
            pausing = PausePartForm(request.POST if verb == "pause" else None)
            if self._control(request, queue, verb, limiting, pausing):
                return HttpResponseRedirect(request.get_full_path())
        return self._page(request, queue, limiting, pausing)

    def _page(self, request: HttpRequest, queue: Queue, limiting: LimitForm, pausing: PausePartForm) -> HttpResponse:
        stats = queue.stats()
        states = ("ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired")
        return self.answer(
            request,
            "queue",
            title="Queue",
            subtitle=queue.name,
            stats=stats,
            counts=[(state, getattr(stats, state), self.jobs_url(queue.name, state)) for state in states],
            limits=[one for one in queue.limits() if one.concurrency is not None or one.rate],
            pauses=[one for one in queue.pauses() if one.kind != "schedule"],
            may_change=self.may(request, "change"),
            limiting=limiting,
            pausing=pausing,
            actions=[action for action in self.allowed(request) if action.fits(stats)],
            list_url=self.changelist_url(),
            tools=[("History", self.reverse("history", queue.name))],
        )

    def _control(
        self, request: HttpRequest, queue: Queue, verb: str, limiting: LimitForm, pausing: PausePartForm
    ) -> bool:
        """Set or remove a limit, pause or resume a task or a tenant; whether there is nothing to correct."""
        forms: dict[str, LimitForm | PausePartForm] = {"limit": limiting, "pause": pausing}
        form = forms.get(verb)
        if form is not None and not form.is_valid():
            return False
        part = part_of(form.cleaned_data if form else request.POST.dict())
        deeds: dict[str, Callable[[], bool]] = {
            "limit": lambda: queue.limit(**part, **limiting.terms()),
            "unlimit": lambda: queue.unlimit(**part),
            "pause": lambda: queue.pause(**part, **pause_of(pausing.cleaned_data, request.user.get_username())),
            "resume": lambda: queue.resume(**part),
        }
        if verb not in deeds:
            raise PermissionDenied
        try:
            changed = deeds[verb]()
        except OptionError as error:
            if form is None:
                raise
            form.add_error(None, str(error))
            return False
        terms: dict[str, Any] = limiting.terms() if verb == "limit" else {}
        why = pausing.cleaned_data if verb == "pause" else {}
        deed, about = of_control(
            verb, queue=queue.name, **part, reason=why.get("reason", ""), until=why.get("until") or None
        )
        with self.doing(request, deed, **about, **terms) as doing:
            doing.tell(int(changed))
        what = part.get("task") or part.get("tenant") or "the queue"
        self.log(request, [queue.name], f"{deed} of {what}.")
        messages.success(request, f"{_DONE[verb]} {what}." if changed else "That was so already.")
        return True

    # for actions
    def chosen(self, value: str) -> Queue:
        """Its name."""
        if not (value and app.engine.can_be_queue(value)):
            raise ValueError(value)
        return app.queue(value)

    def id_of(self, one: Queue) -> str:
        """Its name."""
        return one.name

    def about(self, one: Queue) -> dict[str, Any]:
        """Its name."""
        return {"queue": one.name}


_DONE = {"limit": "Limited", "unlimit": "Removed the limit of", "pause": "Paused", "resume": "Resumed"}


def _stats(names: list[str]) -> Steps[list[QueueStats]]:
    found: list[QueueStats] = yield Ahead(count(app.engine.keys_of(name), name) for name in names)
    return found
