"""Lines in the worker's log about attempts that failed; where many fail alike, most are only counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from relevo.engine.outcome import End, Outcome, TryAgain
from relevo.text.legible import clean, short
from relevo.text.masking import masked_text
from relevo.worker.run import Run

log = logging.getLogger("relevo.worker")

#: Characters of an error's message.
MESSAGE_MOST = 300
#: Characters of a traceback: its end, where the error is.
TRACEBACK_MOST = 4_000
#: Lines per second about attempts of one task that failed alike. The store keeps every one of them.
LINES = 20
WINDOW = 1.0


class FailureLog:
    """The failures of one worker.

    `look` is the command that shows a job, `{}` in the place of its id. With `tracebacks` the line of a dead job is
    followed by its traceback, for a person who reads along.
    """

    def __init__(self, look: str = "relevo job {}", *, tracebacks: bool = False) -> None:
        self._look = look
        self._tracebacks = tracebacks
        self._loop = asyncio.get_running_loop()
        self._seen: Counter[tuple[int, str, str, str]] = Counter()
        self._alarm: asyncio.TimerHandle | None = None

    def note(self, run: Run, outcome: Outcome) -> None:
        """One line, or a count of those left out once a second."""
        match outcome:
            case TryAgain():
                level, how = logging.INFO, "will be tried again"
            case End(state, reason):
                level, how = logging.ERROR if state == "dead" else logging.INFO, f"is {state} ({reason})"
            case _:
                return
        if not log.isEnabledFor(level):
            return
        target, last = run.task.target, outcome.story.last
        kind = (level, target, how, last.error)
        self._seen[kind] += 1
        if self._alarm is None:
            self._alarm = self._loop.call_later(WINDOW, self.flush)
        if self._seen[kind] > LINES:
            return
        message = short(masked_text(last.message), MESSAGE_MOST)
        if isinstance(outcome, TryAgain):
            log.log(level, "%s %s: %s %s; again in %.1f s", target, run.held.id, last.error, message, outcome.delay)
        else:
            more = self._explained(run, last.traceback) if outcome.state == "dead" else ""
            log.log(level, "%s %s %s: %s %s%s", target, run.held.id, how, last.error, message, more)

    def _explained(self, run: Run, traceback: str) -> str:
        """Where to see why a job died, and the traceback if it is wanted here."""
        text = f"; see: {self._look.format(run.held.id)}"
        if self._tracebacks and traceback:
            text += "\n" + clean(masked_text(traceback[-TRACEBACK_MOST:])).rstrip()
        return text

    def flush(self) -> None:
        """Say how many were left out."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        seen, self._seen = self._seen, Counter()
        for (level, target, how, error), count in seen.items():
            if count > LINES:
                log.log(level, "%s: %d more jobs like these: each %s: %s", target, count - LINES, how, error)
