"""How answers are printed: with rich on a terminal, as plain text elsewhere, as JSON when asked.

Names, errors and logs of jobs come from anywhere. Their control characters are shown, not obeyed, so that no job can
write to an operator's terminal; and a pipe never gets colours.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.model.durations import spoken

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"ok": "green", "unknown": "dim", "warning": "yellow", "critical": "bold red"}
#: Longest text in a cell of a table; the whole text is in the command that shows one job.
CELL = 120
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._console = _console()

    def line(self, text: str = "", style: str = "") -> None:
        """One or more lines."""
        text = clean(text)
        if self._console is None:
            print(text)
        else:
            from rich.text import Text  # never markup: a task may be called [red]

            self._console.print(Text(text, style=style), soft_wrap=True)

    def table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Columns under their names; numbers to the right."""
        rows = list(rows)
        cells = [[_cell(value) for value in row] for row in rows]
        right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
        if self._console is None:
            for line in _plain(head, cells, right):
                print(line)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for name, is_right in zip(head, right, strict=True):
            table.add_column(name, justify="right" if is_right else "left", overflow="fold")
        for row in cells:
            table.add_row(*map(Text, row))
        self._console.print(table)

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one pair a line; pairs without a value are left out."""
        shown = [(name, value) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(f"{name.ljust(width)}  {value}")

    def json(self, value: Any) -> None:
        """Any value, as JSON that people can read too."""
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

    def clear(self) -> None:
        """Start at the top again."""
        print("\x1b[H\x1b[2J", end="", flush=True)


def _console() -> Console | None:
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:  # the extra `cli` is for looks only
        return None
    return Console(highlight=False, markup=False, emoji=False)


def clean(text: str) -> str:
    """The text with control characters, except tabs and ends of lines, written out."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    text = clean(" ".join(str(value).split()))
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def _plain(head: Sequence[str], cells: list[list[str]], right: list[bool]) -> Iterable[str]:
    lines = [[name.upper() for name in head], *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        padded = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        )
        yield "  ".join(padded).rstrip()


def moment(ms: int | None) -> str:
    """A time in the zone of whoever reads it, and how far away it is."""
    if not ms:
        return ""
    shown = datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")
    return f"{shown} ({away(ms)})"


def away(ms: int | None) -> str:
    """How long ago, or in how long."""
    if not ms:
        return "-"
    seconds = round(time.time() - ms / 1000)
    return f"{spoken(seconds)} ago" if seconds >= 0 else f"in {spoken(-seconds)}"


def mebibytes(count: int) -> str:
    """A size in memory."""
    return f"{count / 2**20:,.1f} MiB"


def plural(count: int, word: str) -> str:
    """A number of things: `1 job`, `2 jobs`."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
