"""Pages of jobs of all states and queues, by what they have in common.

A page costs the same however many jobs there are. The order: what runs, what is next, what has ended (the newest
first); within a state queue by queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from relevo.engine.ids import looks_like_id
from relevo.engine.job import State
from relevo.engine.lists import job_queues
from relevo.errors import OptionError
from relevo.queues import store
from relevo.queues.queue import JobRow, check_page, row_of
from relevo.queues.store import Listed, Mark, QueueStats
from relevo.store.plan import Ahead, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

ORDER = (
    *(State.RUNNING, State.READY, State.SCHEDULED, State.WAITING),
    *(State.DEAD, State.DONE, State.CANCELLED, State.EXPIRED),
)
#: Jobs read for one page where a filter leaves most of them out: some tens of milliseconds.
LOOKED_AT = 2_000
#: Jobs read in one call where a filter may leave them out.
CHUNK = 250


class JobFilters(Struct, frozen=True, kw_only=True):
    """What the jobs of a page have in common; '' and None: anything."""

    state: State | None = None
    queue: str = ""
    #: The whole name of the task, the tenant, one of the tags.
    task: str = ""
    tenant: str = ""
    tag: str = ""
    #: A part of the name or of the task, whatever the case.
    text: str = ""

    @property
    def reads_jobs(self) -> bool:
        """Whether jobs must be read to know whether they fit: state and queue are found by an index."""
        return bool(self.task or self.tenant or self.tag or self.text)


class FoundJob(JobRow, frozen=True, kw_only=True):
    """A job in a listing of several queues."""

    queue: str
    tags: tuple[str, ...] | None = None
    #: How often it was started; None: not known.
    attempts: int | None = None
    started_ms: int | None = None


class JobPage(Struct, frozen=True, kw_only=True):
    """Some jobs."""

    rows: list[FoundJob]
    #: Pass it as `after` for the next page; '': there is none.
    after: str
    #: All queues of the app that hold jobs, by name.
    stats: list[QueueStats]
    #: How many jobs were read.
    looked: int


def searching(engine: Engine, wanted: JobFilters, *, limit: int = 100, after: str = "") -> Steps[JobPage]:
    """A page of the jobs that fit: full, unless so many were read that the next page goes on from there."""
    check_page(0, limit)
    names = yield from job_queues(engine)
    if wanted.queue and wanted.queue not in names:  # of another app of the bus
        names = [*names, wanted.queue]
    stats: list[QueueStats] = yield Ahead(store.count(engine.keys_of(name), name) for name in names)
    search = _Search(engine, wanted, limit)
    cells, mark = _cells(stats, wanted, after)
    for state, queue in cells:
        if search.looked >= LOOKED_AT:
            search.after = _written(state, queue, mark)
            return JobPage(rows=search.rows, after=search.after, stats=stats, looked=search.looked)
        while True:
            last = yield from search.step(state, queue, mark)
            if search.is_over:
                return JobPage(rows=search.rows, after=search.after, stats=stats, looked=search.looked)
            if last is None:
                break
            mark = last
        mark = Mark()
    return JobPage(rows=search.rows, after="", stats=stats, looked=search.looked)


class _Search:
    def __init__(self, engine: Engine, wanted: JobFilters, limit: int) -> None:
        self._engine = engine
        self._wanted = wanted
        self._limit = limit
        self.rows: list[FoundJob] = []
        self.looked = 0
        self.after = ""
        self.is_over = False

    def step(self, state: State, queue: str, mark: Mark) -> Steps[Mark | None]:
        """Read some more jobs of a state of a queue; gives where to go on there, None: it has no more."""
        room = CHUNK if self._wanted.reads_jobs else self._limit + 1 - len(self.rows)
        part: store.Part = yield store.walk(self._engine.keys_of(queue), state, mark, room)
        self.looked += part.looked
        for one in part.jobs:
            if not _fits(self._wanted, one):
                continue
            if len(self.rows) == self._limit:  # there is one more
                self.is_over = True
                return None
            self.rows.append(found_of(one, queue))
            self.after = _written(state, queue, Mark(one.id, one.score))
        if part.mark is not None and self.looked >= LOOKED_AT:
            self.is_over = True
            self.after = _written(state, queue, part.mark)
        return part.mark


def found_of(one: Listed, queue: str) -> FoundJob:
    """A job as a row."""
    row, record = row_of(one), one.record
    attempts = record.runs if record else len(one.story.attempts) + (one.state is State.RUNNING)
    return FoundJob(
        **msgspec.structs.asdict(row),
        queue=queue,
        tags=one.envelope.tags if one.envelope else None,
        attempts=attempts,
        started_ms=record.started_ms or None if record else one.claim.since_ms if one.claim else None,
    )


def _fits(wanted: JobFilters, one: Listed) -> bool:
    if not wanted.reads_jobs:
        return True
    envelope, record = one.envelope, one.record
    target = envelope.target if envelope else record.target if record else ""
    tenant = envelope.tenant if envelope else record.tenant if record else ""
    if (wanted.task and wanted.task != target) or (wanted.tenant and wanted.tenant != tenant):
        return False
    if wanted.tag and not (envelope and wanted.tag in envelope.tags):
        return False
    text = wanted.text.lower()
    return text in target.lower() or bool(envelope and text in envelope.name.lower())


def _cells(stats: Sequence[QueueStats], wanted: JobFilters, after: str) -> tuple[list[tuple[State, str]], Mark]:
    """What is left to look at: states of queues that hold jobs, and the place in the first of them."""
    states = ORDER if wanted.state is None else (wanted.state,)
    ours = [one for one in stats if wanted.queue in ("", one.name)]
    cells = [(state, one.name) for state in states for one in ours if getattr(one, state.value)]
    if not after:
        return cells, Mark()
    state, queue, mark = _read(after)
    rank = (ORDER.index(state), queue)
    left = [cell for cell in cells if (ORDER.index(cell[0]), cell[1]) >= rank]
    return left, mark if left[:1] == [(state, queue)] else Mark()


def _written(state: State, queue: str, mark: Mark) -> str:
    return f"{state.value}-{mark.score}-{mark.id}-{queue}"


def _read(after: Any) -> tuple[State, str, Mark]:
    word, score, id, queue = _parts(after)
    is_place = (
        word in {*ORDER} and (not id or looks_like_id(id)) and score.isascii() and score.isdigit() and len(score) <= 20
    )
    if not (is_place and queue):
        raise OptionError(f"after: the `after` of a page is needed, found {after!r:.80}")
    return State(word), queue, Mark(id, score)


def _parts(after: Any) -> list[str]:
    parts = after.split("-", 3) if isinstance(after, str) else []
    return parts if len(parts) == 4 else [""] * 4
