"""Duties for running jobs: enforce their time limits, measure the rate at which they end, write their progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from relevo.engine.duty import Duty
from relevo.worker.consumer import Consumer
from relevo.worker.runner import Runner

log = logging.getLogger("relevo.worker")


class TimeLimits(Duty[None]):
    """Looks at all running jobs ten times a second."""

    name = "time limits"
    #: How late a time-out may come. One pass over all jobs costs less than a timer for each.
    interval = 0.1

    def __init__(self, runner: Runner, on_hanging: Callable[[], None]) -> None:
        self._runner = runner
        self._on_hanging = on_hanging
        #: time of the last sweep; tells the lease renewer whether the loop is blocked
        self.ticked = time.monotonic()
        #: ended jobs per second since the last sweep
        self.rate = 0.0
        self._counted = (time.monotonic(), 0)

    async def run_once(self) -> None:
        """Stop runs that exceed their time limit, abandon runs that do not stop."""
        now = self.ticked = time.monotonic()
        for run in list(self._runner.runs.values()):
            if run.deadline and now > run.deadline and not run.stopped:
                self._runner.interrupt(run, "timeout")
            elif run.hangs(now) and self._runner.give_up_on(run):
                self._on_hanging()
        since, before = self._counted
        finished = self._runner.done + self._runner.failed
        if now > since:
            self.rate, self._counted = (finished - before) / (now - since), (now, finished)


class NotesDuty(Duty[None]):
    """Writes progress and output of running jobs. A duty of its own: a silent server must not delay time limits."""

    name = "notes"
    interval = 1.0

    def __init__(self, runner: Runner, consumers: Sequence[Consumer]) -> None:
        self._runner = runner
        self._consumers = consumers

    async def run_once(self) -> None:
        """Write what is new."""
        for run in self._runner.runs.values():
            run.origin.notes.add(run)
        for consumer in self._consumers:
            await consumer.notes.flush()
