"""Runs plain functions in threads that share one queue; ended runs are passed to the loop in batches.

Costs a hundredth of `run_in_executor`, which makes a future and a wake-up for each call.
"""

from __future__ import annotations

import ctypes
import queue
import threading

from relevo.engine import context
from relevo.worker import capture
from relevo.worker.executors.executor import OnEnd, OnStart
from relevo.worker.executors.handover import Ended, Handover
from relevo.worker.run import DeadlinePassed, Run
from relevo.worker.soft_limits import call


class TimeIsUp(BaseException):
    """Raised in a thread to stop its job. A BaseException, so that a task's `except Exception` does not catch it."""


class Threads:
    """A pool of daemon threads. A hung one cannot be killed, so it is abandoned and replaced."""

    #: A thread stops between two bytecode instructions, or is blocked in a call that cannot be interrupted.
    patience = 1.0

    def __init__(self, size: int, on_start: OnStart, on_end: OnEnd) -> None:
        self._size = size
        self._on_start = on_start
        self._inbox: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._handover = Handover(on_end)
        self._threads: set[threading.Thread] = set()
        self._abandoned = 0

    def submit(self, run: Run) -> None:
        """Run it as soon as a thread is free."""
        if len(self._threads) < self._size:
            self._spawn()
        self._inbox.put(run)

    def interrupt(self, run: Run) -> None:
        """Raise `TimeIsUp` in its thread. Takes effect between two bytecode instructions, not inside a C call."""
        thread = run.thread if run.started else None
        if thread is not None and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeIsUp))

    def ask_to_pause(self, run: Run) -> None:
        """Nothing to do: it reads its context."""

    def abandon(self, run: Run) -> bool:
        """Give up its thread, and start another one. True if a quarter of them hang."""
        thread = run.thread
        if thread in self._threads:
            self._threads.discard(thread)
            self._abandoned += 1
            self._spawn()
        return self._abandoned * 4 >= self._size

    def close(self) -> None:
        """Let idle threads end."""
        for _ in self._threads:
            self._inbox.put(None)

    def _spawn(self) -> None:
        thread = threading.Thread(target=self._work, name=f"relevo-{len(self._threads)}", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while True:
            try:
                run = self._inbox.get()
                if run is None:
                    return
                if run.settled:  # given back while it waited
                    continue
                run.thread = me
                ended = self._one(run)
                run.thread = None
            except TimeIsUp:
                continue  # raised after its run ended; the thread itself is fine
            if not self._handover.put(ended) or me not in self._threads:
                return  # the worker has ended, or this thread was abandoned

    def _one(self, run: Run) -> Ended:
        job = context.running.set(run.context)
        output = capture.current.set(run.capture)
        telemetry, entered = run.task.engine.telemetry, None
        try:
            self._on_start(run)
            if run.span is not None and telemetry is not None:
                entered = telemetry.enter(run.span)
            if run.is_too_late:
                raise DeadlinePassed
            return run, call(run.task.attempt, run.args, run.kwargs, run.task.options.soft_timeout), None
        except BaseException as error:  # noqa: BLE001  # SystemExit and its like are failures of a task
            return run, None, error
        finally:
            context.running.reset(job)
            capture.current.reset(output)
            if entered is not None and telemetry is not None:
                telemetry.leave(entered)
