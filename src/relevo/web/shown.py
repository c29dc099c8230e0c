"""What of jobs, schedules and dead letters is shown to whom: secrets to nobody, tracebacks to operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.engine.handle import JobInfo, Progress
from relevo.engine.job import Attempt
from relevo.engine.settle import Failure
from relevo.pools.store import Dead
from relevo.schedules.handle import ScheduleInfo
from relevo.text.masking import DEEPEST, HIDDEN, masked, masked_call, masked_text

#: What every `Failure` says. Whatever says all of it is taken for one, wherever a handler passed it on to.
_OF_FAILURES = [field.name for field in msgspec.structs.fields(Failure) if field.required]


def shown_job(app: Relevo, info: JobInfo, *, all: bool = True) -> JobInfo:
    """The job as it may be shown. Without `all`, to one who may not see tracebacks either."""
    # What a job gets from those before it comes first, and is not among its arguments yet.
    is_fed = bool(info.workflow) or ":" in info.queue
    given, named = _opened(app, info.args, all), _opened(app, info.kwargs, all)
    args, kwargs = _arguments(app, info.queue, info.task, given, named, is_fed=is_fed, all=all)
    marked = _marked(app, info.queue, info.task)
    return msgspec.structs.replace(
        info,
        args=args,
        kwargs=kwargs,
        result=masked(_opened(app, info.result, all), marked),
        attempts=tuple(_shown_attempt(attempt, marked, all=all) for attempt in info.attempts),
        progress=info.progress and _shown_progress(info.progress, marked),
    )


def shown_text(app: Relevo, text: str) -> str:
    """What a job wrote as it may be shown."""
    return masked_text(text, app.settings.mask)


def shown_letter(app: Relevo, letter: Dead, *, all: bool = True) -> Dead:
    """The dead letter of a pool as it may be shown."""
    marked = app.settings.mask
    return msgspec.structs.replace(
        letter,
        error_message=masked_text(letter.error_message, marked),
        metadata=masked(letter.metadata, marked),
        traceback=_shown_traceback(letter.traceback, marked, all=all),
    )


def shown_schedule(app: Relevo, info: ScheduleInfo, *, all: bool = True) -> ScheduleInfo:
    """The schedule as it may be shown."""
    given, named = _opened(app, info.args, all), _opened(app, info.kwargs, all)
    args, kwargs = _arguments(app, info.queue, info.task, given, named, is_fed=False, all=all)
    return msgspec.structs.replace(info, args=args, kwargs=kwargs)


def _marked(app: Relevo, queue: str, target: str) -> tuple[str, ...]:
    task = app.engine.task_for(queue, target)
    return app.settings.mask if task is None else (*app.settings.mask, *task.options.secret)


def _arguments(
    app: Relevo, queue: str, target: str, args: Any, kwargs: Any, *, is_fed: bool, all: bool
) -> tuple[Any, Any]:
    task = app.engine.task_for(queue, target)
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


def _shown_attempt(attempt: Attempt, marked: tuple[str, ...], *, all: bool) -> Attempt:
    return msgspec.structs.replace(
        attempt,
        message=masked_text(attempt.message, marked),
        traceback=_shown_traceback(attempt.traceback, marked, all=all),
    )


def _shown_traceback(text: str, marked: tuple[str, ...], *, all: bool) -> str:
    return masked_text(text, marked) if all or not text else HIDDEN


def _shown_progress(progress: Progress, marked: tuple[str, ...]) -> Progress:
    return msgspec.structs.replace(progress, message=masked_text(progress.message, marked))


def _opened(app: Relevo, value: Any, all: bool, deeper: int = DEEPEST) -> Any:
    """A value in which failures tell no more of a job than may be shown of the job itself."""
    match value:
        case Mapping() | list() | tuple() if deeper == 0:
            return HIDDEN
        case Mapping():
            found = {name: _opened(app, one, all, deeper - 1) for name, one in value.items()}
            return _shown_failure(app, found, all) if _is_failure(found) else found
        case list() | tuple():
            return [_opened(app, one, all, deeper - 1) for one in value]
        case _:
            return value


def _is_failure(value: dict[str, Any]) -> bool:
    return all(isinstance(value.get(name), str) for name in _OF_FAILURES)


def _shown_failure(app: Relevo, failure: dict[str, Any], all: bool) -> dict[str, Any]:
    """What a failure handler is given, with what it tells of the failed job hidden as that job's task wants it."""
    args, kwargs = failure.get("args"), failure.get("kwargs")
    # It does not say whether the job was fed by others, so its arguments may stand one place further on. Of an unknown
    # task nobody sees any: whoever may see more looks at the failed job.
    shown = _arguments(
        app,
        failure["queue"],
        failure["task"],
        args if isinstance(args, list) else None,
        kwargs if isinstance(kwargs, dict) else None,
        is_fed=True,
        all=False,
    )
    told = {**failure, **{name: one for name, one in zip(("args", "kwargs"), shown, strict=True) if name in failure}}
    if all:
        return told
    attempts = failure.get("attempts")
    if isinstance(attempts, list):
        told["attempts"] = [_silenced(one) if isinstance(one, dict) else one for one in attempts]
    return _silenced(told)


def _silenced(told: dict[str, Any]) -> dict[str, Any]:
    return {**told, "traceback": HIDDEN} if told.get("traceback") else told
