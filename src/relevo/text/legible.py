"""Makes untrusted text, such as error messages, safe to print on a terminal or in a log."""

from __future__ import annotations

import re

#: Characters that move the cursor, change colours, or turn the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
#: Longest text in a cell of a table; the command for a single job shows the whole text.
CELL = 120


def clean(text: str) -> str:
    """The text with control characters, except tabs and line ends, escaped."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text.replace("\r\n", "\n"))


def short(text: str, most: int = CELL) -> str:
    """The text in one line, cut to `most` characters.

    >>> short("two\\nlines, \\x1b[31mred")
    'two lines, \\\\x1b[31mred'
    """
    text = clean(" ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def words_of(error: BaseException) -> str:
    """The text of an exception, also if its `__str__` raises."""
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001
        return f"(its text could not be had: {type(second).__name__})"
