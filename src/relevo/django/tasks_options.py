"""Options of relevo for Django's tasks: `@task(retries=3)`, and `@options(retries=3)` where Django passes none on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, TypeVar

from relevo.django.tasks_api import DjangoTask
from relevo.engine.options import Options, changed
from relevo.text.durations import Duration

F = TypeVar("F", bound=Callable[..., Any])

#: Refused by `changed` when a job is made.
OF_TASK = frozenset({"retry_on", "give_up_on", "max_crashes", "breaker", "executor", "secret"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RelevoTask(DjangoTask):
    """A task of Django with options of relevo, each None if it was not given: `@task(retries=3, backoff="2s")`."""

    retries: int | None = None
    backoff: Any = None
    timeout: Duration | None = None
    unique: Any = None
    expires: Duration | None = None
    tags: tuple[str, ...] | list[str] | None = None
    tenant: str | None = None
    result_ttl: Duration | None = None
    failure_ttl: Duration | None = None
    retry_on: Any = None
    give_up_on: Any = None
    max_crashes: int | None = None
    breaker: Any = None
    secret: tuple[str, ...] | list[str] | None = None

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> Any:
        """The same task with other options, also those of relevo: `send.using(retries=9, unique=True)`."""
        task = replace(self, **options) if options else self
        # By its name: a class with slots is made anew, and `super()` would mean the first one.
        return DjangoTask.using(task, priority=priority, queue_name=queue_name, run_after=run_after, backend=backend)


_OF_DJANGO = {field.name for field in fields(DjangoTask)}
OPTIONS = tuple(field.name for field in fields(RelevoTask) if field.name not in _OF_DJANGO)


def options(**given: Any) -> Callable[[F], F]:
    """Options of relevo for a task of Django, on every Django: below `@task`, above the function.

    >>> @task                                   # doctest: +SKIP
    ... @options(retries=3, backoff="2s")
    ... def send(address): ...
    """
    changed(Options(), given)

    def keep(func: F) -> F:
        func._relevo_options = given  # type: ignore[attr-defined]
        return func

    return keep


def options_of(task: Any) -> dict[str, Any]:
    """The options of relevo that this task was given."""
    given = dict(getattr(task.func, "_relevo_options", {}))
    for name in OPTIONS:
        if (value := getattr(task, name, None)) is not None:
            given[name] = value
    return given
