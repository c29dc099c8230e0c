"""Dead letters: the list, error groups, and what is done to all that fit; replays stand in `replays.py`."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from msgspec import Struct

from relevo.dead.error_groups import ErrorGroup
from relevo.dead.paging import DeadPage, DeadRow
from relevo.dead.wanted import Filters
from relevo.django.admin.actions import ActionPage
from relevo.django.admin.dead_actions import EVERY, LETTER_ACTIONS, MOST, OfMany
from relevo.django.admin.job_actions import AnyJob, about_job, chosen_job
from relevo.django.admin.job_page import job_page
from relevo.django.admin.listing import PER_PAGE, Filter, Listing, address, asked, filter_of
from relevo.django.admin.page import asking
from relevo.django.admin.replays import ReplayPages
from relevo.django.site_app import app
from relevo.engine.handle import Job
from relevo.engine.job import State
from relevo.errors import UnknownJob

FILTERS = ("queue", "task", "tenant", "reason", "permanent", "error_group", "q")
#: Dead letters that are counted before something is done to all of them.
COUNTED = 1000
_PERMANENT = {"yes": True, "no": False}


class Row(Struct, frozen=True):
    """A dead letter in the list."""

    job: DeadRow
    url: str
    group_url: str

    @property
    def id(self) -> str:
        """Of the job."""
        return self.job.id

    @property
    def value(self) -> str:
        """What its checkbox stands for."""
        return f"{self.job.id}:{self.job.queue}"

    @property
    def title(self) -> str:
        """Its name, or that of its task."""
        return self.job.name or self.job.task or self.job.id


class DeadLetterAdmin(ReplayPages, ActionPage[AnyJob]):
    """Dead letters."""

    deeds = LETTER_ACTIONS

    def own_urls(self) -> list[Any]:
        """Error groups, what is done to many, replays."""
        return [
            self.url("error-groups/", self.error_groups_view, "error_groups"),
            self.url("every/<str:deed>/", self.every_view, "every"),
            *self.replay_urls(),
        ]

    @asking
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The dead letters that fit, the newest first."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        params = asked(request, FILTERS)
        after = request.GET.get("after", "")
        page = app.dead.page(limit=PER_PAGE, after=after, **filters_of(params))
        rows = [self._row(row) for row in page.rows]
        listing = Listing(
            opts=self.opts,
            params=params,
            result_list=rows,
            filters=_filters(params, page),
            query=params["q"],
            search_help_text="A part of the reason or of the error.",
            after=page.after,
            is_first=not after,
            note=f"{page.looked:,} dead letters were looked at." if page.after and len(rows) < PER_PAGE else "",
        )
        every = [(one, self.every_url(one.name, params)) for one in EVERY if self.may(request, one.permission)]
        return self.answer(
            request,
            "dead",
            title=f"Select {self.opts.verbose_name} to view",
            cl=listing,
            action_form=self.action_form(request),
            selection_note=f"0 of {len(rows)} selected",
            groups_url=self.reverse("error_groups"),
            replays_url=self.reverse("replays"),
            every=[(one, url) for one, url in every if rows or one.name == "restore"],
        )

    def every_url(self, deed: str, params: dict[str, str]) -> str:
        """Where something is done to all that fit."""
        return self.reverse("every", deed) + address(params)

    def _row(self, row: DeadRow) -> Row:
        url = self.reverse("change", row.id, queue=row.queue)
        return Row(row, url, self.changelist_url() + address({"error_group": row.fingerprint}))

    @asking
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """A dead letter with its history."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        queue = request.GET.get("queue") or None
        info = app.dead.show(object_id, queue=queue)
        if info.state is not State.DEAD:
            raise UnknownJob(f"job {object_id} is {info.state.value}, no dead letter")
        return job_page(self, request, Job(app.engine, info.id, info.queue))

    @asking
    def error_groups_view(self, request: HttpRequest) -> HttpResponse:
        """Which problems there are, the largest first."""
        self.demand_view(request)
        queue = request.GET.get("queue", "")
        groups = app.dead.error_groups(queue or None, limit=PER_PAGE)
        allowed = [one for one in EVERY if self.may(request, one.permission) and one.is_of_group]
        rows = [(group, self._group_url(group), self._deeds(group, allowed)) for group in groups]
        return self.answer(request, "error_groups", title="Error groups", groups=rows, list_url=self.changelist_url())

    def _group_url(self, group: ErrorGroup) -> str:
        return self.changelist_url() + address({"error_group": group.fingerprint})

    def _deeds(self, group: ErrorGroup, allowed: list[OfMany]) -> list[tuple[OfMany, str]]:
        return [(one, self.every_url(one.name, {"error_group": group.fingerprint})) for one in allowed]

    @asking
    def every_view(self, request: HttpRequest, deed: str) -> HttpResponse:
        """Ask, and then do something to all that fit."""
        found = next((one for one in EVERY if one.name == deed), None)
        if found is None:
            raise Http404(deed)
        self.demand(request, found.permission)
        params = asked(request, FILTERS)
        wanted = filters_of(params)
        form = found.form(request.POST or None) if found.form else None
        if request.method == "POST" and (form is None or form.is_valid()):
            given = form.cleaned_data if form else {}
            if found.starts_replay:
                return HttpResponseRedirect(self.reverse("replay", self.start_replay(request, wanted, given)))
            with self.doing(request, found.deed, **wanted) as doing:
                count = found.perform(wanted, doing.tell)
            more = " There may be more: do it again." if count >= MOST else ""
            messages.success(request, f"{count:,} dead letters {found.done}.{more}")
            return HttpResponseRedirect(self.changelist_url())
        return self.answer(
            request,
            "every",
            title=found.label,
            deed=found,
            form=form,
            count=self._how_many(wanted) if found.is_of_group else "",
            filters=wanted.items(),
            back=self.changelist_url() + address(params),
        )

    def _how_many(self, wanted: Filters) -> str:
        page = app.dead.page(limit=COUNTED, **wanted)
        return f"{len(page.rows):,}{' or more' if page.after else ''}"

    # for actions
    def chosen(self, value: str) -> AnyJob:
        """`<id>:<queue>`."""
        return chosen_job(value)

    def id_of(self, one: AnyJob) -> str:
        """Its id."""
        return one.id

    def about(self, one: AnyJob) -> dict[str, Any]:
        """Its queue."""
        return about_job(one)


def filters_of(params: dict[str, str]) -> Filters:
    """The filters of a request, as the Python API takes them."""
    found: dict[str, Any] = {name: params[name] for name in ("queue", "task", "tenant", "reason") if params[name]}
    if params["error_group"]:
        found["error_group"] = params["error_group"]
    if params["permanent"] in _PERMANENT:
        found["permanent"] = _PERMANENT[params["permanent"]]
    if params["q"]:
        found["error"] = params["q"]
    return cast("Filters", found)


def _filters(params: dict[str, str], page: DeadPage) -> list[Filter]:
    rows = page.rows
    whether = {"yes": "It would fail again", "no": "It may succeed"}
    found = [
        filter_of("queue", "queue", params, [*(row.queue for row in rows), *app.queues()]),
        filter_of("task", "task", params, (row.task for row in rows)),
        filter_of("reason", "reason", params, (row.reason for row in rows)),
        filter_of("whether retrying helps", "permanent", params, whether, whether),
    ]
    for name, values in (
        ("tenant", [row.tenant or "" for row in rows]),
        ("error_group", [row.fingerprint for row in rows]),
    ):
        if params[name] or (name == "tenant" and any(values)):
            found.append(filter_of(name.replace("_", " "), name, params, values))
    return found
