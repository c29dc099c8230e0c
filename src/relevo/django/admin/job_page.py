"""The page of one job, with all that is known of it; of a dead letter, too."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from relevo.django.admin.actions import ActionPage
from relevo.django.admin.job_actions import AnyJob
from relevo.django.site_app import app
from relevo.engine.handle import JobInfo
from relevo.text.masking import HIDDEN
from relevo.web.shown import shown_job, shown_text


def job_page(page: ActionPage[AnyJob], request: HttpRequest, job: AnyJob) -> HttpResponse:
    """The page of a job, with the actions of the list it belongs to."""
    sees_all = request.user.has_perm("relevo.view_output_job")
    info = shown_job(app, job.info(), all=sees_all)
    relatives = (("Took the place of", info.origin), ("Its place was taken by", info.replaced_by))
    workflow_url = _workflow_url(page, info.workflow) if info.workflow else ""
    return page.answer(
        request,
        "job",
        title=page.opts.verbose_name.capitalize(),
        subtitle=info.name or info.task or info.id,
        job=info,
        value=f"{info.id}:{info.queue}",
        sees_all=sees_all,
        logs=shown_text(app, job.logs()) if sees_all else HIDDEN,
        parameters=_parameters(info),
        took_ms=info.ended_ms - info.started_ms if info.ended_ms and info.started_ms else None,
        actions=[action for action in page.allowed(request) if action.fits(info)],
        workflow_url=workflow_url,
        relatives=[(what, id, page.reverse("change", id)) for what, id in relatives if id],
        list_url=page.changelist_url(),
        tools=[
            *([("Workflow", workflow_url)] if workflow_url else []),
            ("History", page.reverse("history", info.id)),
        ],
    )


def _workflow_url(page: ActionPage[AnyJob], id: str) -> str:
    return reverse("admin:relevo_job_workflow", args=[id], current_app=page.admin_site.name)


def _parameters(info: JobInfo) -> list[tuple[str, Any]] | None:
    """Names and values of the arguments; of positional ones the name is that of the function, where it is known."""
    if info.args is None and info.kwargs is None:
        return None
    task = app.engine.task_for(info.queue, info.task)
    places = task.signature.places if task and not info.workflow else []
    args = list(info.args or ())
    names = [*places, *(f"#{n}" for n in range(len(places) + 1, len(args) + 1))]
    return [*zip(names, args, strict=False), *(info.kwargs or {}).items()]
