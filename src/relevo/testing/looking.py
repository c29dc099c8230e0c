"""Finds waiting jobs in an app's queues."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from relevo.app import Relevo
from relevo.engine.handle import JobInfo
from relevo.engine.ids import made_ms
from relevo.engine.job import Envelope
from relevo.engine.lists import known_queues
from relevo.engine.task import Task
from relevo.errors import OptionError, PayloadError
from relevo.queues import store as queues
from relevo.text.nearest import did_you_mean

Which: TypeAlias = Task[..., Any] | Callable[..., Any] | str | None
"""A task, a plain function, a target's name; None: all."""

#: Properties of a job that can be compared besides its arguments.
_FACTS = ("tenant", "name", "priority", "queue", "state", "tags")
#: Jobs listed in a message; more would bury the one that matters.
_SHOWN = 20


def waiting(app: Relevo, which: Which = None) -> list[JobInfo]:
    """All jobs that are ready, scheduled, or waiting for others."""
    target = None if which is None else _target(app, which)
    found = []
    for queue in app.engine.run(known_queues(app.engine)):  # includes queues of services that this app does not serve
        for state in ("ready", "scheduled", "waiting"):
            offset = 0
            while page := app.engine.run(queues.page(app.engine.keys_of(queue), state, offset, 1000)):
                offset += len(page)
                found += [_info(one, queue) for one in page]
    return [row for row in found if target is None or row.task == target]


def find(
    app: Relevo, which: Task[..., Any] | Callable[..., Any] | str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[JobInfo], list[JobInfo], str]:
    """The jobs that fit, all waiting jobs, and a description of what was looked for."""
    target = _target(app, which)
    task = which if isinstance(which, Task) else app.tasks.get(target)
    if task is None and callable(which):
        task = app.function(which, trusted=True)
    facts, named = _split(task, target, kwargs)
    rows = waiting(app)
    fits = [
        row
        for row in rows
        if row.task == target
        and all(getattr(row, name) == value for name, value in facts.items())
        and _has(task, row, args, named)
    ]
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in named.items())]
    about = "".join(f", {name} {value!r}" for name, value in facts.items())
    return fits, rows, f"{target}({', '.join(given)}){about}"


def listed(rows: list[JobInfo]) -> str:
    """The jobs as text, one per line."""
    if not rows:
        return "nothing waits in any queue"
    lines = [f"{'1 job waits' if len(rows) == 1 else f'{len(rows)} jobs wait'}:"]
    for row in rows[:_SHOWN]:
        given = [*map(repr, row.args), *(f"{name}={value!r}" for name, value in row.kwargs.items())]
        more = f", name {row.name!r}" if row.name else ""
        lines.append(
            f"  {row.task}({', '.join(given)}) on {row.queue}, {row.state.value}, priority {row.priority}{more}"
        )
    if len(rows) > _SHOWN:
        lines.append(f"  … and {len(rows) - _SHOWN} more")
    return "\n".join(lines)


def _target(app: Relevo, which: Task[..., Any] | Callable[..., Any] | str) -> str:
    if isinstance(which, Task):
        return which.target
    if isinstance(which, str):
        return which
    registered = next((task.target for task in app.tasks.values() if task.func is which), None)
    return registered or app.function(which, trusted=True).target


def _split(task: Task[..., Any] | None, target: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split keywords into properties of the job and arguments of the task; the task's own come first."""
    facts, named = {}, {}
    parameters = inspect.signature(task.func).parameters.values() if task else ()
    takes_all = task is None or any(one.kind is one.VAR_KEYWORD for one in parameters)
    own = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    for name, value in given.items():
        if name in _FACTS and name not in own:
            facts[name] = value
        elif takes_all or name in own:
            named[name] = value
        else:
            known = did_you_mean(name, [*own, *_FACTS])
            raise OptionError(f"{name!r} is neither an argument of {target} nor something to ask of a job{known}")
    return facts, named


def _has(task: Task[..., Any] | None, row: JobInfo, args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a job has the given arguments; others may have any value."""
    if task is None:
        here = list(row.args[: len(args)]) + [row.kwargs.get(name, _NOTHING) for name in named]
        return len(row.args) >= len(args) and all(map(_same, [*args, *named.values()], here))
    signature = inspect.signature(task.func)
    try:
        raw = msgspec.json.encode(row.args), msgspec.json.encode(row.kwargs)
        stored_args, stored_kwargs = task.signature.decode(*raw)
        stored = signature.bind(*stored_args, **stored_kwargs)
    except (PayloadError, TypeError):
        return False  # of another version of the task
    stored.apply_defaults()
    try:
        wanted = signature.bind_partial(*args, **named).arguments
    except TypeError as error:
        raise OptionError(f"{task.target}: {error}; it takes {signature}") from error
    for name, value in wanted.items():
        found = stored.arguments.get(name, _NOTHING)
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            if not all(_same(part, found.get(key, _NOTHING)) for key, part in value.items()):
                return False
        elif not _same(value, found):
            return False
    return True


_NOTHING = object()


def _same(wanted: Any, found: Any) -> bool:
    return bool(wanted == found) or (isinstance(wanted, tuple) and list(wanted) == found)


def _info(one: queues.Listed, queue: str) -> JobInfo:
    envelope = one.envelope or Envelope("unreadable")
    return JobInfo(
        id=one.id,
        state=one.state,
        task=envelope.target,
        queue=queue,
        args=msgspec.json.decode(envelope.args),
        kwargs=msgspec.json.decode(envelope.kwargs),
        priority=envelope.priority,
        enqueued_ms=made_ms(one.id),
        name=envelope.name,
        tenant=envelope.tenant,
        tags=envelope.tags,
        due_ms=one.due_ms,
    )
