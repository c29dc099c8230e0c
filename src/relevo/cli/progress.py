"""A line on standard error with the progress of a long command."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

#: Seconds between two progress lines, on a terminal and in a file.
_EVERY, _EVERY_IN_FILES = 0.2, 10.0


class Progress:
    """A progress line on standard error: replaced on a terminal, repeated now and then elsewhere."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._every = _EVERY if self._is_live else _EVERY_IN_FILES
        self._next = time.monotonic() + self._every
        self._was_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._was_shown and self._is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """Show the text, unless one was shown just now."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        self._was_shown = True
        print(
            f"\r\x1b[K{text}" if self._is_live else text, end="" if self._is_live else "\n", file=sys.stderr, flush=True
        )
