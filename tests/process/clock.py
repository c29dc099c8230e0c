"""A clock that a test moves, for its own apps and its worker processes: leases and deadlines end when it says so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:  # worker processes import this module, too, and need none of it
    import pytest

    from tests.servers import Server

#: Names the key that shifts the clock. Worker processes inherit it; their app takes `_clock_key=clock_key()`.
VARIABLE = "TEST_CLOCK_KEY"
#: Seconds: longer than a lease of these tests, and than anything that a dead process may have reserved.
AFTER_LEASES = 120
HOUR = 3600


def clock_key() -> str:
    """For apps of this process; '' where time is not moved."""
    return os.environ.get(VARIABLE, "")


class Clock:
    """The time of one test. Move it when only dead processes hold something: it ends leases of live ones, too."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self.key = f"relevo-test-clock-{uuid4().hex[:12]}"
        monkeypatch.setenv(VARIABLE, self.key)

    def move(self, seconds: float) -> None:
        """Let so much time pass."""
        ahead = int(self._server.command("GET", self.key) or 0) + round(seconds * 1000)
        self._server.command("SET", self.key, ahead, "EX", 900)
