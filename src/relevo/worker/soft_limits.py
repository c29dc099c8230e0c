"""Raises SoftTimeout inside a task: in a coroutine at its next `await`, in a function between two instructions.

A task without a soft limit pays nothing: these are called for the others alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any

from relevo.engine.soft_timeout import SoftTimeout


async def limited(coroutine: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Await a coroutine, which gets SoftTimeout after so many seconds."""
    task = asyncio.current_task()
    assert task is not None
    guarded = _Guarded(coroutine, task)
    timer = asyncio.get_running_loop().call_later(seconds, guarded.expire)
    try:
        return await guarded
    finally:
        timer.cancel()


class _Guarded:
    """Steps through a coroutine, and turns the one cancellation that it asked for into SoftTimeout."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], task: asyncio.Task[Any]) -> None:
        self._coroutine = coroutine
        self._task = task
        self._is_due = False

    def expire(self) -> None:
        """Cancel what the coroutine waits for."""
        self._is_due = True
        self._task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        advance: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                waited_for = advance()
            except StopIteration as end:
                return end.value
            try:
                advance = partial(steps.send, (yield waited_for))
            except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
                advance = partial(steps.throw, self._turned(error))

    def _turned(self, error: BaseException) -> BaseException:
        if not (self._is_due and isinstance(error, asyncio.CancelledError)):
            return error
        self._is_due = False
        # The job may be cancelled or out of time at the same moment: that comes first.
        return error if self._task.uncancel() else SoftTimeout()


def call(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seconds: float | None,
    run: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run,
) -> Any:
    """Call a function, plain or a coroutine function, in this thread; None: without a soft limit."""
    if seconds is None:
        result = func(*args, **kwargs)
    else:
        is_main = threading.current_thread() is threading.main_thread()
        alarm: AbstractContextManager[None] = _Signal(seconds) if is_main else _Thread(seconds)
        with alarm:
            result = func(*args, **kwargs)
    if inspect.iscoroutine(result):  # not on the event loop, or hidden by a decorator
        result = run(result if seconds is None else limited(result, seconds))
    return result


def task_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback without the leading frames of what calls tasks: it begins in the task."""
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _BEFORE_TASKS:
        frames = frames.tb_next
    return frames


_BEFORE_TASKS = {__name__, "relevo.engine.attempts", "relevo.middleware.around", "relevo.dependencies.filling"}


class _Signal(AbstractContextManager[None]):
    """For the main thread of a child process: also interrupts a call that waits, such as `time.sleep`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    @staticmethod
    def _raise(*_: object) -> None:
        raise SoftTimeout

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)


class _Thread(AbstractContextManager[None]):
    """For other threads: takes effect between two bytecode instructions, not inside a C call."""

    def __init__(self, seconds: float) -> None:
        self._ident = ctypes.c_ulong(threading.get_ident())
        self._lock = threading.Lock()
        self._is_over = False
        self._timer = threading.Timer(seconds, self._raise)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def _raise(self) -> None:
        with self._lock:
            if not self._is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(self._ident, ctypes.py_object(SoftTimeout))

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._is_over = True
        # One that came at the last moment, and was not raised yet, must not hit the next job of this thread.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(self._ident, None)
        self._timer.cancel()
