"""Which dead letters died alike: of the same error, on the same way through the code.

Who has ten thousand dead letters has three problems, not ten thousand. The fingerprint of a death is its error's class
and the shape of the stack: files and functions, without line numbers, which change with every edit, and without
the folders above, which differ between hosts. Where there is no error, the reason tells, without the numbers in it.
"""

from __future__ import annotations

import hashlib
import re

from relevo.model.job import Attempt

#: Hex digits: 64 bits, so that among millions of kinds no two meet.
LENGTH = 16
#: Frames that count, the innermost: a deep recursion that is cut elsewhere each time is still the same.
FRAMES = 30
#: Characters of an error in a listing.
LINE = 200
#: Reasons after which the same job fails again until it is changed, or the code is: it raised one of `give_up_on` (or
#: none of `retry_on`), its arguments do not fit, it may not run. All others may go well once the cause is mended.
PERMANENT = frozenset({"permanent", "bad_arguments", "forbidden_target", "bad_signature", "bad_reply_to", "unreadable"})

_FRAME = re.compile(r'^ *File "([^"]*)", line \d+, in (.+)$', re.MULTILINE)
_WORD = re.compile(r"\w+")


def fingerprint(reason: str, last: Attempt) -> str:
    """The fingerprint of a death with this reason, after this last attempt."""
    if last.error:
        parts = [last.error, *_shape(last.traceback)]
        if len(parts) == 1:  # raised by nobody's code: the reason says by whom it was refused
            parts.append(reason)
    else:
        parts = ["", _WORD.sub(_without_number, reason)]
    return hashlib.blake2b("\n".join(parts).encode(errors="backslashreplace"), digest_size=LENGTH // 2).hexdigest()


def _shape(traceback: str) -> list[str]:
    """The frames as `folder/file function`; of those that repeat, as in a recursion, one."""
    frames: list[str] = []
    for path, function in _FRAME.findall(traceback):
        frame = f"{'/'.join(path.replace(chr(92), '/').split('/')[-2:])} {function}"
        if frame not in frames[-4:]:  # functions that call each other in turn, up to four
            frames.append(frame)
    return frames[-FRAMES:]


def _without_number(word: re.Match[str]) -> str:
    return "0" if any(letter.isdigit() for letter in word[0]) else word[0]


def looks_like_fingerprint(text: object) -> bool:
    """Whether this is text that has the form of a fingerprint."""
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{LENGTH}}}", text) is not None


def error_line(last: Attempt) -> str:
    """The error of an attempt in one line, as listings show it."""
    return last.words[:LINE]


def is_permanent(reason: str) -> bool:
    """Whether the same job would fail again however often it is retried, as far as its reason tells."""
    return reason in PERMANENT
