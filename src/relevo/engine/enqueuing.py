"""Calls on their way to the server, through the app's middleware. Apps without middleware never come here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from relevo.engine.context import running
from relevo.middleware.around import aaround, around
from relevo.middleware.middleware import Call, parts

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task

R = TypeVar("R")


def inherited() -> dict[str, str]:
    """The headers of the job that runs here: what it makes has the same ones."""
    job = running.get()
    return {} if job is None else dict(job.headers)


def call_of(task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The call of a task that is about to be enqueued."""
    return Call(target=task.target, queue=task.options.queue, args=args, kwargs=kwargs, headers=inherited(), task=task)


def through(engine: Engine, calls: Sequence[Call], act: Callable[[], Sequence[R]]) -> Sequence[R]:
    """What `act` gives, one result for each call, with the middleware around it."""
    where = f"enqueue() of {calls[0].target}" if calls else "enqueue()"
    return around(parts(engine.middleware, "enqueue", may_await=False, where=where), calls, act)


async def athrough(engine: Engine, calls: Sequence[Call], act: Callable[[], Awaitable[Sequence[R]]]) -> Sequence[R]:
    """`through` for async code."""
    return await aaround(parts(engine.middleware, "enqueue", may_await=True, where=""), calls, act)
