"""After a message has ended: the worker stores its span and cleans up its conversation."""

from __future__ import annotations

import zlib

from relevo.bus.bus import Bus
from relevo.bus.conversations import cleaning
from relevo.bus.span import Span
from relevo.bus.span_store import PART, write_spans
from relevo.engine.duty import Duty, Host
from relevo.engine.ids import made_ms
from relevo.engine.message import Headers
from relevo.engine.outcome import End, Finish, GiveBack, Outcome, Reroute, TryAgain
from relevo.engine.settle import Held

#: Spans buffered while the server cannot be reached.
SPARE = 10_000


class Aftermath(Duty[None]):
    """Receives every handled message when its outcome is decided."""

    name = "spans"
    #: A small delay for readers of an operation's timeline, and one call for many spans.
    interval = 1.0

    def __init__(self, worker: Host) -> None:
        self._engine = engine = worker.engine
        self._spans: list[Span] = []
        self._is_kept = engine.settings.trace_max > 0
        #: number of spans in one write above which only a part is kept
        self._plenty = max(2_000, engine.settings.trace_max // 5)

    def note(self, held: Held, headers: Headers, outcome: Outcome, queue: str, now_ms: int) -> str:
        """Buffer the span. Returns the conversation to clean up after the settlement if this ends it, else ''."""
        envelope = held.envelope
        assert envelope is not None
        if self._is_kept and len(self._spans) < SPARE and self._is_worth_it(held.id, headers, outcome):
            word, error = _words(outcome)
            self._spans.append(
                Span(
                    id=held.id,
                    type=envelope.target,
                    queue=queue,
                    intent=headers.intent,
                    source=headers.source,
                    worker=held.worker,
                    tenant=envelope.tenant,
                    conversation=headers.conversation,
                    correlation=headers.correlation or held.id,
                    causation=headers.causation,
                    attempt=len(held.story.attempts) + 1,
                    sent_ms=made_ms(held.id),
                    started_ms=held.since_ms,
                    ended_ms=now_ms,
                    outcome=word,
                    error=error,
                )
            )
        is_last = headers.intent == "callback" and envelope.takes != "" and isinstance(outcome, Finish | End)
        return headers.conversation if is_last else ""

    def _is_worth_it(self, id: str, headers: Headers, outcome: Outcome) -> bool:
        """Whether to keep the span. Under heavy traffic some operations are kept whole, instead of parts of all.

        Spans of conversations and of failures are always kept.
        """
        if len(self._spans) < self._plenty or headers.conversation or not isinstance(outcome, Finish):
            return True
        return zlib.crc32((headers.correlation or id).encode()) % 16 == 0

    def clean_up(self, conversations: list[str]) -> None:
        """Clean up conversations whose callback was handled; the only automatic clean-up."""
        mode = self._engine.settings.lifecycle
        for conversation in dict.fromkeys(conversations):
            if mode != "off":
                self._engine.part(Bus).in_background(
                    cleaning(self._engine, conversation, dry_run=mode == "observe", everywhere=False)
                )

    async def close(self) -> None:
        """Write the last ones."""
        await self.run_once()

    async def run_once(self) -> None:
        """Write buffered spans."""
        while self._spans:
            part = self._spans[:PART]
            most = self._engine.settings.trace_max
            await self._engine.client.arun(write_spans(self._engine.bus_keys, part, most), patience=0)
            del self._spans[: len(part)]


def _words(outcome: Outcome) -> tuple[str, str]:
    match outcome:
        case Finish():
            return "done", ""
        case TryAgain(_, story):
            return "retry", story.last.error
        case Reroute():
            return "rerouted", ""
        case GiveBack():
            return "back", ""
        case End(state, reason, story):
            return state.value, ": ".join(part for part in (reason, story.last.error) if part)
