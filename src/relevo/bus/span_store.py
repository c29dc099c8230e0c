"""Spans of messages, for queries by operation: the newest of all services, in one stream."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgspec

from relevo.bus.span import Span
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: TTL without any traffic: a week.
LIVE_MS = 7 * 86_400_000
#: Spans in one call.
PART = 500
_read = msgspec.json.Decoder(Span).decode


def write_spans(bus: QueueKeys, spans: Sequence[Span], most: int) -> Call[int]:
    """Write spans, at most PART, and keep about `most` of all."""
    script = bus.script("bus/add_spans")
    return Call([most, LIVE_MS, *map(msgspec.json.encode, spans)], int, script, bus.of(script))


def spans_of(bus: QueueKeys, id: str) -> Generator[Call[Any], Any, list[Span]]:
    """All spans that belong to an operation, a conversation or a message; oldest first."""
    found: list[Span] = []
    last = b"+"
    while True:
        rows: list[Any] = yield Call([b"XREVRANGE", bus.key("spans"), last, b"-", b"COUNT", 1000])
        fresh = rows if last == b"+" else rows[1:]  # a range includes its border
        for _, fields in fresh:
            try:
                span = _read(fields[1])
            except (msgspec.DecodeError, UnicodeDecodeError, IndexError):
                continue  # written by another program
            if span.belongs_to(id):
                found.append(span)
        if len(rows) < 1000:
            return found[::-1]
        last = rows[-1][0]
