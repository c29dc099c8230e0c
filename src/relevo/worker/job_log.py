"""Lines in the worker's log about jobs that start and go well, for a person who reads along; off unless asked for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Literal, TypeAlias

from relevo.engine.context import running
from relevo.worker.run import Run

log = logging.getLogger("relevo.worker")

#: Which jobs are logged: none, as many as a person can follow, or all.
LogJobs: TypeAlias = Literal["none", "some", "all"]

#: Lines per second of those that a person can follow; more are counted.
LINES = 100
WINDOW = 1.0


class JobLog:
    """The lines of one worker."""

    def __init__(self, kind: LogJobs) -> None:
        self._most = LINES if kind == "some" else None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._lines = 0
        self._left_out: Counter[str] = Counter()
        self._alarm: asyncio.TimerHandle | None = None

    def started(self, run: Run) -> None:
        """An attempt starts. Also called from the threads of the executors."""
        attempt = run.context.attempt
        if self._has_room("started"):
            again = f" (attempt {attempt})" if attempt > 1 else ""
            log.info("%s %s started%s", run.task.target, run.held.id, again)

    def done(self, run: Run) -> None:
        """A job went well. Called on the loop."""
        if self._most is not None and self._alarm is None:
            self._alarm = self._loop.call_later(WINDOW, self.flush)
        if self._has_room("done"):
            log.info("%s %s done in %s", run.task.target, run.held.id, _short(time.monotonic() - run.started))

    def _has_room(self, what: str) -> bool:
        if self._most is None:
            return True
        with self._lock:
            self._lines += 1
            if self._lines <= self._most:
                return True
            self._left_out[what] += 1
            return False

    def flush(self) -> None:
        """Say how many were left out."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        with self._lock:
            left, self._left_out, self._lines = self._left_out, Counter(), 0
        if left:
            log.info("more jobs than can be listed: %d started, %d done", left["started"], left["done"])


class JobFormatter(logging.Formatter):
    """Names the job in lines that its code logs."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """The line, with the job before the message."""
        job = running.get()
        if job is None or record.name.startswith("relevo."):
            return super().formatMessage(record)
        before, record.message = record.message, f"[{job.target} {job.id}] {record.message}"
        try:
            return super().formatMessage(record)
        finally:
            record.message = before


def _short(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.1f} s"
