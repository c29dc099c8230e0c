"""Dead letters over HTTP as lines of JSON: exported to be kept elsewhere, and imported again, each once.

An export must be importable, so nothing in it is hidden: it needs the role operator, and is written to the audit trail.
Both directions hold only some lines in memory, however many there are.
"""

from __future__ import annotations

from msgspec import Struct

from relevo.dead.export import AT_ONCE, AT_ONCE_BYTES
from relevo.dead.web.letters import Which, about, filters
from relevo.web.access import Role
from relevo.web.route import Desk, Did, Lines, post

#: Refused lines that are listed one by one.
LISTED = 100


class NoLetter(Struct, frozen=True):
    """A line that is not a dead letter."""

    line: int
    why: str


class Loaded(Struct, frozen=True):
    """How many dead letters are new, and how many existed; refused lines, the first hundred one by one."""

    new: int
    known: int
    refused: int
    why: list[NoLetter]
    #: The oldest dead letters, removed because their queue had more than it keeps (`dead_max`).
    dropped: int = 0


@post("/dead/export", "dead.export")
async def export(desk: Desk, body: Which) -> Lines:
    """Export the dead letters that fit as lines of JSON, the oldest first, with all their arguments. They also stay."""
    return Lines(desk.app.dead.aexport(**await filters(desk, body)), about(body))


@post("/dead/import", "dead.import", Role.ADMIN)
async def load(desk: Desk, body: Lines) -> Did[Loaded]:
    """Import dead letters that were exported here or elsewhere. Those that exist already stay unchanged."""
    filing = _Filing(desk)
    async for line in body.lines:
        await filing.add(line)
    await filing.flush()
    loaded = Loaded(filing.new, filing.known, filing.refused, filing.why, filing.dropped)
    return Did(answer=loaded, count=filing.new)


class _Filing:
    """Stores lines in batches, and counts the outcomes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._held: list[bytes] = []
        self._size = 0
        self._read = 0
        self.new = self.known = self.refused = self.dropped = 0
        self.why: list[NoLetter] = []

    async def add(self, line: bytes) -> None:
        self._held.append(line)
        self._size += len(line)
        if len(self._held) >= AT_ONCE or self._size >= AT_ONCE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        lines, self._held, self._size = self._held, [], 0
        before, tell = self.new, self._desk.doing.tell
        done = await self._desk.app.dead.aload(lines, watch=lambda new: tell(before + new))
        self.new += done.new
        self.known += done.known
        self.refused += len(done.refused)
        self.dropped += done.dropped
        room = LISTED - len(self.why)
        self.why += [NoLetter(self._read + number, why) for number, why in done.refused[:room]]
        self._read += len(lines)


ROUTES = (export, load)
