"""Standard streams that a command cannot write: closed before it started, or on a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

#: Errors of a stream that cannot be written: disk or quota full; file too large; the disk or the terminal is gone;
#: opened for reading only.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def open_closed() -> None:
    """Open closed standard streams as /dev/null: closing one (`>&-`) means that its output is not wanted.

    Otherwise the next connection would get its number, and a child's output would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 it stays open as long as this process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def is_of_output(error: OSError) -> bool:
    """Whether a standard stream could not be written; an error about a file has a file name."""
    return error.filename is None and error.errno in _UNWRITABLE


def give_up() -> None:
    """Redirect unwritable streams to /dev/null: Python flushes them once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):  # a stream without a file, as in a test
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
