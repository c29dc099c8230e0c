"""How threads tell the event loop what has ended: one wake-up for a whole batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from relevo.worker.run import Run

#: What an executor gives back: the run, and its result or error.
Ended = tuple[Run, Any, BaseException | None]
OnEnd = Callable[[Run, Any, BaseException | None], None]


class Outbox:
    """Filled by threads, emptied on the loop that made it."""

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._ended: deque[Ended] = deque()
        self._told = False

    def put(self, ended: Ended) -> bool:
        """Tell the loop; False: it is closed, the worker has gone."""
        self._ended.append(ended)
        if not self._told:  # else the loop is on its way, and takes this along
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except RuntimeError:
                return False
        return True

    def _collect(self) -> None:
        self._told = False
        while self._ended:
            self._on_end(*self._ended.popleft())
