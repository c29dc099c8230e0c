"""Pauses over all queues of an app: a task or a tenant stopped everywhere, and all that is paused in one list."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relevo.errors import OptionError
from relevo.model.limits import QUEUE, name_of
from relevo.model.names import is_bus_name
from relevo.model.pauses import Pause, Until
from relevo.queue import Queue
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo


def pausing(
    app: Relevo, group: Any, task: Any, reason: str, by: str, until: Until
) -> Generator[Call[Any], Any, list[str]]:
    """Pause a task or a group in all queues of the app: those in which it was not paused before."""
    changed = []
    for name in (yield from _queues(app, name_of(group, task))):
        if (yield from Queue(app, name).pausing(group, task, reason, by, until)):
            changed.append(name)
    return changed


def resuming(app: Relevo, group: Any, task: Any) -> Generator[Call[Any], Any, list[str]]:
    """Let a task or a group go on in all queues of the app: those in which it was paused."""
    changed = []
    for name in (yield from _queues(app, name_of(group, task))):
        if (yield Queue(app, name).resuming(group, task)):
            changed.append(name)
    return changed


def _queues(app: Relevo, name: str) -> Generator[Call[Any], Any, list[str]]:
    if name == QUEUE:
        raise OptionError("which task or group? Give task= or group=; app.queue(name).pause() is for a whole queue")
    # Queues of services belong to the bus, not to one app: they are paused one by one.
    found = {queue for queue in (yield from app.listed_queues()) if not is_bus_name(queue)}
    task = app.tasks.get(name[2:])
    return sorted(found | {task.options.queue if task else app.settings.queue})


def all_pauses(app: Relevo) -> Generator[Call[Any], Any, list[Pause]]:
    """What is paused in any queue, by queue."""
    found: list[Pause] = []
    for name in (yield from app.listed_queues()):
        found += yield from Queue(app, name).listing_pauses()
    return found
