"""What a command's exit code tells a monitor."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """0, 1 and 2 as monitors read them; the others as shells do."""

    OK = 0
    #: Something needs attention, or what was asked for is not there.
    WARNING = 1
    #: The server cannot be reached or must not be used so; also a wrong command line, or output that cannot be written.
    CRITICAL = 2
    INTERRUPTED = 130
    #: Whoever read our output has closed it, as `head` does.
    PIPE_CLOSED = 141
