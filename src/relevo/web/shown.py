"""What of jobs and schedules is shown to whom: secrets to nobody, tracebacks to operators."""

from __future__ import annotations

from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.handle import JobInfo
from relevo.model.job import Attempt
from relevo.model.masking import HIDDEN, masked, masked_call
from relevo.schedules import ScheduleInfo


def shown_job(app: Relevo, info: JobInfo, *, all: bool = True) -> JobInfo:
    """The job as it may be shown. Without `all`, to one who may not see tracebacks either."""
    # What a job gets from those before it comes first, and is not among its arguments yet.
    is_fed = bool(info.workflow) or ":" in info.queue
    args, kwargs = _arguments(app, info.queue, info.task, info.args, info.kwargs, is_fed=is_fed, all=all)
    return msgspec.structs.replace(
        info,
        args=args,
        kwargs=kwargs,
        result=masked(info.result, _marked(app, info.queue, info.task)),
        attempts=info.attempts if all else tuple(map(_without_traceback, info.attempts)),
    )


def shown_schedule(app: Relevo, info: ScheduleInfo, *, all: bool = True) -> ScheduleInfo:
    """The schedule as it may be shown."""
    args, kwargs = _arguments(app, info.queue, info.task, info.args, info.kwargs, is_fed=False, all=all)
    return msgspec.structs.replace(info, args=args, kwargs=kwargs)


def _marked(app: Relevo, queue: str, target: str) -> tuple[str, ...]:
    task = app.task_for(queue, target)
    return app.settings.mask if task is None else (*app.settings.mask, *task.options.secret)


def _arguments(
    app: Relevo, queue: str, target: str, args: Any, kwargs: Any, *, is_fed: bool, all: bool
) -> tuple[Any, Any]:
    task = app.task_for(queue, target)
    if task is None and not all:
        # Which of its arguments its authors marked, and what is in which place, is known where its code is.
        return args and [HIDDEN] * len(args), kwargs and dict.fromkeys(kwargs, HIDDEN)
    marked = _marked(app, queue, target)
    places = task.signature.places if task else []
    shown, named = masked_call(args, kwargs, places, marked)
    if is_fed and shown:
        moved, _ = masked_call(args, None, places[1:] or places, marked)
        shown = [one if one == other else HIDDEN for one, other in zip(shown, moved or (), strict=True)]
    return shown, named


def _without_traceback(attempt: Attempt) -> Attempt:
    return msgspec.structs.replace(attempt, traceback=HIDDEN) if attempt.traceback else attempt
