"""What operators did, kept for those who ask later: the newest of one prefix and env, in one stream."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: Deeds that are kept, about, and for how long after the last one: a quarter, as auditors ask.
MOST = 10_000
LIVE_MS = 90 * 86_400_000


class Deed(Struct, frozen=True):
    """Something an operator did."""

    #: When, by the server's clock.
    at_ms: int
    #: The app it was done to.
    app: str
    #: Who: `ana@host` on a command line, the name of a token over HTTP, what a program says of itself.
    who: str
    #: By which road: cli, http or python.
    via: str
    #: What, as `subject.verb`: dead.retry, queue.pause, purge.run.
    what: str
    #: How many things it was done to.
    count: int = 1
    #: What else is to be known, such as the queue and the reason.
    about: dict[str, Any] = {}


class _Written(Struct, frozen=True, omit_defaults=True):
    app: str
    who: str
    via: str
    what: str
    count: int = 1
    about: dict[str, Any] = {}


_read = msgspec.json.Decoder(_Written).decode


def write_deed(bus: QueueKeys, deed: Deed) -> Call[int]:
    """Write a deed down; the server says when it was."""
    row = _Written(deed.app, deed.who, deed.via, deed.what, deed.count, deed.about)
    script = bus.script("deed")
    return Call([MOST, LIVE_MS, msgspec.json.encode(row)], int, script, bus.of(script), repeatable=False)


def deeds(bus: QueueKeys, limit: int, since_ms: int | None = None, until_ms: int | None = None) -> Call[list[Deed]]:
    """The newest deeds, newest first; of those since and until then."""

    def decode(rows: list[Any]) -> list[Deed]:
        found = []
        for id, fields in rows:
            try:
                row = _read(fields[1])
            except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
                continue  # somebody else wrote it
            at_ms = int(id.partition(b"-")[0])
            found.append(Deed(at_ms, row.app, row.who, row.via, row.what, row.count, row.about))
        return found

    last, first = (b"+" if until_ms is None else max(0, until_ms)), (b"-" if since_ms is None else max(0, since_ms))
    return Call([b"XREVRANGE", bus.key("audit"), last, first, b"COUNT", limit], decode)
