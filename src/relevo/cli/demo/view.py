"""The display of `relevo demo`: live on a terminal, line by line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from relevo.queues.store import QueueStats

STATES = ("scheduled", "ready", "running", "done", "dead")


class View(AbstractContextManager["View"]):
    """Steps with their findings, and the state of the queue."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.server = ""
        self._steps: list[tuple[str, str, str]] = []  # (mark, title, finding)
        self._stats: QueueStats | None = None
        self._live: Any = None

    def __enter__(self) -> View:
        if sys.stdout.isatty():
            try:
                from rich.live import Live
            except ImportError:
                return self
            self._live = Live(get_renderable=self._render, refresh_per_second=10, transient=False)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def begin(self, title: str) -> None:
        """Start a step."""
        self._steps.append(("…", title, ""))
        if self._live is None:
            print(f"  … {title}", flush=True)

    def found(self, finding: str) -> None:
        """Show a finding of the current step."""
        mark, title, _ = self._steps[-1]
        self._steps[-1] = (mark, title, finding)

    def end(self, finding: str, *, well: bool = True) -> None:
        """End the current step."""
        mark = "✓" if well else "✗"
        self._steps[-1] = (mark, self._steps[-1][1], finding)
        if self._live is None:
            print(f"  {mark} {finding}", flush=True)

    def stats(self, stats: QueueStats) -> None:
        """Set the queue's state to show."""
        self._stats = stats

    @property
    def failed(self) -> int:
        """Steps that failed."""
        return sum(mark == "✗" for mark, _, _ in self._steps)

    def watch(self, stats: Callable[[], QueueStats], until: Callable[[], bool], timeout: float) -> bool:
        """Show the queue until a condition is true; False if it was not in time."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.stats(stats())
            if until():
                return True
            time.sleep(0.1)
        return False

    def _render(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        head = Text.assemble(
            ("relevo demo", "bold"), f"   {self.server}   ", (f"{time.monotonic() - self.began:4.1f} s", "dim")
        )
        steps = Table.grid(padding=(0, 1))
        steps.add_column(width=1)
        steps.add_column(min_width=16, no_wrap=True)
        steps.add_column(ratio=1)
        colours = {"✓": "green", "✗": "red", "…": "yellow"}
        for mark, title, finding in self._steps:
            steps.add_row(Text(mark, style=colours[mark]), Text(title, style="bold"), Text(finding))
        return Group(head, Text(), steps, Text(), self._counts())

    def _counts(self) -> Any:
        from rich.text import Text

        colours = {"scheduled": "cyan", "ready": "blue", "running": "yellow", "done": "green", "dead": "red"}
        line = Text("queue  ", style="dim")
        if self._stats is not None:
            for state in STATES:
                number = self._stats.totals.get("done", 0) if state == "done" else getattr(self._stats, state)
                line.append(f"{state} ", style="dim").append(f"{number:,}   ", style=colours[state])
        return line
