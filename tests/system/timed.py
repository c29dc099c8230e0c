"""Apps whose clock a test can move, and a task that notes its ticks."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from relevo import Relevo, current_job
from tests.clock import let_time_pass, step
from tests.conftest import AppFactory
from tests.servers import Server

MINUTE, HOUR = 60_000, 3_600_000


class Times:
    """Apps of one name whose clock a test can move, both ways.

    `at_full_hour`: it starts just after a full hour, so that no tick comes by itself while a test runs.
    """

    def __init__(self, server: Server, make: AppFactory, *, at_full_hour: bool = False) -> None:
        self._server = server
        self._make = make
        self._name = f"t{uuid4().hex[:12]}"
        self._key = f"{self._name}-clock"
        self.app = self.another()
        if at_full_hour:
            self.move_past(HOUR)

    def another(self, **settings: Any) -> Relevo:
        """Another app object of this name: another version of the program, or a program that only reads."""
        return self._make(self._name, _clock_key=self._key, **settings)

    def now_ms(self) -> int:
        return self.app.engine.run(self.app.engine.now_ms())

    def move(self, ms: int) -> None:
        """Let time pass; less than none is possible."""
        let_time_pass(self._server, self._key, ms)

    def step(self, ms: int) -> None:
        """Set the clock forward or back, which is not the time that passes."""
        step(self._server, self._key, ms)

    def move_to(self, ms: int) -> None:
        """Set the clock."""
        self.move(ms - self.now_ms())

    def move_past(self, period_ms: int, *, by: int = 10) -> int:
        """Just past the next multiple of a period; gives that multiple."""
        tick = (self.now_ms() // period_ms + 1) * period_ms
        self.move_to(tick + by)
        return tick


def noting(app: Relevo, **options: Any) -> list[int]:
    """A task `note` that notes the tick of each of its jobs."""
    ticks: list[int] = []

    @app.task(name="note", **options)
    async def note() -> None:
        tick_ms = current_job().tick_ms
        assert tick_ms is not None
        ticks.append(tick_ms)

    return ticks
