"""A job of relevo as Django's `TaskResult`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from relevo.django.tasks_api import DjangoTask, TaskError, TaskResult, TaskResultStatus
from relevo.engine.handle import JobInfo
from relevo.engine.job import Attempt, State

_STATUS = {
    State.SCHEDULED: TaskResultStatus.READY,
    State.WAITING: TaskResultStatus.READY,
    State.READY: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.DONE: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
    State.EXPIRED: TaskResultStatus.FAILED,
}
_ENDED_WITHOUT_ERROR = {State.CANCELLED: "JobCancelled", State.EXPIRED: "JobExpired", State.DEAD: "JobFailed"}


def new_result(task: Any, alias: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a task that is about to be enqueued."""
    return TaskResult(
        task=task,
        id="",
        status=TaskResultStatus.READY,
        enqueued_at=None,
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def result_of(info: JobInfo, alias: str) -> Any:
    """What is known of a job. LookupError if it is none of a task of Django."""
    attempts = [one for one in info.attempts if one.started_ms]
    result = TaskResult(
        task=_task_of(info, alias),
        id=info.id,
        status=_STATUS[info.state],
        enqueued_at=time_of(info.enqueued_ms),
        started_at=time_of(attempts[0].started_ms if attempts else info.started_ms),
        finished_at=time_of(info.ended_ms),
        last_attempted_at=time_of(info.started_ms or (attempts[-1].started_ms if attempts else None)),
        args=info.args or [],  # of a done job they are kept up to a few kilobytes
        kwargs=info.kwargs or {},
        backend=alias,
        errors=errors_of(info.attempts) or _how_it_ended(info),
        worker_ids=[one.worker for one in attempts] + ([info.worker] if _runs_or_ran_well(info) else []),
    )
    object.__setattr__(result, "_return_value", info.result)
    return result


def errors_of(attempts: Sequence[Attempt]) -> list[Any]:
    """The errors of failed attempts."""
    return [
        TaskError(exception_class_path=_path(one.error), traceback=one.traceback or one.words)
        for one in attempts
        if one.error
    ]


def _how_it_ended(info: JobInfo) -> list[Any]:
    kind = _ENDED_WITHOUT_ERROR.get(info.state)
    return [TaskError(exception_class_path=f"relevo.errors.{kind}", traceback=info.reason)] if kind else []


def _runs_or_ran_well(info: JobInfo) -> bool:
    return info.worker != "" and info.state in (State.RUNNING, State.DONE)


def _task_of(info: JobInfo, alias: str) -> Any:
    task = task_named(info.task)
    if task is None:
        raise LookupError(f"no task {info.task!r}")
    priority = task.priority if info.priority is None else max(-100, min(100, 100 - info.priority))
    return task.using(backend=alias, queue_name=info.queue, priority=priority, run_after=time_of(info.due_ms))


def task_named(path: str) -> Any:
    """Django's task of this name; None if there is none."""
    try:
        found = import_string(path)
    except ImportError:
        return None
    return found if isinstance(found, DjangoTask) else None


def time_of(ms: int | None) -> datetime | None:
    """A time of relevo as Django's, naive where USE_TZ is off."""
    if not ms:
        return None
    found = datetime.fromtimestamp(ms / 1000, UTC)
    return found if settings.USE_TZ else found.astimezone().replace(tzinfo=None)


def _path(error: str) -> str:
    return error if "." in error else f"builtins.{error}"
