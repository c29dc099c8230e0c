"""Exit codes."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """0, 1 and 2 as monitors read them; the others as shells define them."""

    OK = 0
    #: Something needs attention, or the requested object does not exist.
    WARNING = 1
    #: The server cannot be reached or cannot be used; also a wrong command line, or output that cannot be written.
    CRITICAL = 2
    INTERRUPTED = 130
    #: The reader of our output has closed it, as `head` does.
    PIPE_CLOSED = 141
