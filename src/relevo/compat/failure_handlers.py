"""`onfail`: the task of relevo that calls the handler of a task that was given up."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from relevo.engine.handle import Job
from relevo.engine.settle import Failure
from relevo.engine.task import Task
from relevo.errors import TargetError

if TYPE_CHECKING:
    from relevo.app import Relevo

HANDLER = "relevo.compat.on_failure"
_ONFAIL = "onfail:"  # tag that holds the name of a job's failure handler


def options_for(app: Relevo, handler: Any) -> dict[str, Any]:
    """The options of a job whose failure calls this function."""
    func = handler.func if isinstance(handler, Task) else handler
    path = app.function(func, trusted=not app.settings.allow).target
    return {"on_failure": HANDLER, "tags": (_ONFAIL + path,)}


def handler_in(tags: tuple[str, ...]) -> str:
    """The path of the handler that these tags of a job name; '': none."""
    return next((tag.removeprefix(_ONFAIL) for tag in tags if tag.startswith(_ONFAIL)), "")


def install_handler(app: Relevo) -> None:
    """Make the task that calls handlers known to the workers of this process."""
    if HANDLER in app.tasks:
        return

    @app.task(name=HANDLER, give_up_on=(TargetError,))
    def on_failure(failure: Failure) -> None:
        from relevo.compat.queued_task import QueuedTask

        handler = _handler(app, handler_in(failure.tags))
        label = failure.name or failure.task.replace(":", ".")
        given = (QueuedTask(Job(app.engine, failure.job, failure.queue), label), _context(failure, label))
        result = handler(*given[: _takes(handler)])
        if inspect.iscoroutine(result):
            asyncio.run(result)


def _handler(app: Relevo, path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    if not app.engine.allows(module):
        raise TargetError(f"onfail {path!r:.100} is not in a module this app allows; add {module!r:.80} to `allow`")
    found = getattr(import_module(module), name)
    func: Callable[..., Any] = found.func if isinstance(found, Task) else found
    app.function(func)  # refuses a function that the module only imported
    return func


def _context(failure: Failure, label: str) -> dict[str, Any]:
    """The failure as a dict, with the arguments under both spellings that were in use."""
    module, _, function = failure.task.rpartition(":" if ":" in failure.task else ".")
    argv, kwarg = failure.args, failure.kwargs
    return {
        "id": failure.job,
        "name": label,
        "module": module,
        "function": function,
        "argv": argv,
        "kwarg": kwarg,
        "args": argv,
        "kwargs": kwarg,
        "reason": failure.reason,
        "error": failure.message,
        "error_type": failure.error,
        "message": failure.message,
        "traceback": failure.traceback,
        "attempts": len(failure.attempts),
    }


def _takes(handler: Callable[..., Any]) -> int:
    """How many of (task, context) a handler takes."""
    count = 0
    for one in inspect.signature(handler).parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            return 2
        count += one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    return min(count, 2)
