"""What became of messages, kept for those who follow an operation: the newest of all services, in one stream."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from relevo.model.span import Span
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: They are forgotten a week after the last traffic.
LIVE_MS = 7 * 86_400_000
#: Spans in one call.
PART = 500
_read = msgspec.json.Decoder(Span).decode


def write_spans(bus: QueueKeys, spans: Sequence[Span], most: int) -> Call[int]:
    """Write spans down, at most PART, and keep about `most` of all."""
    script = bus.script("span")
    return Call([most, LIVE_MS, *map(msgspec.json.encode, spans)], int, script, bus.of(script))


def spans_of(bus: QueueKeys, id: str) -> Generator[Call[Any], Any, list[Span]]:
    """All spans that belong to an operation, a task or a message; oldest first."""
    found: list[Span] = []
    last = b"+"
    while True:
        rows: list[Any] = yield Call([b"XREVRANGE", bus.key("spans"), last, b"-", b"COUNT", 1000])
        fresh = rows if last == b"+" else rows[1:]  # a range includes its border
        for _, fields in fresh:
            try:
                span = _read(fields[1])
            except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
                continue  # somebody else wrote it
            if span.belongs_to(id):
                found.append(span)
        if len(rows) < 1000:
            return found[::-1]
        last = rows[-1][0]
