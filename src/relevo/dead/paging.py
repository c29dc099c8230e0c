"""Pages of dead letters."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from relevo.dead import store as letters
from relevo.dead.choosing import asked
from relevo.dead.walk import Letter, Walk
from relevo.dead.wanted import Filters, fits
from relevo.engine.fingerprint import is_permanent
from relevo.engine.ids import made_ms
from relevo.engine.job import State
from relevo.pools import store as pools
from relevo.queues.queue import JobRow, check_page
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Dead letters read for one page where no index finds them: some tens of milliseconds.
LOOKED_AT = 2_000


class DeadRow(JobRow, frozen=True, kw_only=True):
    """A dead letter in a listing."""

    queue: str = ""
    came_from: str = ""
    #: The same for all dead letters of one error group.
    fingerprint: str = ""
    #: Whether it would fail again unless it or the code is changed.
    permanent: bool = False
    attempts: int = 0


class DeadPage(Struct, frozen=True):
    """Some dead letters."""

    rows: list[DeadRow]
    #: Pass it to `page(after=…)` for the next page; '': there is none.
    after: str = ""
    #: How many dead letters were read.
    looked: int = 0


def paging(
    engine: Engine, filters: Filters, *, limit: int, offset: int = 0, after: str = "", looks: float = math.inf
) -> Generator[Call[Any], Any, DeadPage]:
    """A page of the dead letters that fit, newest first: full, if there are as many.

    `looks`: at most so many others may be read besides those of the page; then it ends, full or not.
    """
    wanted = yield from asked(engine, filters)
    check_page(offset, limit)
    most = offset + limit
    walk = Walk(engine, wanted, after=after, most=min(most, letters.CHUNK) if wanted.is_in_index else letters.CHUNK)
    found: list[Letter] = []
    looked = 0
    while len(found) < most and looked < most + looks:
        letter = yield from walk.next()
        if letter is None:
            return DeadPage([row_of(one) for one in found[offset:]], "", looked)
        looked += 1
        after = letter.place
        if fits(wanted, letter.record, letter.envelope):
            found.append(letter)
    return DeadPage([row_of(one) for one in found[offset:]], after, looked)


def row_of(letter: Letter) -> DeadRow:
    """A dead letter as a row."""
    record, envelope = letter.record, letter.envelope
    given_up = pools.dead_of(letter.id, record) if letter.pool is not None else None
    return DeadRow(
        id=letter.id,
        state=State.DEAD,
        task=envelope.target if envelope else record.target,
        priority=envelope.priority if envelope else None,
        enqueued_ms=made_ms(letter.id),
        name=envelope.name if envelope else given_up.entity if given_up else None,
        tenant=envelope.tenant if envelope else None,
        due_ms=None,
        worker=record.worker,
        reason=record.reason,
        error=record.story.last.words,
        ended_ms=letter.at_ms,
        queue=letter.queue,
        came_from=record.queue_from,
        fingerprint=record.fingerprint,
        permanent=is_permanent(record.reason),
        attempts=record.runs,
    )
