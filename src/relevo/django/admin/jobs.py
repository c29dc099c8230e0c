"""Jobs of every state: the list, and one of them with all that is known of it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from msgspec import Struct

from relevo.django.admin.actions import ActionPage
from relevo.django.admin.cleaning import clean_up_page
from relevo.django.admin.job_actions import JOB_ACTIONS, AnyJob, about_job, chosen_job
from relevo.django.admin.job_page import job_page
from relevo.django.admin.listing import PER_PAGE, Filter, Listing, asked, filter_of
from relevo.django.admin.page import asking
from relevo.django.admin.workflows import WorkflowPages
from relevo.django.site_app import app
from relevo.engine.ids import looks_like_id
from relevo.engine.job import State
from relevo.errors import UnknownJob
from relevo.queues.searching import LOOKED_AT, ORDER, FoundJob, JobFilters, JobPage, searching
from relevo.queues.store import QueueStats

FILTERS = ("state", "queue", "task", "tenant", "tag", "q")


class Row(Struct, frozen=True):
    """A job in the list."""

    job: FoundJob
    url: str

    @property
    def id(self) -> str:
        """Of the job."""
        return self.job.id

    @property
    def value(self) -> str:
        """What its checkbox stands for."""
        return f"{self.job.id}:{self.job.queue}"

    @property
    def took_ms(self) -> int | None:
        """How long it ran."""
        job = self.job
        return job.ended_ms - job.started_ms if job.ended_ms and job.started_ms else None

    @property
    def title(self) -> str:
        """Its name, or that of its task."""
        return self.job.name or self.job.task or self.job.id


class JobAdmin(WorkflowPages, ActionPage[AnyJob]):
    """Jobs."""

    deeds = JOB_ACTIONS

    def own_urls(self) -> list[Any]:
        """Cleaning up, and workflows."""
        return [
            self.url("clean-up/", self.clean_up_view, "clean_up"),
            self.url("workflow/<path:object_id>/", self.workflow_view, "workflow"),
        ]

    # the list
    @asking
    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The jobs that fit, page by page."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        params = asked(request, FILTERS)
        after = request.GET.get("after", "")
        found = _by_id(params["q"]) if looks_like_id(params["q"]) else None
        page = found or app.engine.run(searching(app.engine, _wanted(params), limit=PER_PAGE, after=after))
        rows = [Row(job, self.reverse("change", job.id, queue=job.queue)) for job in page.rows]
        listing = Listing(
            opts=self.opts,
            params=params,
            result_list=rows,
            filters=_filters(params, page),
            query=params["q"],
            search_help_text="The id of a job, or a part of its name or of its task.",
            after=page.after,
            is_first=not after,
            note=_note(page),
        )
        return self.answer(
            request,
            "jobs",
            title=f"Select {self.opts.verbose_name} to view",
            cl=listing,
            action_form=self.action_form(request),
            selection_note=f"0 of {len(rows)} selected",
            clean_up_url=self.reverse("clean_up") if self.may(request, "delete") else "",
        )

    # one job
    @asking
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """All that is known of a job."""
        self.demand_view(request)
        if request.method == "POST":
            return self.act(request)
        job = app.job(object_id, queue=request.GET.get("queue") or None)
        return job_page(self, request, job)

    @asking
    def clean_up_view(self, request: HttpRequest) -> HttpResponse:
        """Remove old records."""
        self.demand(request, "delete")
        return clean_up_page(self, request)

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


def _wanted(params: dict[str, str]) -> JobFilters:
    state = State(params["state"]) if params["state"] in {*ORDER} else None
    return JobFilters(
        state=state,
        queue=params["queue"],
        task=params["task"],
        tenant=params["tenant"],
        tag=params["tag"],
        text=params["q"],
    )


def _by_id(id: str) -> JobPage:
    try:
        info = app.job(id).info()
    except UnknownJob:
        return JobPage(rows=[], after="", stats=[], looked=0)
    row = FoundJob(
        id=info.id,
        state=info.state,
        task=info.task,
        priority=info.priority,
        enqueued_ms=info.enqueued_ms,
        name=info.name,
        tenant=info.tenant,
        due_ms=info.due_ms,
        worker=info.worker,
        reason=info.reason,
        ended_ms=info.ended_ms,
        queue=info.queue,
        tags=info.tags,
        started_ms=info.started_ms,
    )
    return JobPage(rows=[row], after="", stats=[], looked=1)


def _filters(params: dict[str, str], page: JobPage) -> list[Filter]:
    rows = page.rows
    by_state = {state.value: _count(page.stats, params["queue"], state) for state in ORDER}
    states = {state: f"{state.capitalize()} ({count:,})" for state, count in by_state.items()}
    return [
        filter_of("state", "state", params, by_state, states),
        filter_of("queue", "queue", params, (one.name for one in page.stats)),
        filter_of("task", "task", params, (row.task for row in rows)),
        *(
            filter_of(name, name, params, values)
            for name, values in (
                ("tenant", [row.tenant or "" for row in rows]),
                ("tag", [tag for row in rows for tag in row.tags or ()]),
            )
            if params[name] or any(values)
        ),
    ]


def _count(stats: list[QueueStats], queue: str, state: State) -> int:
    return sum(int(getattr(one, state.value)) for one in stats if queue in ("", one.name))


def _note(page: JobPage) -> str:
    if page.after and page.looked >= LOOKED_AT:
        return f"{page.looked:,} jobs were looked at; the next page looks on from there."
    return ""
