"""Prints output: with rich on a terminal, as plain text elsewhere, as JSON if requested.

Names, errors and logs of jobs come from anywhere. Their control characters are shown, not interpreted, so that no job
can control an operator's terminal; and a pipe never gets colours.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from relevo.cli.columns import GAP, fitted
from relevo.text.durations import spoken
from relevo.text.legible import clean, short

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, OverflowMethod
    from rich.tree import Tree

STYLES = {"ok": "green", "unknown": "dim", "warning": "yellow", "critical": "bold red"}
#: Characters of an id of a job.
ID = 20
#: Symbols that relevo prints, and their replacements on terminals without Unicode.
_ASCII = str.maketrans(
    dict(zip("✓✗▶○·–…→█▒░▁▂▃▄▅▆▇", ["+", "x", ">", "o", ".", "-", "...", "->", "#", "!", ".", *"_.:-=+*"], strict=True))
)


#: Texts with their styles, forming a line.
Spans: TypeAlias = Sequence[tuple[str, str]]


class Branch(Struct, frozen=True):
    """A line of a tree, and its branches."""

    spans: Spans
    branches: Sequence[Branch] = ()


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._console = _console()
        self._knows_signs = _knows_signs()
        self._put: Callable[[Any], None] = self._print

    @property
    def is_live(self) -> bool:
        """Whether printed output can be replaced by newer output."""
        return self._console is not None and not self._console.is_dumb_terminal

    @property
    def height(self) -> int:
        """Lines of the terminal."""
        return 0 if self._console is None else self._console.height

    @property
    def width(self) -> int:
        """Columns of the terminal; 0: not a terminal, lines may have any length."""
        return 0 if self._console is None else self._console.width

    def line(self, text: str = "", style: str = "") -> None:
        """One or more lines."""
        text = self._legible(text)
        if self._console is None:
            print(text)
        else:
            from rich.text import Text  # never markup: a task may be called [red]

            self._put(Text(text, style=style))

    def forest(self, trees: Iterable[Branch]) -> None:
        """Trees, one below the other."""
        for tree in trees:
            if self._console is None:
                for line in self._drawn(tree):
                    print(line)
            else:
                self._put(self._grown(tree))

    @contextmanager
    def replacing(self, *, whole: bool = False) -> Iterator[Callable[[Callable[[], None]], None]]:
        """For a terminal: draw functions passed to the result draw on this screen, each in place of the one before.

        `whole`: on the whole terminal, which is restored afterwards.
        """
        from rich.console import Group
        from rich.live import Live

        drawn: list[Any] = []
        with Live(console=self._console, auto_refresh=False, screen=whole) as live:

            def replace(draw: Callable[[], None]) -> None:
                drawn.clear()
                self._put = drawn.append
                try:
                    draw()
                finally:
                    self._put = self._print
                live.update(Group(*drawn), refresh=True)

            yield replace

    def _print(self, shown: Any) -> None:
        assert self._console is not None
        from rich.text import Text

        self._console.print(shown, soft_wrap=isinstance(shown, Text))

    def _legible(self, text: str) -> str:
        text = clean(text)
        return text if self._knows_signs else text.translate(_ASCII)

    def _drawn(self, tree: Branch, first: str = "", other: str = "") -> Iterator[str]:
        yield (first + self._legible("".join(text for text, _ in tree.spans))).rstrip()
        middle, stem, last = ("├── ", "│   ", "└── ") if self._knows_signs else ("+-- ", "|   ", "`-- ")
        for branch in tree.branches:
            is_last = branch is tree.branches[-1]
            yield from self._drawn(branch, other + (last if is_last else middle), other + ("    " if is_last else stem))

    def _grown(self, tree: Branch, parent: Tree | None = None) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        label = Text.assemble(*((self._legible(text), style) for text, style in tree.spans))
        grown = Tree(label) if parent is None else parent.add(label)
        for branch in tree.branches:
            self._grown(branch, grown)
        return grown

    def table(
        self, head: Sequence[str], rows: Iterable[Sequence[object]], *, gives_way: Sequence[tuple[str, int]] = ()
    ) -> None:
        """Columns under their names; numbers are right-aligned.

        `gives_way`: on a narrow terminal these columns are shortened or left out, see `fitted`. What still does not fit
        is wrapped.
        """
        rows = list(rows)
        cells = [[self._legible(_cell(value)) for value in row] for row in rows]
        right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
        if self._console is None:
            for line in _plain(head, cells, right):
                print(line)
            return
        from rich.cells import cell_len
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
        natural = {
            name: max(cell_len(text) for text in (name, *(row[i] for row in cells))) for i, name in enumerate(head)
        }
        widths = fitted(natural, self.width, gives_way)
        is_room = sum(widths.values()) + GAP * (len(widths) - 1) <= self.width
        cut: OverflowMethod = "ellipsis" if self._knows_signs else "crop"
        shown = [i for i, name in enumerate(head) if name in widths]
        for i in shown:
            justify: JustifyMethod = "right" if right[i] else "left"
            if is_room:
                table.add_column(head[i], justify=justify, no_wrap=True, overflow=cut, width=widths[head[i]])
            else:
                # The first column names its row: an id in two pieces cannot be copied.
                is_id = i == 0 and all(len(row[0]) <= ID for row in cells)
                table.add_column(head[i], justify=justify, overflow="fold", no_wrap=is_id)
        for row in cells:
            table.add_row(*(Text(row[i]) for i in shown))
        self._put(table)

    def columns(self, columns: Mapping[str, Sequence[object]], *, spare: Sequence[str] = ()) -> None:
        """A table of columns; on a narrow terminal without the `spare` ones, the first of them first.

        Empty columns are left out before them.
        """
        blank = [name for name, cells in columns.items() if not any(map(_cell, cells))]
        gives_way = [(name, 0) for name in (*blank, *spare)]
        self.table([*columns], zip(*columns.values(), strict=True), gives_way=gives_way)

    def fields(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Names and values, one pair a line; pairs without a value are left out."""
        shown = [(name, value) for name, value in pairs if value]
        width = max((len(name) for name, _ in shown), default=0)
        for name, value in shown:
            self.line(f"{name.ljust(width)}  {value}")

    def json(self, value: Any) -> None:
        """Any value, as indented JSON."""
        print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())

    def page(self, items: Sequence[Any], next: str | None = None) -> None:
        """A list as JSON, as over HTTP: `next` is where the next page begins, None after the last one."""
        self.json({"items": items, "next": next})

    def clear(self) -> None:
        """Clear the screen."""
        print("\x1b[H\x1b[2J", end="", flush=True)


def _console() -> Console | None:
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:  # the extra `cli` is for looks only
        return None
    return Console(highlight=False, markup=False, emoji=False)


def _knows_signs() -> bool:
    try:
        "".join(map(chr, _ASCII)).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    return short(str(value))


def _plain(head: Sequence[str], cells: list[list[str]], right: list[bool]) -> Iterable[str]:
    lines = [[name.upper() for name in head], *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        padded = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, right, strict=True)
        )
        yield "  ".join(padded).rstrip()


def tell_more(next: str | None) -> None:
    """Say where the next page begins; not on standard output, which has one table and nothing else."""
    if next:
        print(f"there may be more: --after {clean(next)}", file=sys.stderr)


def moment(ms: int | None) -> str:
    """A time in the local zone, and how far away it is."""
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
