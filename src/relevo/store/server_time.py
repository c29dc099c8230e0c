"""The server's clock, read before a call: a signed deadline must be computed by the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

from relevo.store.plan import Call

#: Seconds between two reads. After a step of the server's clock, deadlines are wrong for so long.
LOOK_EVERY = 10.0


class ServerTime:
    """Of one app in one process."""

    def __init__(self) -> None:
        #: the server's time minus this machine's monotonic time, in ms, and until when that value is used
        self._known = (0.0, 0.0)

    def now_ms(self, ask: Callable[[], Generator[Call[Any], Any, int]]) -> Generator[Call[Any], Any, int]:
        """The server's time, late by the duration of one answer at the most."""
        asked = time.monotonic()
        ahead_ms, until = self._known
        if asked >= until:
            ahead_ms = (yield from ask()) - asked * 1000
            self._known = (ahead_ms, asked + LOOK_EVERY)
        return int(time.monotonic() * 1000 + ahead_ms)


def server_time() -> Call[int]:
    """The server's clock, in milliseconds."""
    return Call([b"TIME"], lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)
