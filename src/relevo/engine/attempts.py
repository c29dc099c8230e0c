"""What a worker calls to make an attempt: the function of the task, with what the app puts around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relevo.dependencies.filling import Dependencies, refuse_coroutine
from relevo.engine.context import current_job
from relevo.middleware.around import aaround, around
from relevo.middleware.middleware import Call, parts

if TYPE_CHECKING:
    from relevo.engine.task import Task


def attempt_of(task: Task[..., Any]) -> Callable[..., Any]:
    """What makes an attempt of a task; the function itself where nothing is around it."""
    engine = task.engine
    func = engine.part(Dependencies).filled(task.func, task.target, is_async=task.is_async)
    if task.target in engine.built_in:
        return func
    where = f"the plain function {task.target}"
    around_it = parts(engine.middleware, "attempt", may_await=task.is_async, where=where)
    if not around_it:
        return func

    def attempt(*args: Any, **kwargs: Any) -> Any:
        call = _call_of(task, args, kwargs)
        return around(around_it, [call], lambda: [refuse_coroutine(func(*call.args, **call.kwargs), task.target)])[0]

    async def async_attempt(*args: Any, **kwargs: Any) -> Any:
        call = _call_of(task, args, kwargs)

        async def act() -> list[Any]:
            return [await func(*call.args, **call.kwargs)]

        return (await aaround(around_it, [call], act))[0]

    return async_attempt if task.is_async else attempt


def _call_of(task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    job = current_job()
    return Call(target=job.target, queue=job.queue, args=args, kwargs=kwargs, headers=job.headers, task=task, job=job)
