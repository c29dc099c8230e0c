"""SIGTERM, and a closed terminal, interrupt a command as Ctrl-C does, so that it can record how far it came."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """While this is entered. A signal that has another handler, or is ignored as by `nohup`, stays as it is."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    for one in taken:
        signal.signal(one, _interrupt)
    try:
        yield
    finally:
        for one in taken:
            signal.signal(one, signal.SIG_DFL)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
