"""The audit trail of commands in the log of this machine (journald, syslog), which Redis cannot erase."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator

#: The socket of journald and syslog; without it nothing is copied.
ADDRESS = "/dev/log"
#: Facility of RFC 5424: security messages, not readable by every user.
_AUTHPRIV = 10 << 3
_ERROR, _INFO = 3, 6


class _SystemLog(logging.Handler):
    """Sends lines to the log of the machine without waiting; a line that it does not accept at once is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        level = _ERROR if record.levelno >= logging.ERROR else _INFO
        line = f"<{_AUTHPRIV | level}>relevo[{os.getpid()}]: {record.getMessage()}"
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
            there.setblocking(False)
            there.connect(ADDRESS)
            there.send(line.encode(errors="backslashreplace"))
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not logging.getLogger().handlers:
            last.handle(record)  # as without handlers: an entry that could not be stored must be visible


@contextlib.contextmanager
def copied() -> Iterator[None]:
    """Copy the audit trail of this process to the log of the machine, for as long as the block lasts."""
    log = logging.getLogger("relevo.audit")  # by name: its module is imported only by commands that need it
    handler = _SystemLog()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
