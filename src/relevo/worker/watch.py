"""Watches what is in hand: time limits, progress and logs of running jobs, and how fast jobs are done."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from relevo.worker.hands import Hands
from relevo.worker.lane import Lane

log = logging.getLogger("relevo.worker")

#: Seconds between looks at time limits: how late a time-out may come. One sweep for all jobs costs less than a timer
#: for each.
SWEEP_EVERY = 0.1
#: Seconds between writing down progress and logs of running jobs.
NOTE_EVERY = 1.0
#: A run that was told to stop and does not is given up after so many seconds: a coroutine may have to clean up, a
#: thread was interrupted between two steps of Python code or sits in a call that nothing can interrupt.
STOP_PATIENCE = 5.0
STOP_PATIENCE_THREAD = 1.0


class Watch:
    """One sweep over all jobs in hand, ten times a second."""

    def __init__(self, hands: Hands, lanes: Sequence[Lane], on_hanging: Callable[[], None]) -> None:
        self._hands = hands
        self._lanes = lanes
        self._on_hanging = on_hanging
        #: when the loop last came by: the keeper knows by it whether the loop is blocked
        self.ticked = time.monotonic()
        #: jobs a second, of late
        self.rate = 0.0
        self._counted = (time.monotonic(), 0)

    async def run(self) -> None:
        """Watch until cancelled."""
        noted = time.monotonic()
        writing: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(SWEEP_EVERY)
                now = time.monotonic()
                self.run_once(now)
                if now - noted >= NOTE_EVERY and (writing is None or writing.done()):
                    noted = now
                    # Beside the sweep: a server that does not answer must not hold up time limits.
                    writing = asyncio.create_task(self._note(), name="relevo notes")
        finally:
            if writing is not None:
                writing.cancel()

    def run_once(self, now: float) -> None:
        """Stop what has run too long, give up what would not stop."""
        self.ticked = now
        for run in list(self._hands.runs.values()):
            if run.deadline and now > run.deadline and not run.stopped:
                self._hands.interrupt(run, "timeout")
            elif run.stopped:
                patience = STOP_PATIENCE if run.thread is None else STOP_PATIENCE_THREAD
                if now - run.stopped_at > patience and self._hands.give_up_on(run):
                    self._on_hanging()
        since, before = self._counted
        finished = self._hands.done + self._hands.failed
        if now > since:
            self.rate, self._counted = (finished - before) / (now - since), (now, finished)

    async def _note(self) -> None:
        for run in self._hands.runs.values():
            run.lane.note(run)
        for lane in self._lanes:
            await lane.flush_notes()
