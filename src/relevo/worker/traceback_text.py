"""Tracebacks as text, with a cache: the line of a frame is formatted once for each place in the code.

`traceback` parses the source of each frame again to mark the part that failed, which takes a tenth of a millisecond and
was half of a worker's cost of a failed job.
"""

from __future__ import annotations

import traceback
from types import CodeType, TracebackType

#: Size of the cache; it is cleared when full.
_PLACES = 4096
#: A deeper stack usually is a recursion, which `traceback` shortens.
_DEEPEST = 60
#: For these Python prints more than the message.
_WITH_MORE = (SyntaxError, NameError, AttributeError, ImportError, BaseExceptionGroup)
_HEAD = "Traceback (most recent call last):\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

_frames: dict[tuple[CodeType, int], str] = {}


def text_of(error: BaseException, frames: TracebackType | None) -> str:
    """The text of `traceback.format_exception`, from these frames on."""
    parts: list[str] = []
    one: BaseException | None = error
    while one is not None:
        of = frames if one is error else one.__traceback__
        stack = _stack(of)
        if stack is None or isinstance(one, BaseExceptionGroup) or len(parts) > 20:
            return "".join(traceback.format_exception(type(error), error, frames))
        parts.append((_HEAD + stack if of is not None else "") + _last_line(one))
        if one.__cause__ is not None:
            parts.append(_CAUSE)
            one = one.__cause__
        elif one.__context__ is not None and not one.__suppress_context__:
            parts.append(_CONTEXT)
            one = one.__context__
        else:
            one = None
    return "".join(reversed(parts))


def _last_line(error: BaseException) -> str:
    """The line with class and message."""
    kind = type(error)
    if issubclass(kind, _WITH_MORE) or hasattr(error, "__notes__") or kind.__module__ == "__main__":
        return "".join(traceback.format_exception_only(error))
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - the task's code
        return "".join(traceback.format_exception_only(error))
    return f"{name}: {message}\n" if message else f"{name}\n"


def _stack(frames: TracebackType | None) -> str | None:
    """The lines of all frames; None: too many."""
    lines: list[str] = []
    while frames is not None:
        place = (frames.tb_frame.f_code, frames.tb_lasti)
        line = _frames.get(place)
        if line is None:
            if len(_frames) >= _PLACES:
                _frames.clear()
            line = _frames[place] = traceback.format_tb(frames, 1)[0]
        lines.append(line)
        frames = frames.tb_next
        if len(lines) > _DEEPEST:
            return None
    return "".join(lines)
