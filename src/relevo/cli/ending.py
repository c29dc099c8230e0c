"""SIGTERM, and a closed terminal, interrupt a command as Ctrl-C does, so that it can record how far it came."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Active while entered. A signal with another handler, or one ignored by `nohup`, is left alone."""
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
