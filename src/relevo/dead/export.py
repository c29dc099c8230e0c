"""Exports dead letters as lines of JSON, and imports them, each once."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from relevo.dead import store as letters
from relevo.dead.choosing import LOOKED_AHEAD, Watch, asked, next_that_fit, up_to_now
from relevo.dead.resigning import moved
from relevo.dead.store import Arrival
from relevo.dead.walk import Letter, Walk
from relevo.dead.wanted import Filters, Wanted
from relevo.engine import carried
from relevo.engine.ids import looks_like_id
from relevo.engine.job import State, read_record, write
from relevo.engine.job_store import readable
from relevo.errors import OptionError, PayloadError
from relevo.pools.pool import pool_of as pool_called
from relevo.store.plan import Ahead, Call, Steps
from relevo.text.names import is_pool_name, pool_of
from relevo.version import __version__

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Letters and bytes stored in one call.
AT_ONCE = 100
AT_ONCE_BYTES = 1024 * 1024
TOKEN = 1000
#: A line that is longer than any letter can be.
LONGEST = 64 * 1024 * 1024


class _Line(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A dead letter in a line. Unknown fields, of another version of relevo, are ignored."""

    relevo: str
    queue: str
    id: str
    died_ms: int
    record: Raw
    #: Data beside its body: large data of a message, results of parent jobs, checkpoints.
    carried: dict[str, str] = {}
    #: If it is signed: the queue that it was signed for, as signatures spell it.
    place: str = ""


_read = msgspec.json.Decoder(_Line).decode


class Imported(Struct, frozen=True):
    """The result of an import: new letters, those that existed already, and refused lines."""

    new: int
    known: int
    #: (line number, what is wrong with it)
    refused: tuple[tuple[int, str], ...] = ()
    #: The oldest letters, removed because their queue had more than `dead_max`.
    dropped: int = 0


class Export:
    """Dead letters as lines, one after the other; `next()` is a plan for one of them."""

    def __init__(self, engine: Engine, filters: Filters) -> None:
        self._engine = engine
        self._filters = filters
        self._walk: Walk | None = None
        self._wanted = Wanted()
        self._held: deque[tuple[Letter, int]] = deque()

    def next(self) -> Steps[bytes | None]:
        """The next letter as a line, with its line end; None: there are no more."""
        if self._walk is None:
            self._wanted = yield from asked(self._engine, self._filters)
            self._walk = Walk(self._engine, (yield from up_to_now(self._engine, self._wanted)), oldest=True)
        if not self._held:
            some = yield from next_that_fit(self._walk, self._wanted)
            bags = (carried.exists(self._engine.keys_of(letter.queue), letter.id) for letter in some)
            self._held.extend(zip(some, (yield Ahead(bags, LOOKED_AHEAD)), strict=True))
        if not self._held:
            return None
        letter, has_bag = self._held.popleft()
        # Data beside it may be large, so it is fetched one letter at a time; most letters have none.
        keys = self._engine.keys_of(letter.queue)
        beside = (yield from carried.packed(keys, letter.id)) if has_bag else {}
        envelope, record = letter.envelope, Raw(write(letter.record))
        place = keys.place if envelope is not None and envelope.signature else ""
        return (
            write(
                _Line(
                    relevo=__version__,
                    queue=letter.queue,
                    id=letter.id,
                    died_ms=letter.at_ms,
                    record=record,
                    carried=beside,
                    place=place,
                )
            )
            + b"\n"
        )


def loading(engine: Engine, lines: Any, watch: Watch | None = None) -> Generator[Call[Any], Any, Imported]:
    """Import the letters of lines; a line that is no letter is refused with its number."""
    if isinstance(lines, bytes | str) or not isinstance(lines, Iterable):
        raise OptionError("load: lines are needed: an open file, or what app.dead.export() returns")
    refused: list[tuple[int, str]] = []
    held: dict[str, list[Arrival]] = {}
    filed = _Filed(watch)
    now_ms = yield from engine.now_ms()
    for number, line in enumerate(lines, 1):
        if isinstance(line, bytes | str) and not line.strip():
            continue  # an empty line at the end
        try:
            queue, letter = _checked(engine, line, now_ms)
        except (OptionError, PayloadError) as error:
            refused.append((number, str(error)))
            continue
        some = held.setdefault(queue, [])
        some.append(letter)
        if len(some) == AT_ONCE or sum(one.size for one in some) > AT_ONCE_BYTES:
            yield from filed.put(engine, queue, held.pop(queue))
    for queue, some in held.items():
        yield from filed.put(engine, queue, some)
    return Imported(filed.new, filed.known, tuple(refused), filed.dropped)


class _Filed:
    """Stores letters, and counts what became of them."""

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self.new = self.known = self.dropped = 0

    def put(self, engine: Engine, queue: str, some: list[Arrival]) -> Generator[Call[Any], Any, None]:
        yield from engine.list_queue(queue)
        are_new, dropped, posted = yield letters.bury(
            engine.keys_of(queue), some, ttl_ms=engine.failure_ms(None), dead_max=engine.settings.dead_max
        )
        self.new += sum(are_new)
        self.known += len(are_new) - sum(are_new)
        self.dropped += dropped
        if self._watch is not None and self.new:
            self._watch(self.new)
        if posted:
            yield from engine.relay(queue)


def _checked(engine: Engine, text: Any, now_ms: int) -> tuple[str, Arrival]:
    if not isinstance(text, bytes | str) or len(text) > LONGEST:
        raise OptionError(f"a line of JSON is needed, found {text!r:.60}")
    try:
        line = _read(text)
        record = read_record(bytes(line.record))
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise OptionError(f"not a dead letter: {error}") from error
    if not looks_like_id(line.id):
        raise OptionError(f"{line.id!r:.60} is not the id of a job: those have 20 letters and digits")
    if record.state is not State.DEAD:
        raise OptionError(f"job {line.id} is {record.state.value}, not dead")
    if not 0 < line.died_ms < 2**47:
        raise OptionError(f"job {line.id}: died_ms is no time in milliseconds: {line.died_ms}")
    engine.keys_of(line.queue)  # refuses a name that cannot be one
    queue, beside = line.queue, carried.needed(line.carried)
    if is_pool_name(queue):  # its name says whose pool it was, and this app may be another one
        pool = pool_called(engine, pool_of(queue))
        pool.check_letter(record)
        queue = pool.queue
    envelope = readable(bytes(record.body))
    if envelope is not None and not carried.is_complete(envelope.takes, beside):
        raise OptionError(
            f"job {line.id}: its arguments were stored beside its body and are not in this line: they were gone "
            "when the line was written, or an older version of relevo wrote it"
        )
    keys = engine.keys_of(queue)
    if keys.signer is not None and line.place not in ("", keys.place):
        body, beside = moved(keys.signer, line.place, line.id, bytes(record.body), beside)
        record = msgspec.structs.replace(record, body=Raw(body))
    # Not later than now, whatever clock it comes from: an operation on all letters is about those that died before.
    died_ms = min(line.died_ms, now_ms)
    record = msgspec.structs.replace(record, ended_ms=min(record.ended_ms, now_ms))
    # Without the callers that waited for it there, and under a token above those that workers may still hold.
    return queue, Arrival(line.id, died_ms, b'{"token":%d,' % TOKEN + write(record)[1:], beside)
