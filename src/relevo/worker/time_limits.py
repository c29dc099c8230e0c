"""Enforces time limits of running jobs, writes their progress and logs, and measures the rate of ended jobs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from relevo.worker.consumer import Consumer
from relevo.worker.runner import Runner

log = logging.getLogger("relevo.worker")

#: Seconds between checks of time limits: how late a time-out may come. One sweep for all jobs costs less than a timer
#: for each.
SWEEP_EVERY = 0.1
#: Seconds between two writes of progress and logs of running jobs.
NOTE_EVERY = 1.0
#: Seconds after which a run that does not stop is abandoned: a coroutine may have to clean up; a thread stops between
#: two bytecode instructions, or is blocked in a call that cannot be interrupted.
STOP_PATIENCE = 5.0
STOP_PATIENCE_THREAD = 1.0


class TimeLimits:
    """Sweeps over all running jobs ten times a second."""

    def __init__(self, runner: Runner, consumers: Sequence[Consumer], on_hanging: Callable[[], None]) -> None:
        self._runner = runner
        self._consumers = consumers
        self._on_hanging = on_hanging
        #: time of the last sweep; tells the lease renewer whether the loop is blocked
        self.ticked = time.monotonic()
        #: ended jobs per second since the last sweep
        self.rate = 0.0
        self._counted = (time.monotonic(), 0)

    async def run(self) -> None:
        """Sweep until cancelled."""
        noted = time.monotonic()
        writing: asyncio.Task[None] | None = None
        try:
            while True:
                await asyncio.sleep(SWEEP_EVERY)
                now = time.monotonic()
                self.run_once(now)
                if now - noted >= NOTE_EVERY and (writing is None or writing.done()):
                    noted = now
                    # In its own task: a server that does not answer must not delay time limits.
                    writing = asyncio.create_task(self._note(), name="relevo notes")
        finally:
            if writing is not None:
                writing.cancel()

    def run_once(self, now: float) -> None:
        """Stop runs that exceed their time limit, abandon runs that do not stop."""
        self.ticked = now
        for run in list(self._runner.runs.values()):
            if run.deadline and now > run.deadline and not run.stopped:
                self._runner.interrupt(run, "timeout")
            elif run.stopped:
                patience = STOP_PATIENCE if run.thread is None else STOP_PATIENCE_THREAD
                if now - run.stopped_at > patience and self._runner.give_up_on(run):
                    self._on_hanging()
        since, before = self._counted
        finished = self._runner.done + self._runner.failed
        if now > since:
            self.rate, self._counted = (finished - before) / (now - since), (now, finished)

    async def _note(self) -> None:
        for run in self._runner.runs.values():
            run.consumer.note(run)
        for consumer in self._consumers:
            await consumer.flush_notes()
