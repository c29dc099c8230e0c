"""Masks jobs, schedules and dead letters for HTTP: secrets always, tracebacks for viewers."""

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

#: The required fields of `Failure`. A mapping that has them all is treated as one, wherever a handler passed it on.
_OF_FAILURES = [field.name for field in msgspec.structs.fields(Failure) if field.required]


def shown_job(app: Relevo, info: JobInfo, *, all: bool = True) -> JobInfo:
    """The job without secrets; without `all`, also without tracebacks."""
    # Results of parents come first and are not among the arguments yet.
    is_fed = bool(info.workflow) or ":" in info.queue
    given, named = _opened(app, info.args, all), _opened(app, info.kwargs, all)
    args, kwargs = _arguments(app, info.queue, info.task, given, named, is_fed=is_fed, all=all)
    marked = _marked(app, info.queue, info.task)
    return msgspec.structs.replace(
        info,
        args=args,
        kwargs=kwargs,
        headers=masked(info.headers, marked),
        result=masked(_opened(app, info.result, all), marked),
        attempts=tuple(_shown_attempt(attempt, marked, all=all) for attempt in info.attempts),
        progress=info.progress and _shown_progress(info.progress, marked),
    )


def shown_text(app: Relevo, text: str) -> str:
    """Text written by a job, without secrets."""
    return masked_text(text, app.settings.mask)


def shown_letter(app: Relevo, letter: Dead, *, all: bool = True) -> Dead:
    """The dead letter of a pool without secrets."""
    marked = app.settings.mask
    return msgspec.structs.replace(
        letter,
        error_message=masked_text(letter.error_message, marked),
        metadata=masked(letter.metadata, marked),
        traceback=_shown_traceback(letter.traceback, marked, all=all),
    )


def shown_schedule(app: Relevo, info: ScheduleInfo, *, all: bool = True) -> ScheduleInfo:
    """The schedule without secrets."""
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
        # Which arguments are marked as secret, and their positions, is known only where the code is.
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
    """A value in which each failure is masked like the job it describes."""
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
    """The argument of a failure handler, masked by the rules of the failed job's task."""
    args, kwargs = failure.get("args"), failure.get("kwargs")
    # A failure does not record whether results of parents came first, so positions may be shifted by one. Arguments of
    # an unknown task are all hidden; operators can read the failed job itself.
    shown = _arguments(
        app,
        failure["queue"],
        failure["task"],
        args if isinstance(args, list) else None,
        kwargs if isinstance(kwargs, dict) else None,
        is_fed=True,
        all=False,
    )
    found = {**failure, **{name: one for name, one in zip(("args", "kwargs"), shown, strict=True) if name in failure}}
    if all:
        return found
    attempts = failure.get("attempts")
    if isinstance(attempts, list):
        found["attempts"] = [_silenced(one) if isinstance(one, dict) else one for one in attempts]
    return _silenced(found)


def _silenced(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "traceback": HIDDEN} if found.get("traceback") else found
