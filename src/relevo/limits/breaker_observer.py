"""Reports failed attempts of tasks that have a breaker to the server, before the next turn claims more of them."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

from relevo.engine.breaker import Breaker
from relevo.engine.duty import Host
from relevo.engine.job import Attempt
from relevo.engine.observers import Conclusion, OutcomeObserver
from relevo.engine.outcome import End, Outcome, TryAgain, speaks_against_task
from relevo.engine.pauses import LONGEST_TEXT, note_of
from relevo.limits.limit import TASK
from relevo.limits.store import adopt_all, trip
from relevo.store.plan import Call
from relevo.text.durations import spoken

log = logging.getLogger("relevo.worker")


class BreakerObserver(OutcomeObserver):
    """Counts for one queue of a worker."""

    def __init__(self, worker: Host, queue: str) -> None:
        self._engine = worker.engine
        self._queue = queue
        #: task -> its breaker, attempts that failed since the last report, and the last of them
        self.failed: dict[str, tuple[Breaker, int, Attempt]] = {}

    def ended(self, conclusion: Conclusion) -> None:
        """Count a failure, if its task has a breaker."""
        envelope = conclusion.held.envelope
        if envelope is None or not speaks_against_task(conclusion.happened, conclusion.outcome):
            return
        task = self._engine.task_for(self._queue, envelope.target)
        if task is not None and task.options.breaker is not None:
            self.count(envelope.target, task.options.breaker, conclusion.outcome)

    def count(self, task: str, breaker: Breaker, outcome: Outcome) -> None:
        """An attempt failed."""
        last = outcome.story.last if isinstance(outcome, TryAgain | End) else Attempt("")
        self._add(task, breaker, 1, last)

    def _add(self, task: str, breaker: Breaker, count: int, last: Attempt) -> None:
        before = self.failed[task][1] if task in self.failed else 0
        self.failed[task] = (breaker, before + count, last)

    def before_turn(self) -> Generator[Call[Any], Any, None] | None:
        """Report before more jobs of the same task are claimed."""
        return self.report() if self.failed else None

    def report(self) -> Generator[Call[Any], Any, None]:
        """Report all failures; those that cannot be reported are kept for the next turn."""
        keys = self._engine.keys_of(self._queue)
        while self.failed:
            # Removed first: failures during the report are part of the next one.
            task, (breaker, count, last) = self.failed.popitem()
            why = "".join(c if c.isprintable() else " " for c in f"{breaker} failed, last {last.words}")
            note = note_of(why[:LONGEST_TEXT], "breaker")
            try:
                probe_ms: int = yield trip(keys, task, count, breaker, note)
            except BaseException:
                self._add(task, breaker, count, last)
                raise
            if probe_ms:
                log.warning(
                    "%s: the breaker of %s opens for %s or more: %s", self._queue, task, spoken(breaker.rest), why
                )
                yield from adopt_all(keys, TASK + task)
