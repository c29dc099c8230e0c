"""Rows of the table, read: which task each of them is, or why it cannot be moved."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from typing import Any, Literal

from django.utils import timezone
from msgspec import Struct

from relevo.django.connections import original
from relevo.engine.engine import Engine
from relevo.engine.job import PRIORITY_MAX
from relevo.engine.task import Task

Kind = Literal["pending", "delayed", "retrying", "cron"]
KINDS: tuple[Kind, ...] = ("pending", "delayed", "retrying", "cron")


class UnreadableRow(Exception):
    """The row cannot be moved; the text says why."""


class Target(Struct, frozen=True):
    """A function by its name, and what it is called with."""

    module: str
    function: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """The name of a task that has none."""
        return f"{self.module}.{self.function}"


def kind_of(row: Any, now: datetime) -> Kind:
    """What this pending row waits for."""
    if getattr(row, "cron", None):
        return "cron"
    if getattr(row, "start_time", None):
        return "retrying"
    at = aware(row.scheduled_time)
    return "delayed" if at is not None and at > now else "pending"


def aware(at: datetime | None) -> datetime | None:
    """A time of the table, which has no zone where the project uses none."""
    return timezone.make_aware(at) if at is not None and timezone.is_naive(at) else at


def milliseconds_of(at: datetime | None) -> int:
    """As an id begins with it; 0: there is none."""
    known = aware(at)
    return 0 if known is None else max(0, int(known.timestamp() * 1000))


def priority_of(row: Any) -> int:
    """Within the bounds of relevo."""
    return min(max(0, row.priority), PRIORITY_MAX)


def target_of(text: str | None, what: str) -> Target | None:
    """The function in a column of JSON; None: the column is empty."""
    if not text or text in ("{}", "null"):
        return None
    try:
        found = json.loads(text)
        module, function = found["module"], found["function"]
        args, kwargs = found.get("argv", found.get("args")), found.get("kwarg", found.get("kwargs"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableRow(f"{what} is not the JSON of a call: {text!r:.80}") from None
    if not all(isinstance(one, str) and one for one in (module, function)):
        raise UnreadableRow(f"{what} names no function: {text!r:.80}")
    if not isinstance(args or [], list) or not isinstance(kwargs or {}, dict):
        raise UnreadableRow(f"the arguments in {what} are no list and no object: {text!r:.80}")
    return Target(module, function, tuple(args or ()), kwargs or {})


def name_of(task: Task[..., Any]) -> str:
    """The path of its function, whatever name the task has."""
    func = original(task.func)
    return f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"


def function_of(engine: Engine, target: Target) -> Callable[..., Any]:
    """The function, imported only if workers may run it."""
    known = next((one for one in engine.tasks.values() if name_of(one) == target.label), None)
    if known is not None:
        return known
    if not engine.allows(target.module):
        raise UnreadableRow(
            f"{target.label}: no task of this project, and workers run functions of allowed modules only; "
            f'add "{target.module}" to RELEVO["allow"]'
        )
    try:
        found = getattr(import_module(target.module), target.function)
    except Exception as error:  # whatever importing the user's module raises
        raise UnreadableRow(f"{target.label} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UnreadableRow(f"{target.label} is no function")
    return found
