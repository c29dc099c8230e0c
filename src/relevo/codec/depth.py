"""Measures the nesting depth of JSON without recursion.

A parser recurses once per level, so hostile bytes can exhaust the reader's stack. This check runs
first and is fast: it uses whole-buffer operations and never handles single bytes in Python.
"""

from __future__ import annotations

from itertools import accumulate

MAX_DEPTH = 200
"""Levels of lists and objects in one value. Far beyond real data, far below the interpreter's stack."""

SHALLOW_SIZE = 2 * MAX_DEPTH
"""Bytes: each level needs an opening and a closing one, so shorter texts cannot be too deep."""

_NO_BRACKET_OR_QUOTE = bytes(set(range(256)) - set(b'[]{}"'))
_PASSES = 8
_STEP = {ord("["): 1, ord("]"): -1}
_CURLY_TO_SQUARE = bytes.maketrans(b"{}", b"[]")


def is_too_deep(raw: bytes, levels: int) -> bool:
    """Whether the JSON in `raw` has more than `levels` levels; malformed JSON is judged by its open brackets."""
    if raw.count(b"[") + raw.count(b"{") <= levels:
        return False
    # Escaped backslashes go before escaped quotes: in `\\"` the quote ends the text.
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = unescaped.translate(_CURLY_TO_SQUARE, _NO_BRACKET_OR_QUOTE)
    # Most texts hold no bracket: removing adjacent quotes does not change what is inside a text.
    brackets = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    # Real data is flat: each pass removes the innermost level everywhere, so a few passes remove nearly all.
    peeled = 0
    while peeled < _PASSES and (outer := brackets.replace(b"[]", b"")) != brackets:
        brackets = outer
        peeled += 1
    steps = map(_STEP.__getitem__, brackets)
    return peeled + max(accumulate(steps), default=0) > levels
