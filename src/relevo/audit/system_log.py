"""The audit trail of commands in the log of this machine (journald, syslog), which Redis cannot erase."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

#: Where journald and syslog listen; without it nothing is copied.
ADDRESS = "/dev/log"
#: Of RFC 5424: security messages that not every user may read.
_AUTHPRIV = 10 << 3
_ERROR, _INFO = 3, 6


class _SystemLog(logging.Handler):
    """Sends lines to the log of the machine. A line that this does not take at once is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        level = _ERROR if record.levelno >= logging.ERROR else _INFO
        line = f"<{_AUTHPRIV | level}>relevo[{os.getpid()}]: {record.getMessage()}"
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.setblocking(False)
            there.connect(ADDRESS)
            there.send(line.encode(errors="backslashreplace"))
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not logging.getLogger().handlers:
            last.handle(record)  # as it does where no handler is: a deed that could not be stored is to be seen


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Copy the audit trail of this process to the log of the machine, for as long as the block lasts."""
    log = logging.getLogger("relevo.audit")  # by its name: what it is made for is imported by commands that need it
    handler = _SystemLog()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
