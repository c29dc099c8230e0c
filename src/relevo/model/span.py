"""Spans: what became of one attempt to handle a message, from which the story of an operation is told."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Span(Struct, frozen=True, omit_defaults=True):
    """One attempt, or a message that waits for one. Times in milliseconds, by the server's clock."""

    id: str
    type: str
    queue: str
    intent: str
    source: str = ""
    worker: str = ""
    tenant: str = ""
    task: str = ""
    correlation: str = ""
    causation: str = ""
    attempt: int = 1
    sent_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    #: done, dead, cancelled, expired, retry, back; of a message that lives, its state.
    outcome: str = ""
    error: str = ""

    def belongs_to(self, id: str) -> bool:
        """Whether it is part of an operation, a task, or is about a message itself."""
        return id in (self.id, self.correlation, self.task)


def timeline(spans: Iterable[Span]) -> list[tuple[int, Span]]:
    """Spans by the time they were sent and started, each with its depth below what caused it."""
    ordered = sorted(spans, key=lambda span: (span.sent_ms, span.id, span.attempt))
    known = {span.id: span for span in ordered}

    def depth(span: Span) -> int:
        deep, seen = 0, {span.id}
        while (above := known.get(span.causation)) is not None and above.id not in seen:
            seen.add(above.id)
            deep, span = deep + 1, above
        return deep

    return [(depth(span), span) for span in ordered]
