"""Forms of what is asked that several routes share, with the limits that hold for all."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from relevo.queue import Queue
from relevo.web.problems import not_there
from relevo.web.route import Desk

Limit = Annotated[int, Meta(ge=1, le=1000, description="at most so many")]
Offset = Annotated[int, Meta(ge=0, le=10**9, description="where to begin: `next` of the page before")]
QueueName = Annotated[str, Meta(max_length=1000, description="only of this queue; without it, of all")]
DryRun = Annotated[bool, Meta(description="only tell what would be done; say false to do it")]
Ids = Annotated[list[Annotated[str, Meta(max_length=20)]], Meta(max_length=1000)]


class OfQueue(Struct, frozen=True, forbid_unknown_fields=True):
    """Which queue is meant, where that is not clear."""

    queue: QueueName = ""


class Dry(Struct, frozen=True, forbid_unknown_fields=True):
    """Whether to do it."""

    dry_run: DryRun = True


async def queue_in_use(desk: Desk, name: str) -> Queue:
    """A queue that has been used; a misspelt one is refused, and nothing is left under its name."""
    known = await desk.app.aqueues()
    if name not in known:
        raise not_there("queue in use", name, known)
    return desk.app.queue(name)
