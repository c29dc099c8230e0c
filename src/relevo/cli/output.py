"""Standard streams that fail a command: closed before it began, or on a disk that is full."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

#: What a stream that cannot be written says: no space, or none left to us; too large; the disk or the terminal is gone;
#: it was opened for reading.
_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}


def open_closed() -> None:
    """Whoever closes a stream (`>&-`) wants to hear nothing: it is like /dev/null.

    Its number is taken by that, too. Else the next connection would have it, and what a child prints would go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115 it lives as long as this process
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def is_of_output(error: OSError) -> bool:
    """Whether a stream could not be written; an error about a file names it."""
    return error.filename is None and error.errno in _UNWRITABLE


def give_up() -> None:
    """Python flushes once more when it ends; let it do so into nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):  # one that is no file, as in a test
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
