"""Spans: the outcome of one attempt to handle a message; an operation's timeline consists of them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Span(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One attempt, or a message that waits for one. Times in milliseconds of the server's clock."""

    id: str
    type: str
    queue: str
    intent: str
    source: str = ""
    worker: str = ""
    tenant: str = ""
    conversation: str = ""
    correlation: str = ""
    causation: str = ""
    attempt: int = 1
    sent_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    #: done, dead, cancelled, expired, retry, back; the state of a message that has not ended.
    outcome: str = ""
    error: str = ""

    def belongs_to(self, id: str) -> bool:
        """Whether it belongs to the operation, conversation or message with this id."""
        return id in (self.id, self.correlation, self.conversation)


def timeline(spans: Iterable[Span]) -> list[tuple[int, Span]]:
    """Spans in the order they were sent, each with its depth below its cause.

    The times come from the senders' clocks, which differ; a cause is sorted before its effects in any case.
    """
    found = list(spans)
    known = {span.id: span for span in found}
    rows = []
    for span in found:
        sent_ms, depth, seen, above = span.sent_ms, 0, {span.id}, known.get(span.causation)
        while above is not None and above.id not in seen:
            seen.add(above.id)
            sent_ms, depth, above = max(sent_ms, above.sent_ms), depth + 1, known.get(above.causation)
        rows.append((sent_ms, depth, span))
    rows.sort(key=lambda row: (row[0], row[1], row[2].sent_ms, row[2].id, row[2].attempt))
    return [(depth, span) for _, depth, span in rows]
