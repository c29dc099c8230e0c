"""The child process that suspects share: runs coroutines on its event loop, plain functions in threads.

The parent is `quarantine`. One thread receives its messages, so that each attempt can be stopped or
paused while the others continue.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import threading
from collections.abc import Coroutine
from typing import Any

from relevo.worker.executors.child_lifespan import ChildLifespan
from relevo.worker.executors.process_child import (
    Wire,
    attempt,
    attempt_on_loop,
    begin,
    leave,
    lifespan_of,
    not_entered,
    prepare,
)
from relevo.worker.executors.process_messages import (
    Answered,
    Failed,
    Function,
    Leave,
    Order,
    Pause,
    Ready,
    Stop,
    ToChild,
)
from relevo.worker.executors.threads import TimeIsUp


class _Shared(Wire):
    """The pipe to the parent, read by one thread for all attempts."""

    paused: set[int]

    def is_paused(self, number: int) -> bool:
        return number in self.paused


class _Attempts:
    """The attempts in this process. Everything but the threads themselves happens on the loop."""

    def __init__(self, wire: _Shared) -> None:
        self._wire = wire
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._lifespan = ChildLifespan()
        self._beside: set[asyncio.Task[None]] = set()

    def listen(self) -> None:
        """Receive messages until the parent is gone. Runs in its own thread."""
        while True:
            try:
                message = self._wire.notify()
            except (EOFError, OSError):
                os._exit(0)
            self._loop.call_soon_threadsafe(self._heed, message)

    def _heed(self, message: ToChild) -> None:
        match message:
            case Function():
                self._do(self._prepare(message))
            case Leave():
                self._do(self._leave())
            case Order(number=number, on_loop=True):
                made = self._run_on_loop(message)
                self._tasks[number] = self._loop.create_task(made, context=contextvars.copy_context())
            case Order(number=number):
                thread = threading.Thread(target=self._run_in_thread, args=(message,), daemon=True)
                self._threads[number] = thread
                thread.start()
            case Pause(number):
                self._wire.paused.add(number)
            case Stop(number):
                self._stop(number)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _prepare(self, function: Function) -> None:
        answer: Ready | Failed = prepare(function)
        if isinstance(answer, Ready) and (lifespan := lifespan_of(function)) is not None:
            try:
                await self._lifespan.enter(lifespan)
                answer = Ready(has_lifespan=True)
            except BaseException as error:  # noqa: BLE001  # of the user's code
                answer = not_entered(function, error)
        self._wire.send(answer)

    async def _leave(self) -> None:
        await self._lifespan.leave()
        leave()

    def _stop(self, number: int) -> None:
        if (task := self._tasks.get(number)) is not None:
            # Behind its first step: a task that is cancelled before it would never answer.
            self._loop.call_soon(task.cancel)
        elif (thread := self._threads.get(number)) is not None and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(TimeIsUp))

    async def _run_on_loop(self, order: Order) -> None:
        answer = await attempt_on_loop(order, self._wire, self._lifespan.state)
        self._tasks.pop(order.number, None)
        self._wire.send(Answered(order.number, answer))

    def _run_in_thread(self, order: Order) -> None:
        try:
            answer = contextvars.Context().run(attempt, order, self._wire, self._lifespan.state)
            self._threads.pop(order.number, None)
            self._wire.send(Answered(order.number, answer))
        except TimeIsUp:  # raised after the attempt ended: its answer was sent, or the parent has given it up
            pass


async def _serve(wire: _Shared) -> None:
    threading.Thread(target=_Attempts(wire).listen, name="relevo parent", daemon=True).start()
    await asyncio.get_running_loop().create_future()  # until the parent is gone, which ends the process


def main() -> None:
    """Serve the parent until it is gone."""
    wire = begin(_Shared)
    wire.paused = set()
    asyncio.run(_serve(wire))
