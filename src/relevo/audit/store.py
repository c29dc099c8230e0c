"""The stored audit trail: the newest entries of one prefix and env, in one stream.

Requests that the HTTP API refused are in a stream of their own, so that they cannot displace entries of operators.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call, Steps

#: Entries kept, approximately, and for how long after the last one: a quarter, as auditors ask.
MOST = 10_000
LIVE_MS = 90 * 86_400_000
#: The name of a refused request, and the entries of it that are kept, approximately.
REFUSED = "http.refuse"
MOST_REFUSED = 1_000
#: Entries read at once when each must be checked.
PAGE = 1_000


class Deed(Struct, frozen=True, kw_only=True):
    """An entry of the audit trail: something an operator did."""

    #: When, by the server's clock.
    at_ms: int
    #: The app it concerns.
    app: str
    #: The user: `ana@host` on a command line, the name of a token over HTTP, the name that a program gives.
    who: str
    #: The interface: cli, http or python.
    via: str
    #: The operation as `subject.verb`: dead.retry, queue.pause, purge.run.
    what: str
    #: The number of objects it changed.
    count: int = 1
    #: Details, such as the queue and the reason.
    about: dict[str, Any] = {}


class _Written(Struct, frozen=True, omit_defaults=True, kw_only=True):
    app: str
    who: str
    via: str
    what: str
    count: int = 1
    about: dict[str, Any] = {}


_read = msgspec.json.Decoder(_Written).decode


def write_deed(bus: QueueKeys, deed: Deed) -> Call[int]:
    """Add an entry, with the server's time."""
    row = _Written(app=deed.app, who=deed.who, via=deed.via, what=deed.what, count=deed.count, about=deed.about)
    is_refused = deed.what == REFUSED
    keys = (_refusals(bus),) if is_refused else (bus.key("audit"),)
    most = MOST_REFUSED if is_refused else MOST
    return Call([most, LIVE_MS, msgspec.json.encode(row)], int, bus.script("audit/add_entry"), keys, repeatable=False)


def _refusals(bus: QueueKeys) -> bytes:
    return bus.own("audit", "refused")


class Which(Struct, frozen=True, kw_only=True):
    """Filters of entries; all given ones must match."""

    since_ms: int | None = None
    until_ms: int | None = None
    #: `ana@host`, or `ana` on any host.
    who: str | None = None
    #: `dead.retry`, or `dead` for all that was done to dead letters.
    what: str | None = None
    app: str | None = None

    def fits(self, deed: Deed) -> bool:
        """Whether an entry matches, apart from the time."""
        return (
            (self.who is None or self.who in (deed.who, deed.who.partition("@")[0]))
            and (self.what is None or f"{deed.what}.".startswith(f"{self.what.removesuffix('.')}."))
            and (self.app is None or self.app == deed.app)
        )

    @property
    def is_by_time(self) -> bool:
        """Whether the time is the only filter."""
        return (self.who, self.what, self.app) == (None, None, None)


def deeds(bus: QueueKeys, limit: int, which: Which) -> Steps[list[Deed]]:
    """The newest entries that match, newest first; read in pages, at most all that are kept."""
    found: list[Deed] = []
    for stream in (bus.key("audit"), _refusals(bus)):
        found += yield from _deeds_in(stream, limit, which)
    return sorted(found, key=lambda deed: -deed.at_ms)[:limit]


def _deeds_in(stream: bytes, limit: int, which: Which) -> Steps[list[Deed]]:
    last: Argument = b"+" if which.until_ms is None else max(0, which.until_ms)
    first: Argument = b"-" if which.since_ms is None else max(0, which.since_ms)
    page = min(limit, PAGE) if which.is_by_time else PAGE
    found: list[Deed] = []
    while len(found) < limit:
        rows: list[Any] = yield Call([b"XREVRANGE", stream, last, first, b"COUNT", page])
        found += (deed for deed in map(_deed, rows) if deed is not None and which.fits(deed))
        if len(rows) < page:
            break
        last = b"(" + rows[-1][0]
    return found[:limit]


def _deed(row: Any) -> Deed | None:
    id, fields = row
    try:
        read = _read(fields[1])
    except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
        return None  # written by another program
    return Deed(
        at_ms=int(id.partition(b"-")[0]),
        app=read.app,
        who=read.who,
        via=read.via,
        what=read.what,
        count=read.count,
        about=read.about,
    )
