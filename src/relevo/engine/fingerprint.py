"""Fingerprints: dead letters with the same error on the same code path form one error group.

Ten thousand dead letters usually have three causes. The fingerprint is a hash of the error's class and the shape of
the stack: files and functions, without line numbers, which change with every edit, and without parent folders, which
differ between hosts. Without an error it is a hash of the reason, with its numbers removed.
"""

from __future__ import annotations

import hashlib
import re

from relevo.engine.job import Attempt

#: Hex digits: 64 bits, so that millions of error groups do not collide.
LENGTH = 16
#: Only the innermost frames count: a deep recursion that is cut elsewhere each time gives the same fingerprint.
FRAMES = 30
#: Characters of an error in a listing.
LINE = 200
#: Reasons after which the job fails again until the job or the code is changed: it raised one of `give_up_on` (or none
#: of `retry_on`), its arguments do not fit, it may not run. All others may succeed once the cause is fixed.
PERMANENT = frozenset({"permanent", "bad_arguments", "forbidden_target", "bad_signature", "bad_reply_to", "unreadable"})

_FRAME = re.compile(r'^ *File "([^"]*)", line \d+, in (.+)$', re.MULTILINE)
_WORD = re.compile(r"\w+")


def fingerprint(reason: str, last: Attempt) -> str:
    """The fingerprint of a dead letter with this reason and last attempt."""
    if last.error:
        parts = [last.error, *_shape(last.traceback)]
        if len(parts) == 1:  # no traceback: not raised by a task, so the reason tells what refused it
            parts.append(reason)
    else:
        parts = ["", _WORD.sub(_without_number, reason)]
    return hashlib.blake2b("\n".join(parts).encode(errors="backslashreplace"), digest_size=LENGTH // 2).hexdigest()


def _shape(traceback: str) -> list[str]:
    """The frames as `folder/file function`, without repetitions of a recursion."""
    frames: list[str] = []
    for path, function in _FRAME.findall(traceback):
        frame = f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])} {function}"
        if frame not in frames[-4:]:  # functions that call each other in turn, up to four
            frames.append(frame)
    return frames[-FRAMES:]


def _without_number(word: re.Match[str]) -> str:
    return "0" if any(letter.isdigit() for letter in word[0]) else word[0]


def looks_like_fingerprint(text: object) -> bool:
    """Whether this is text in the form of a fingerprint."""
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{LENGTH}}}", text) is not None


def error_line(last: Attempt) -> str:
    """The error of an attempt in one line, as listings show it."""
    return last.words[:LINE]


def is_permanent(reason: str) -> bool:
    """Whether the reason says that every retry of the job would fail."""
    return reason in PERMANENT
