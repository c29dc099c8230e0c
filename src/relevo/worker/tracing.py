"""The span of a run, for OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relevo.engine.outcome import CancelAsked, Happened, Interrupted, Raised, Returned, TooLate
from relevo.engine.verdicts import Verdict
from relevo.worker.run import Run

if TYPE_CHECKING:
    from relevo.telemetry import Telemetry

_IN_A_WORD: dict[type[Any], str] = {
    Returned: "done",
    Interrupted: "handed_back",
    CancelAsked: "cancelled",
    TooLate: "expired",
}


def begin_span(telemetry: Telemetry, run: Run) -> Any:
    """Begin the span of a run, linked to the trace that enqueued its job."""
    job, envelope = run.context, run.held.envelope
    headers = job.message_headers
    about: dict[str, Any] = {
        "messaging.message.id": job.id,
        "messaging.client.id": job.worker,
        "relevo.task": run.task.target,
        "relevo.attempt": job.attempt,
    }
    if headers is not None:
        about["messaging.message.conversation_id"] = headers.correlation or job.id
        return telemetry.begin(job.queue, headers.traceparent, headers.tracestate, about)
    return telemetry.begin(job.queue, envelope.traceparent if envelope is not None else "", "", about)


def end_span(run: Run, happened: Happened | None) -> None:
    """End the span of a run; None: its lease was lost."""
    telemetry, span = run.task.engine.telemetry, run.span
    run.span = None
    if telemetry is None:
        return
    if happened is None:
        telemetry.end(span, "lost", "LeaseLost", "its lease was lost while it ran")
        return
    attempt = getattr(happened, "attempt", None)
    if attempt is None:
        telemetry.end(span, _IN_A_WORD[type(happened)])
    elif isinstance(happened, Raised) and isinstance(happened.error, Verdict):
        telemetry.end(span, type(happened.error).__name__.lower())  # a verdict of the task, not an error
    else:
        telemetry.end(span, attempt.how, attempt.error or attempt.how, attempt.message, attempt.traceback)
