"""A walk through dead letters, of one queue or of all, in the order of their deaths, one at a time.

Each queue is read in small parts, and the parts are merged. A walk can resume from any place, also in another process:
a place is the time of death, the id, and the queue, so letters that are added or removed do not shift it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from relevo.dead import store as letters
from relevo.dead.wanted import Wanted
from relevo.engine.ids import looks_like_id
from relevo.engine.job import Envelope, Record
from relevo.engine.job_store import readable
from relevo.engine.lists import listed_queues
from relevo.errors import OptionError
from relevo.store.plan import Call
from relevo.text.names import is_pool_name, pool_of

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


class Letter(Struct, frozen=True):
    """A dead letter, whole."""

    queue: str
    id: str
    at_ms: int
    record: Record

    @property
    def envelope(self) -> Envelope | None:
        """Its job's envelope; None if it cannot be read."""
        return readable(bytes(self.record.body))

    @property
    def pool(self) -> str | None:
        """The pool whose entity it was; None: it was a job."""
        return pool_of(self.queue) if is_pool_name(self.queue) else None

    @property
    def place(self) -> str:
        """Where a walk resumes after this letter."""
        return f"{self.at_ms}-{self.id}-{self.queue}"


class _Stream(Struct):
    """One queue's dead letters."""

    queue: str
    place: letters.Place | None = None
    found: deque[Letter] = msgspec.field(default_factory=deque)
    is_over: bool = False


class Walk:
    """Dead letters one after the other; `next()` is a plan for one of them."""

    def __init__(
        self, engine: Engine, wanted: Wanted, *, after: str = "", oldest: bool = False, most: int = letters.CHUNK
    ) -> None:
        self._engine = engine
        self._wanted = wanted
        self._oldest = oldest
        self._most = most
        self._after = _read(after)
        self._streams: list[_Stream] | None = None

    def next(self) -> Generator[Call[Any], Any, Letter | None]:
        """The next letter; None: there are no more."""
        if self._streams is None:
            self._streams = yield from self._begin()
        for stream in self._streams:
            while not stream.found and not stream.is_over:
                yield from self._fill(stream, len(self._streams))
        self._streams = [stream for stream in self._streams if stream.found or not stream.is_over]
        waiting = [stream for stream in self._streams if stream.found]
        if not waiting:
            return None
        # Letters of equal rank in the alphabetical order of their queues, whichever way the walk goes.
        first = min(waiting, key=lambda one: (self._rank(one.found[0]), one.queue))
        return first.found.popleft()

    def _rank(self, letter: Letter) -> tuple[int, list[int]]:
        sign = 1 if self._oldest else -1
        return sign * letter.at_ms, [sign * ord(digit) for digit in letter.id]

    def _begin(self) -> Generator[Call[Any], Any, list[_Stream]]:
        names = yield from listed_queues(self._engine, self._wanted.queue)
        return [_Stream(name, self._from(name)) for name in names]

    def _from(self, queue: str) -> letters.Place | None:
        if self._after is None:
            return None
        at_ms, id, last = self._after
        return letters.Place(at_ms, id, with_it=queue > last)

    def _fill(self, stream: _Stream, queues: int) -> Generator[Call[Any], Any, None]:
        wanted = self._wanted
        found: letters.Part = yield letters.part(
            self._engine.keys_of(stream.queue),
            kind=wanted.error_group or "",
            since_ms=wanted.since_ms,
            until_ms=wanted.until_ms,
            place=stream.place,
            oldest=self._oldest,
            # With many queues, little of each: most of what is read must be used.
            limit=min(letters.CHUNK, max(10, -(-2 * self._most // queues)) if queues > 1 else self._most),
        )
        stream.found.extend(map(Letter, [stream.queue] * len(found.ids), found.ids, found.times, found.records))
        stream.place = found.place
        stream.is_over = found.behind == 0


def _read(after: Any) -> tuple[int, str, str] | None:
    if not after:
        return None
    at, _, rest = after.partition("-") if isinstance(after, str) else ("", "", "")
    id, _, queue = rest.partition("-")
    if not (at.isascii() and at.isdigit() and len(at) <= 15 and looks_like_id(id) and queue):
        raise OptionError(f"after: the `after` of a page is needed, found {after!r:.80}")
    return int(at), id, queue
