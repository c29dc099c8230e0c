"""Runs coroutine functions on the event loop, as many at once as the worker's concurrency allows."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from relevo.engine import context
from relevo.worker import capture
from relevo.worker.executors.executor import OnEnd, OnStart
from relevo.worker.run import DeadlinePassed, Run
from relevo.worker.soft_limits import limited


class Loop:
    """One asyncio task for each run."""

    #: A coroutine may have to clean up.
    patience = 5.0

    def __init__(self, size: int, on_start: OnStart, on_end: OnEnd) -> None:
        self._room = size
        self._on_start = on_start
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Run] = deque()

    def submit(self, run: Run) -> None:
        """Run it as soon as there is room."""
        if self._room <= 0:
            self._waiting.append(run)
            return
        self._room -= 1
        self._on_start(run)
        run.future = self._loop.create_task(self._attempt(run))

    def interrupt(self, run: Run) -> None:
        """Cancel its asyncio task."""
        if run.future is not None:
            run.future.cancel()

    def ask_to_pause(self, run: Run) -> None:
        """Nothing to do: it reads its context."""

    def abandon(self, run: Run) -> bool:
        """It goes on without its worker."""
        if run.future is not None and run.future.done():
            self._room += 1  # cancelled before its first step, so that it could not do so itself
            self._start_waiting()
        return False

    def close(self) -> None:
        """Nothing to end."""

    async def _attempt(self, run: Run) -> None:
        result: Any = None
        error: BaseException | None = None
        if not run.settled:  # it may have been handed back before its first step
            run.entered = True
            context.running.set(run.context)
            capture.current.set(run.capture)
            if run.span is not None and (telemetry := run.task.engine.telemetry) is not None:
                telemetry.enter(run.span)  # never left: the context ends with the asyncio task
            try:
                if run.is_too_late:
                    raise DeadlinePassed
                coroutine = run.task.attempt(*run.args, **run.kwargs)
                soft = run.task.options.soft_timeout
                result = await (coroutine if soft is None else limited(coroutine, soft))
            except BaseException as raised:  # noqa: BLE001  # SystemExit and its like are failures of the task
                error = raised
        self._on_end(run, result, error)
        self._room += 1
        if self._waiting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._room > 0:
            following = self._waiting.popleft()
            if not following.settled:
                self._room -= 1
                self._on_start(following)
                following.future = self._loop.create_task(self._attempt(following))
