"""Dead letters as lines of JSON: taken out to be looked at or kept elsewhere, and put back, each once."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from relevo.dead.walk import Letter, Walk
from relevo.errors import OptionError, PayloadError
from relevo.model.ids import looks_like_id
from relevo.model.job import State, read_record, write
from relevo.model.version import VERSION
from relevo.model.wanted import Wanted, fits
from relevo.store import letters
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo

#: Letters and bytes that are filed in one call.
AT_ONCE = 100
AT_ONCE_BYTES = 1024 * 1024
TOKEN = 1000
#: A line that is longer than any letter can be.
LONGEST = 64 * 1024 * 1024


class _Line(Struct, frozen=True):
    """A letter in a line. Written by this relevo; of another one's fields those that are known here count."""

    relevo: str
    queue: str
    id: str
    died_ms: int
    record: Raw


_read = msgspec.json.Decoder(_Line).decode


class Imported(Struct, frozen=True):
    """What became of lines: letters that are new, that were there already, and lines that are none."""

    new: int
    known: int
    #: (number of the line, what is wrong with it)
    refused: tuple[tuple[int, str], ...] = ()


class _Checked(Struct, frozen=True):
    queue: str
    id: str
    died_ms: int
    record: bytes


def line_of(letter: Letter) -> bytes:
    """A letter as a line, with its end."""
    return write(_Line(VERSION, letter.queue, letter.id, letter.at_ms, Raw(write(letter.record)))) + b"\n"


def exporting(walk: Walk, wanted: Wanted) -> Generator[Call[Any], Any, bytes | None]:
    """The next letter of a walk as a line; None: that was all."""
    while True:
        letter = yield from walk.next()
        if letter is None:
            return None
        if fits(wanted, letter.record, letter.envelope):
            return line_of(letter)


def loading(app: Relevo, lines: Any) -> Generator[Call[Any], Any, Imported]:
    """File the letters of lines; what is no letter is refused with its number, and the others go on."""
    if isinstance(lines, bytes | str) or not isinstance(lines, Iterable):
        raise OptionError("load: lines are needed: an open file, or what app.dead.export() gives")
    refused: list[tuple[int, str]] = []
    held: dict[str, list[_Checked]] = {}
    new = known = 0
    for number, line in enumerate(lines, 1):
        if isinstance(line, bytes | str) and not line.strip():
            continue  # an empty line at the end
        try:
            letter = _checked(app, line)
        except (OptionError, PayloadError) as error:
            refused.append((number, str(error)))
            continue
        some = held.setdefault(letter.queue, [])
        some.append(letter)
        if len(some) == AT_ONCE or sum(len(one.record) for one in some) > AT_ONCE_BYTES:
            filed, there = yield from _file(app, letter.queue, held.pop(letter.queue))
            new, known = new + filed, known + there
    for queue, some in held.items():
        filed, there = yield from _file(app, queue, some)
        new, known = new + filed, known + there
    return Imported(new, known, tuple(refused))


def _file(app: Relevo, queue: str, some: list[_Checked]) -> Generator[Call[Any], Any, tuple[int, int]]:
    yield from app.list_queue(queue)
    said, posted = yield letters.bury(
        app.keys_of(queue),
        [(one.id, one.died_ms, one.record) for one in some],
        ttl_ms=app.failure_ms(None),
        dead_max=app.settings.dead_max,
    )
    if posted:
        yield from app.relay(queue)
    return sum(said), len(said) - sum(said)


def _checked(app: Relevo, text: Any) -> _Checked:
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
    app.keys_of(line.queue)  # refuses a name that cannot be one
    # Without whoever waited for it there, and under a token above those that anybody may still hold.
    return _Checked(line.queue, line.id, line.died_ms, b'{"token":%d,' % TOKEN + write(record)[1:])
