"""The server's clock between two looks at it, for who must know it before a call: deadlines that are signed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from relevo.store.plan import Call

#: Seconds for which one look is good. A step of the server's clock makes deadlines wrong for so long.
LOOK_EVERY = 10.0


class ServerTime:
    """Of one app in one process."""

    def __init__(self) -> None:
        #: the server's time minus this machine's monotonic time, in ms, and until when that is believed
        self._known = (0.0, 0.0)

    def now_ms(self, ask: Callable[[], Generator[Call[Any], Any, int]]) -> Generator[Call[Any], Any, int]:
        """About what the server's clock shows: never less, more by no more than one answer of the server took."""
        asked = time.monotonic()
        ahead_ms, until = self._known
        if asked >= until:
            ahead_ms = (yield from ask()) - asked * 1000
            self._known = (ahead_ms, asked + LOOK_EVERY)
        return int(time.monotonic() * 1000 + ahead_ms)
