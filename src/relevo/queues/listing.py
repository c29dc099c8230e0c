"""Jobs by their state, of one queue or of all, in pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from relevo.engine.lists import job_queues, listed_queues
from relevo.errors import OptionError
from relevo.queues import store
from relevo.queues.queue import JobRow, check_page, row_of
from relevo.queues.store import QueueStats
from relevo.store.plan import Ahead, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: All states, in the order in which they are listed.
STATES = ("running", "ready", "scheduled", "waiting", "dead", "cancelled", "expired", "done")


class ListedJob(JobRow, frozen=True, kw_only=True):
    """A job in a listing of several queues."""

    queue: str


class JobPage(Struct, frozen=True):
    """Some jobs."""

    items: list[ListedJob]
    #: Pass it as `after` for the next page; None: there is none.
    next: str | None = None


class _Part(Struct, frozen=True):
    """The jobs of one queue in one state."""

    state: str
    queue: str
    size: int


def listing(
    engine: Engine, *, queue: str | None = None, state: str | None = None, limit: int = 50, after: str = ""
) -> Steps[JobPage]:
    """A page of jobs. Live ones stand in the order in which they will run, ended ones newest first.

    It reads the counts of each queue and as many jobs as it returns. Jobs move between two pages: one may repeat or
    miss some.
    """
    check_page(0, limit)
    names = yield from job_queues(engine) if queue is None else listed_queues(engine, queue)
    stats: list[QueueStats] = yield Ahead(store.count(engine.keys_of(name), name) for name in names)
    found: list[ListedJob] = []
    for part, offset in _from(after, list(_parts(stats, state))):
        room = limit - len(found)
        jobs: list[store.Listed] = yield store.page(engine.keys_of(part.queue), part.state, offset, room)
        found += (_row(one, part.queue) for one in jobs)
        if len(found) == limit:
            return JobPage(found, f"{part.state}:{offset + room}:{part.queue}")
    return JobPage(found)


def _parts(stats: list[QueueStats], only: str | None) -> Iterator[_Part]:
    if only is not None and only not in STATES:
        raise OptionError(f"state: one of {', '.join(STATES)} is needed, found {only!r:.40}")
    for state in STATES if only is None else (only,):
        yield from (_Part(state, one.name, getattr(one, state)) for one in stats)


def _from(after: str, parts: list[_Part]) -> Iterator[tuple[_Part, int]]:
    """The parts that hold jobs, from the place on where a page ended, each with the offset to begin at."""
    first, offset = 0, 0
    if after:
        state, _, rest = after.partition(":")
        number, _, queue = rest.partition(":")
        places = [n for n, part in enumerate(parts) if (part.state, part.queue) == (state, queue)]
        if not places or not (number.isascii() and number.isdigit() and len(number) <= 9):
            raise OptionError(f"after: {after!r:.80} is no place in this list; pass `next` of the page before")
        first, offset = places[0], int(number)
    for part in parts[first:]:
        if part.size > offset:
            yield part, offset
        offset = 0


def _row(one: store.Listed, queue: str) -> ListedJob:
    row = row_of(one)
    return ListedJob(**{name: getattr(row, name) for name in row.__struct_fields__}, queue=queue)
