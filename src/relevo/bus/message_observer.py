"""Observes how messages end: keeps their spans, and cleans up a conversation after its last callback."""

from __future__ import annotations

from relevo.bus.aftermath import Aftermath
from relevo.engine.duty import Host
from relevo.engine.observers import Conclusion, OutcomeObserver


class MessageObserver(OutcomeObserver):
    """For one queue; spans of all queues of a worker are written together."""

    def __init__(self, worker: Host, queue: str) -> None:
        self._aftermath = worker.part(Aftermath)
        self._queue = queue
        #: conversations whose last callback has ended, and those whose end is being settled
        self._ended: list[str] = []
        self._settling: list[str] = []

    def ended(self, conclusion: Conclusion) -> None:
        """Keep the span of a message."""
        held = conclusion.held
        if held.envelope is None or held.envelope.headers is None:
            return
        headers, outcome = held.envelope.headers, conclusion.outcome
        conversation = self._aftermath.note(held, headers, outcome, self._queue, conclusion.now_ms)
        if conversation:
            self._ended.append(conversation)

    def before_turn(self) -> None:
        """What ends from now on is settled by a later turn."""
        self._settling += self._ended
        self._ended.clear()

    def after_turn(self) -> None:
        """The server knows that these callbacks have ended."""
        if self._settling:
            self._aftermath.clean_up(self._settling)
            self._settling = []
