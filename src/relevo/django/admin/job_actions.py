"""What can be done to jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError

from django import forms
from relevo.django.admin.actions import Action
from relevo.django.maintenance import discard_ended
from relevo.django.site_app import app
from relevo.engine.handle import Job
from relevo.engine.ids import looks_like_id
from relevo.engine.job import PRIORITY_MAX, State
from relevo.errors import OptionError
from relevo.text.durations import seconds

AnyJob = Job[Any]
RUNS_AGAIN = (State.DEAD, State.CANCELLED, State.EXPIRED)
NOT_STARTED = (State.READY, State.SCHEDULED, State.WAITING)


def chosen_job(value: str) -> AnyJob:
    """The job that a checkbox stands for: `<id>:<queue>`."""
    id, _, queue = value.partition(":")
    if not (looks_like_id(id) and queue and app.engine.can_be_queue(queue)):
        raise ValueError(value)
    return Job(app.engine, id, queue)


def about_job(job: AnyJob) -> dict[str, Any]:
    """Where it is, for the audit trail."""
    return {"queue": job.queue}


class PriorityForm(forms.Form):
    """Which priority."""

    priority = forms.IntegerField(
        min_value=0, max_value=PRIORITY_MAX, help_text=f"0 is first, {PRIORITY_MAX} is last; 100 is usual."
    )


class TimeForm(forms.Form):
    """When."""

    delay = forms.CharField(
        required=False, max_length=40, label="In", help_text="From now on, such as 30s, 15m, 2h or 1d12h."
    )
    at = forms.DateTimeField(
        required=False,
        label="Or at",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M"],
    )

    def clean_delay(self) -> str:
        """A duration that relevo can read."""
        text: str = self.cleaned_data["delay"].strip()
        if text:
            try:
                seconds(text, what="delay")
            except OptionError as error:
                raise ValidationError(str(error)) from error
        return text

    def clean(self) -> dict[str, Any]:
        """One of the two."""
        found: dict[str, Any] = super().clean() or {}
        if not self.errors and bool(found.get("delay")) == bool(found.get("at")):
            raise ValidationError("Say in how long, or at what time.")
        return found


def retry(job: AnyJob, _: dict[str, Any]) -> str:
    """Run it again."""
    return "" if job.retry() else "only a dead, cancelled or expired job can run again"


def _cancel(job: AnyJob, _: dict[str, Any]) -> str:
    return "" if job.cancel() else "it has ended"


def discard(job: AnyJob, _: dict[str, Any]) -> str:
    """Remove its record, if it has ended."""
    state = job.state()
    if state is State.DEAD:
        return "" if app.dead.discard([job.id], queue=job.queue) else "it was discarded just now"
    if not state.has_ended:
        return f"it is {state.value}: cancel it first" if state is not State.UNKNOWN else "there is no such job"
    return "" if discard_ended(job.queue, [job.id]) else "it was discarded just now"


def _run_now(job: AnyJob, _: dict[str, Any]) -> str:
    if job.state() is State.READY:
        return "it is ready to run"
    job.change(delay=0)
    return ""


def _set_priority(job: AnyJob, given: dict[str, Any]) -> str:
    job.change(priority=given["priority"])
    return ""


def _set_time(job: AnyJob, given: dict[str, Any]) -> str:
    at: datetime | None = given.get("at")
    if at is None:
        job.change(delay=given["delay"])
    else:
        now_ms: int = app.engine.run(app.engine.now_ms())
        job.change(delay=max(0.0, at.timestamp() - now_ms / 1000))
    return ""


JOB_ACTIONS: tuple[Action[AnyJob], ...] = (
    Action(
        name="retry",
        label="Retry",
        done="retried",
        permission="retry",
        deed="job.retry",
        perform=retry,
        fits=lambda info: info.state in RUNS_AGAIN,
    ),
    Action(
        name="run_now",
        label="Run now",
        done="made ready",
        permission="change",
        deed="job.run_now",
        perform=_run_now,
        fits=lambda info: info.state is State.SCHEDULED,
    ),
    Action(
        name="priority",
        label="Change priority",
        verb="Change priority of",
        done="changed",
        permission="change",
        deed="job.change",
        perform=_set_priority,
        form=PriorityForm,
        fits=lambda info: info.state in NOT_STARTED,
    ),
    Action(
        name="time",
        label="Change time",
        verb="Change time of",
        done="changed",
        permission="change",
        deed="job.change",
        perform=_set_time,
        form=TimeForm,
        fits=lambda info: info.state in NOT_STARTED,
    ),
    Action(
        name="cancel",
        label="Cancel",
        done="cancelled",
        permission="cancel",
        deed="job.cancel",
        perform=_cancel,
        question="What has not started will not run, and what runs is stopped. It can be retried later.",
        fits=lambda info: not info.state.has_ended,
    ),
    Action(
        name="discard",
        label="Discard",
        done="discarded",
        permission="delete",
        deed="job.discard",
        perform=discard,
        question="Their records are removed, with results and output. Only dead letters can be restored (10 minutes).",
        removes=True,
        fits=lambda info: info.state.has_ended,
    ),
)
