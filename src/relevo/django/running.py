"""How a worker runs a task of Django: with its context, and with the signals of its start and its end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from django.utils import timezone

from relevo.checkpoints.keeping import is_interruption
from relevo.django.site_app import app
from relevo.django.task_result import errors_of, new_result
from relevo.django.tasks_api import TaskContext, TaskError, TaskResultStatus, normalize_json, signals
from relevo.engine.context import current_job
from relevo.engine.verdicts import Cancel, Retry, Snooze


def runner_of(task: Any) -> Callable[..., Any]:
    """The function that a worker calls for this task. Arguments are JSON, as Django passes them, whatever the
    annotations of the task are.
    """
    return _async_runner(task) if iscoroutinefunction(task.func) else _sync_runner(task)


def _sync_runner(task: Any) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        result = _begun(task, args, kwargs)
        signals.task_started.send(sender=type(task.get_backend()), task_result=result)
        try:
            value = normalize_json(task.func(*_with_context(task, result), **kwargs))
        except BaseException as error:
            if _failed(result, error):
                signals.task_finished.send(sender=type(task.get_backend()), task_result=result)
            raise
        _went_well(result, value)
        signals.task_finished.send(sender=type(task.get_backend()), task_result=result)
        return value

    return _named(run, task)


def _async_runner(task: Any) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        result = _begun(task, args, kwargs)
        await signals.task_started.asend(sender=type(task.get_backend()), task_result=result)
        try:
            value = normalize_json(await task.func(*_with_context(task, result), **kwargs))
        except BaseException as error:
            if _failed(result, error):
                await signals.task_finished.asend(sender=type(task.get_backend()), task_result=result)
            raise
        _went_well(result, value)
        await signals.task_finished.asend(sender=type(task.get_backend()), task_result=result)
        return value

    return _named(run, task)


def _named(run: Callable[..., Any], task: Any) -> Callable[..., Any]:
    """With the name of the function but not its signature."""
    functools.update_wrapper(run, task.func)
    del run.__wrapped__  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def _begun(task: Any, args: Any, kwargs: Any) -> Any:
    job = current_job()
    result = new_result(task, task.backend, args, kwargs)
    now = timezone.now()
    earlier = [one for one in job.history if one.started_ms]
    for name, value in {
        "id": job.id,
        "status": TaskResultStatus.RUNNING,
        "started_at": now,
        "last_attempted_at": now,
        "errors": errors_of(job.history),
        "worker_ids": [*(one.worker for one in earlier), job.worker],
    }.items():
        object.__setattr__(result, name, value)
    return result


def _with_context(task: Any, result: Any) -> list[Any]:
    return [TaskContext(task_result=result), *result.args] if task.takes_context else result.args


def _went_well(result: Any, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", timezone.now())


def _failed(result: Any, error: BaseException) -> bool:
    """Whether the task has failed for good: no attempt follows. A worker that is stopping hands the task back."""
    job = current_job()
    if isinstance(error, Retry | Snooze | Cancel) or is_interruption(error) or job.cancel_requested:
        return False
    options = app.tasks[job.target].options
    permanent = isinstance(error, options.give_up_on) or not isinstance(error, options.retry_on or BaseException)
    if job.retries_left > 0 and not permanent:
        return False
    path = f"{type(error).__module__}.{type(error).__qualname__}"
    result.errors.append(TaskError(exception_class_path=path, traceback="".join(format_exception(error))))
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", timezone.now())
    return True
