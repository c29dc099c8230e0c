"""Passes ended runs from threads to the event loop, with one wake-up per batch."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from relevo.worker.executors.executor import OnEnd
from relevo.worker.run import Run

#: The end of a run: the run, and its result or error.
Ended = tuple[Run, Any, BaseException | None]


class Handover:
    """Filled by threads, emptied on the loop that created it."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended: deque[Ended] = deque()
        self._is_scheduled = False

    def put(self, ended: Ended) -> bool:
        """Pass an ended run to the loop; False if the loop is closed."""
        self._ended.append(ended)
        if not self._is_scheduled:  # else the scheduled call collects this one, too
            self._is_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return False
        return True

    def _collect(self) -> None:
        self._is_scheduled = False
        while self._ended:
            self._on_end(*self._ended.popleft())
