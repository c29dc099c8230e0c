"""Blocking waits for jobs: a warning where one stops an event loop, and a record of those in threads of a worker, so
that it notices when all its threads wait for what only it could run (worker/blocked_waits.py)."""

from __future__ import annotations

import logging
import sys
import threading
import time
import warnings
from asyncio import _get_running_loop
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from relevo.engine.context import running
from relevo.engine.inbox import Begin
from relevo.engine.job import Record
from relevo.engine.job_store import attach
from relevo.errors import BlockingCallWarning, ConfigurationError
from relevo.store.plan import Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.worker")

#: Jobs by queue and id.
Jobs: TypeAlias = Sequence[tuple[str, str]]
#: Places in the code that are warned of in the log.
MOST_PLACES = 100


class Wait:
    """A thread of a job that waits for other jobs."""

    __slots__ = ("ends_at", "id", "job", "members", "queue", "rest", "thread")

    def __init__(
        self,
        queue: str,
        id: str,
        timeout: float | None,
        *,
        members: Callable[[], Steps[Jobs]] | None = None,
        rest: Callable[[], Jobs] | None = None,
    ) -> None:
        self.queue = queue
        #: What stands for the wait, also where it is for several jobs.
        self.id = id
        self.ends_at = float("inf") if timeout is None else time.monotonic() + timeout
        #: Of a workflow: its members that have not ended. All of them must.
        self.members = members
        #: Of `as_completed`: the jobs that have not come yet. One of them must.
        self.rest = rest
        self.thread = threading.get_ident()
        #: The job that waits.
        self.job = running.get()


class Waits:
    """The waits of an app's jobs in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: thread -> what it waits for
        self.inside: dict[int, Wait] = {}
        #: places in the code that were warned of
        self.warned: set[tuple[str, int]] = set()

    def end(self, wait: Wait, error: ConfigurationError) -> None:
        """Let a thread go that waits; its call raises the error."""
        self._engine.client.stop_waiting(wait.id, wait.thread, error)


class _Noted:
    """The time that a thread spends waiting."""

    __slots__ = ("_wait", "_waits")

    def __init__(self, waits: Waits, wait: Wait) -> None:
        self._waits = waits
        self._wait = wait

    def __enter__(self) -> None:
        self._waits.inside[self._wait.thread] = self._wait

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits.inside.pop(self._wait.thread, None)


def noted(engine: Engine, wait: Callable[[], Wait]) -> AbstractContextManager[None]:
    """Note a wait inside a job. Outside of one nothing is done."""
    return nullcontext() if running.get() is None else _Noted(engine.part(Waits), wait())


def wait_for(
    engine: Engine,
    queue: str,
    id: str,
    timeout: float | None,
    *,
    twin: str,
    begin: Begin = attach,
    members: Callable[[], Steps[Jobs]] | None = None,
) -> Record:
    """Block until a job has ended. `twin`: what to call on an event loop instead."""
    warn_on_loop(engine, twin)
    with noted(engine, lambda: Wait(queue, id, timeout, members=members)):
        return engine.client.wait(engine.keys_of(queue), id, timeout, begin)


def warn_on_loop(engine: Engine, twin: str) -> None:
    """Warn of a blocking call on a running event loop, once for each place in the code."""
    if _get_running_loop() is None:
        return
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("relevo."):
        depth, frame = depth + 1, frame.f_back
    text = f"this call blocks the event loop until it has an answer, and nothing else runs there: use `{twin}`"
    waits, place = engine.part(Waits), (frame.f_code.co_filename, frame.f_lineno)
    if place not in waits.warned and len(waits.warned) < MOST_PLACES:
        waits.warned.add(place)
        if running.get() is not None:  # in a worker, where the log is read
            log.warning("%s, line %d: %s", *place, text)
    warnings.warn(text, BlockingCallWarning, stacklevel=depth + 1)
