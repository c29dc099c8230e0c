"""Parameters that several routes share, with their limits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from relevo.engine.lists import known_queues
from relevo.errors import OptionError
from relevo.queues.queue import Queue
from relevo.text.masking import HIDDEN, is_masked
from relevo.web.problems import invalid, not_there
from relevo.web.route import Desk

Limit = Annotated[int, Meta(ge=1, le=1000, description="at most so many")]
Offset = Annotated[int, Meta(ge=0, le=10**9, description="where to begin: `next` of the page before")]
QueueName = Annotated[str, Meta(max_length=1000, description="only of this queue; without it, of all")]
DryRun = Annotated[bool, Meta(description="only report what would be done; false: do it")]
Time = Annotated[str, Meta(max_length=40, description='a time with its zone (ISO 8601), or how long ago: "2h"')]
Ids = Annotated[list[Annotated[str, Meta(max_length=20)]], Meta(max_length=1000)]


class OfQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """The queue, if an id alone is ambiguous."""

    queue: QueueName = ""


class Dry(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether this is a dry run."""

    dry_run: DryRun = True


async def queue_in_use(desk: Desk, name: str) -> Queue:
    """A queue that is in use or that a task of the code names; any other is refused, so that no key is created."""
    known = await queues_in_use(desk)
    if name not in known:
        raise not_there("queue in use", name, known)
    return desk.app.queue(name)


async def queues_in_use(desk: Desk) -> set[str]:
    """Names of queues that are in use or that a task of the code names."""
    return {
        *await desk.app.engine.arun(known_queues(desk.app.engine)),
        *(task.options.queue for task in desk.app.tasks.values()),
    }


async def if_named(desk: Desk, name: str) -> str | None:
    """The named queue, which must be in use; None if none was named."""
    return (await queue_in_use(desk, name)).name if name else None


def time_of(name: str, text: str) -> datetime | str:
    """A time with its zone, or a duration as the Python API takes it."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return text
    if found.tzinfo is None:
        raise OptionError(f"{name}: a time with its zone is needed, such as 2030-01-01T02:30:00Z, found {text!r:.60}")
    return found


def refuse_hidden(*values: Any) -> None:
    """Refuse the placeholder of a hidden value where a value is expected."""
    if any(map(_holds_hidden, values)):
        raise invalid(f"{HIDDEN!r} stands for a hidden value; send the value itself")


def _holds_hidden(value: Any) -> bool:
    match value:
        case dict():
            return any(map(_holds_hidden, value.values()))
        case list():
            return any(map(_holds_hidden, value))
        case _:
            return isinstance(value, str) and is_masked(value)
