"""Pauses of a task or a tenant in all queues of an app, and the list of all pauses."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relevo.engine.lists import listed_queues
from relevo.engine.pauses import Pause, Until
from relevo.errors import OptionError
from relevo.limits.limit import QUEUE, name_of
from relevo.limits.pause_store import pauses, written
from relevo.queues.queue import Queue
from relevo.store.plan import Ahead, Call, Steps
from relevo.text.names import is_bus_name

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def pausing(
    engine: Engine, tenant: Any, task: Any, reason: str, by: str, until: Until
) -> Generator[Call[Any], Any, list[str]]:
    """Pause a task or a tenant in all queues of the app; returns those in which it was not paused before."""
    changed = []
    for name in (yield from _queues(engine, name_of(tenant, task))):
        if (yield from Queue(engine, name)._pause(tenant, task, reason, by, until)):
            changed.append(name)
    return changed


def resuming(engine: Engine, tenant: Any, task: Any) -> Steps[list[str]]:
    """Resume a task or a tenant in all queues of the app; returns those in which it was paused."""
    names = yield from _queues(engine, name_of(tenant, task))
    changed: list[bool] = yield Ahead(Queue(engine, name)._resume(tenant, task) for name in names)
    return [name for name, was_paused in zip(names, changed, strict=True) if was_paused]


def _queues(engine: Engine, name: str) -> Generator[Call[Any], Any, list[str]]:
    if name == QUEUE:
        raise OptionError("which task or tenant? Give task= or tenant=; app.queue(name).pause() is for a whole queue")
    # Bus queues must be paused one by one: other apps may serve them, too, and broadcast queues end with a process.
    found = {queue for queue in (yield from listed_queues(engine)) if not is_bus_name(queue)}
    task = engine.tasks.get(name[2:])
    return sorted(found | {task.options.queue if task else engine.settings.queue})


def all_pauses(engine: Engine) -> Steps[list[Pause]]:
    """All pauses, ordered by queue."""
    names = yield from listed_queues(engine)
    now_ms = yield from engine.now_ms()
    texts: list[list[bytes]] = yield Ahead(written(engine.keys_of(name)) for name in names)
    found: list[Pause] = []
    for name, rows in zip(names, texts, strict=True):
        if rows:
            found += yield from pauses(engine.keys_of(name), name, now_ms, rows)
    return found
