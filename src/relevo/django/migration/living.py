"""Living jobs as rows of the table could say them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.conf import settings as site
from django.utils import timezone
from msgspec import Struct

from relevo.compat.failure_handlers import handler_in
from relevo.django.migration.rows import Target
from relevo.engine.edges import edges_of
from relevo.engine.engine import Engine
from relevo.engine.ids import made_ms
from relevo.engine.job import Envelope, State
from relevo.engine.job_store import Seen, look
from relevo.engine.targets import module_of, own_name
from relevo.engine.task import Task
from relevo.errors import TargetError
from relevo.queues.store import page
from relevo.schedules.handle import ScheduleInfo
from relevo.store.plan import Ahead, Call, Steps

#: Jobs looked at in one go.
PAGE = 200


class NotARow(Exception):
    """A row cannot say this; the text says why."""


class Living(Struct, frozen=True, kw_only=True):
    """A job that has not started, or waits for its next attempt."""

    id: str
    queue: str
    state: State
    target: Target
    name: str
    #: That it holds or carries; '': none.
    own_name: str
    priority: int
    retries: int
    due_ms: int | None
    began_ms: int
    handler: str
    #: Jobs that wait for it.
    children: tuple[str, ...]

    @property
    def made(self) -> datetime:
        """When it was enqueued."""
        return time_of(made_ms(self.id))


def living(engine: Engine, queue: str, state: str, skip: int) -> list[tuple[str, Living | NotARow]]:
    """Jobs in this state, behind the first `skip`; or why a row cannot say one."""
    found: list[tuple[str, Living | NotARow]] = engine.run(_page(engine, queue, state, skip))
    return found


def _page(engine: Engine, queue: str, state: str, skip: int) -> Steps[list[tuple[str, Living | NotARow]]]:
    keys = engine.keys_of(queue)
    rows = yield page(keys, state, skip, PAGE)
    seen: list[Seen] = yield Ahead(look(keys, row.id) for row in rows)
    waiters: list[Any] = yield Ahead(Call([b"HGET", keys.key("waiters"), row.id]) for row in rows)
    return [(one.id, _read(engine, queue, one, edges)) for one, edges in zip(seen, waiters, strict=True)]


def _read(engine: Engine, queue: str, seen: Seen, waiters: bytes | None) -> Living | NotARow:
    envelope = seen.envelope
    if envelope is None:
        return NotARow("it cannot be read")
    if envelope.headers is not None or envelope.flow or envelope.takes:
        return NotARow("a message, or a job of a workflow: the table has no place for it")
    try:
        target = target_of_task(engine, envelope.target)
    except NotARow as why:
        return why
    task = engine.tasks.get(envelope.target)
    args, kwargs = msgspec.json.decode(envelope.args), msgspec.json.decode(envelope.kwargs)
    began = [one.started_ms for one in seen.story.attempts if one.started_ms]
    return Living(
        id=seen.id,
        queue=queue,
        state=seen.state,
        target=msgspec.structs.replace(target, args=tuple(args), kwargs=kwargs),
        name=envelope.name or target.label,
        own_name=envelope.name,
        priority=envelope.priority,
        retries=max(0, _retries(engine, envelope, task) - seen.story.spent),
        due_ms=seen.due_ms if seen.state is State.SCHEDULED else None,
        began_ms=min(began, default=0),
        handler=handler_in(envelope.tags),
        children=tuple(edge.child for edge in edges_of((waiters or b"").decode())),
    )


def _retries(engine: Engine, envelope: Envelope, task: Task[..., Any] | None) -> int:
    return (
        envelope.retries if envelope.retries is not None else (task.options if task else engine.default_options).retries
    )


def target_of_task(engine: Engine, name: str) -> Target:
    """The function of a task by its name."""
    module, colon, function = name.partition(":")
    if colon:
        return Target(module, function)
    task = engine.tasks.get(name)
    if task is None:
        raise NotARow(f"{name!r} is no task of this project")
    try:
        return Target(module_of(task), own_name(task))
    except TargetError as error:
        raise NotARow(str(error)) from error


def target_of_schedule(engine: Engine, info: ScheduleInfo) -> Target:
    """The call that a schedule makes."""
    if info.origin != "call":
        raise NotARow(f"it is defined by {'code' if info.origin == 'code' else 'settings'}, and stays there")
    if info.when.endswith("s") and " " not in info.when:
        raise NotARow("it has an interval, and the table only cron expressions")
    target = target_of_task(engine, info.task)
    return msgspec.structs.replace(target, args=tuple(info.args or ()), kwargs=info.kwargs or {})


def time_of(ms: int) -> datetime:
    """As the project writes times."""
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return at if site.USE_TZ else timezone.make_naive(at)


def parents_of(jobs: Sequence[Living]) -> Iterator[tuple[str, str]]:
    """(child, parent) of all that wait."""
    for job in jobs:
        for child in job.children:
            yield child, job.id
