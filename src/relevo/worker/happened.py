"""What happened in an attempt, from the way in which its function ended."""

from __future__ import annotations

import logging

from relevo.checkpoints.keeping import is_interruption
from relevo.engine.outcome import (
    CancelAsked,
    Failed,
    Happened,
    Interrupted,
    LeaseLost,
    Raised,
    TimedOut,
    TooLate,
)
from relevo.engine.verdicts import Cancel, Retry, Snooze
from relevo.worker.attempt_record import failed_attempt
from relevo.worker.run import DeadlinePassed, ProcessDied, RemoteFailure, Run

log = logging.getLogger("relevo.worker")


def happened_in(run: Run, error: BaseException) -> Happened:
    """What happened in a run that ended with this error."""
    match run.stopped:
        case "timeout" if run.is_too_late:
            return TooLate()  # the caller no longer waits for the reply
        case "timeout":
            return TimedOut(failed_attempt(run, "timed_out", error, f"took longer than {run.limit:g} s"))
        case "cancel":
            return CancelAsked()
        case "shutdown":
            return Interrupted()
    if is_interruption(error):  # its position is stored for the next attempt
        log.info("%s: job %s is handed back: %s", run.task.target, run.held.id, error)
        return Interrupted()
    if isinstance(error, DeadlinePassed):
        return TooLate()
    if isinstance(error, ProcessDied):
        return LeaseLost(failed_attempt(run, "lost", error), error.among)
    if isinstance(error, RemoteFailure):
        return Failed(failed_attempt(run, "failed", error), error.permanent)
    how = "snoozed" if isinstance(error, Snooze) else "retried" if isinstance(error, Retry) else "failed"
    return Raised(error, failed_attempt(run, how, error))


def is_failure(happened: Happened) -> bool:
    """Whether it is a failure, in contrast to cancelled, expired or snoozed by the task itself."""
    if isinstance(happened, Raised):
        return not isinstance(happened.error, Snooze | Cancel)
    return isinstance(happened, Failed | TimedOut | LeaseLost)
