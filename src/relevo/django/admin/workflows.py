"""A workflow and its jobs: how far it is, cancel it, run its failed part again."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from msgspec import Struct

from relevo.django.admin.page import RelevoAdmin, asking
from relevo.django.site_app import app
from relevo.workflows.workflow import Workflow


class OfWorkflow(Struct, frozen=True):
    """Something that is done to a workflow."""

    label: str
    done: str
    #: Of jobs.
    permission: str
    question: str = ""
    is_loss: bool = True


DEEDS = {
    "retry": OfWorkflow("Run the failed part again", "retried", "retry"),
    "cancel": OfWorkflow(
        "Cancel", "cancelled", "cancel", "Its jobs that have not ended are cancelled; it can be retried later."
    ),
}


class WorkflowPages(RelevoAdmin):
    """The page of a workflow."""

    @asking
    def workflow_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """A workflow and its jobs; with `?ask=`, the question before something is done to it."""
        self.demand_view(request)
        flow = app.workflow(object_id)
        name = request.GET.get("ask", "")
        if request.method == "POST":
            return self._act(request, flow, name or request.POST.get("action", ""))
        here = self.reverse("workflow", flow.id)
        if name in DEEDS:
            return self.answer(request, "every", title="Cancel workflow", deed=DEEDS[name], subtitle=flow.id, back=here)
        info = flow.info()
        members = [*(("", one) for one in info.members), *info.callbacks]
        return self.answer(
            request,
            "workflow",
            title="Workflow",
            subtitle=info.id,
            flow=info,
            members=[(kind, one, self.reverse("change", one.id, queue=one.queue)) for kind, one in members],
            may_retry=info.progress.failed and self.may(request, "retry"),
            cancel_url=f"{here}?ask=cancel" if info.progress.open and self.may(request, "cancel") else "",
            list_url=self.changelist_url(),
        )

    def _act(self, request: HttpRequest, flow: Workflow[Any], name: str) -> HttpResponse:
        if name not in DEEDS:
            raise PermissionDenied
        deed = DEEDS[name]
        self.demand(request, deed.permission)
        with self.doing(request, f"workflow.{name}", id=flow.id, queue=flow.queue) as doing:
            count = flow.retry() if name == "retry" else flow.cancel()
            if count:
                doing.tell(count)
        if count:
            messages.success(request, f"{count:,} jobs of the workflow {deed.done}.")
        else:
            messages.warning(request, f"No job of it could be {deed.done}.")
        return HttpResponseRedirect(self.reverse("workflow", flow.id))
