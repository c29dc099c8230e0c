"""Loops with a stored position: finished items stay finished, whatever ends the run.

An item is finished when the next one is requested. Then the position is written if the interval `every` has passed or
the job must stop, and at the end of the loop. So after a kill the items of the last `every` seconds may come again,
and none is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from types import AsyncGeneratorType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from relevo.checkpoints.keeping import PATIENCE, Interruption, Keeping
from relevo.checkpoints.position import Position
from relevo.errors import ConfigurationError, OptionError, OutOfMemory, ServerUnavailable
from relevo.text.durations import Duration, seconds

T = TypeVar("T")
Items: TypeAlias = Iterable[T] | AsyncIterable[T]
Source: TypeAlias = Items[T] | Callable[[Any], Items[T] | Awaitable[Items[T]]]

log = logging.getLogger("relevo.checkpoints")

#: Seconds for the last write of a job that must stop: its worker waits for it.
STOP_PATIENCE = 2.0
#: Seconds until a failed write of the position is retried.
TRY_AGAIN = 5.0
#: Seconds of items without waiting after which the loop yields to the event loop: else it would block even the shutdown
#: of the worker.
BREATHE = 0.01
_END: Any = object()


class Iteration(Generic[T]):
    """The result of `iterate`: for one `for`, or one `async for`."""

    def __init__(
        self, keeping: Keeping, source: Source[T], key: Callable[[T], Any] | None, name: str, every: Duration
    ) -> None:
        if not isinstance(source, Iterable | AsyncIterable) and not callable(source):
            raise OptionError(f"iterate: the source is something to iterate over or a function, found {source!r:.80}")
        if key is not None and not callable(key):
            raise OptionError(f"iterate: key is a function that gives an item's position, found {key!r:.80}")
        self._every = seconds(every, what="iterate(every)")
        keeping.take("p", name)
        self._keeping = keeping
        self._source = source
        self._name = name
        self._position: Position[T] = Position(name, key, keeping.home.most)
        self._plain: Iterator[T] | None = None
        self._async: AsyncIterator[T] | None = None
        #: monotonic time of the next write
        self._due = 0.0
        self._breathed = 0.0
        #: the task that waits for the source, and whether it was woken
        self._task: asyncio.Task[Any] | None = None
        self._is_woken = False

    @property
    def count(self) -> int:
        """Number of finished items, including earlier runs of the job."""
        return self._position.n

    def __repr__(self) -> str:
        return f"<Iteration {self._name!r} of job {self._keeping.id}: {self.count} worked on>"

    # for
    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._plain is None:
            self._open(self._begin(self._keeping.read("p", self._name)), is_async=False)
        assert self._plain is not None
        position = self._position
        if position.is_over:
            raise StopIteration
        must_stop = self._arrive()
        if position.is_unwritten and (must_stop or time.monotonic() >= self._due):
            self._write(is_last=must_stop)
        if must_stop:
            raise self._interruption()
        try:
            for item in self._plain:
                if not position.is_behind(item):
                    return position.hand_out(item)
        except BaseException:  # from the source, or raised by the worker to stop a thread: store what is finished
            self._write(is_last=True)
            raise
        position.end()
        self._keeping.write("p", self._name, position.mark())
        raise StopIteration

    def _write(self, *, is_last: bool) -> None:
        if self._position.is_unwritten:
            try:
                self._keeping.write("p", self._name, self._position.mark(), patience=self._patience(is_last))
            except (ServerUnavailable, OutOfMemory) as error:
                self._missed(error, is_last)
            else:
                self._written()

    # async for
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._plain is None and self._async is None:
            given = self._begin(await self._keeping.aread("p", self._name))
            self._open(await given if inspect.isawaitable(given) else given, is_async=True)
        position = self._position
        if position.is_over:
            raise StopAsyncIteration
        must_stop = self._arrive()
        if position.is_unwritten and (must_stop or time.monotonic() >= self._due):
            await self._awrite(is_last=must_stop)
        if must_stop:
            if isinstance(self._async, AsyncGeneratorType):
                await self._async.aclose()  # now, not at some later time by the event loop
            raise self._interruption()
        try:
            while (item := await self._next()) is not _END:
                if not position.is_behind(item):
                    return position.hand_out(item)
        except (Exception, asyncio.CancelledError, Interruption) as error:
            await self._awrite(is_last=True)
            if self._is_woken and isinstance(error, asyncio.CancelledError):
                raise self._interruption() from None
            raise
        position.end()
        await self._keeping.awrite("p", self._name, position.mark())
        raise StopAsyncIteration

    async def _awrite(self, *, is_last: bool) -> None:
        if self._position.is_unwritten:
            try:
                await self._keeping.awrite("p", self._name, self._position.mark(), patience=self._patience(is_last))
            except (ServerUnavailable, OutOfMemory) as error:
                self._missed(error, is_last)
            else:
                self._written()

    async def _next(self) -> T:
        """The next item, or _END."""
        if self._plain is not None:
            if (now := time.monotonic()) > self._breathed + BREATHE:
                await asyncio.sleep(0)
                self._breathed = now
            return next(self._plain, _END)
        assert self._async is not None
        task = self._task = asyncio.current_task()
        self._keeping.asleep.add(self)
        try:
            # Checked again, now that this can be woken: the stop may have come from another thread in between.
            if self._keeping.must_stop():
                raise self._interruption()
            return await anext(self._async, _END)
        finally:
            self._keeping.asleep.discard(self)
            self._task = None
            if self._is_woken and task is not None:
                task.uncancel()  # the cancellation was only used to wake up

    def wake(self) -> None:
        """Stop waiting for the source. Thread-safe."""
        if (task := self._task) is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(self._stop_waiting, task)

    def _stop_waiting(self, task: asyncio.Task[Any]) -> None:
        # The task is suspended in the source until this returns, so the cancellation cannot hit anything else.
        if self._task is task and not self._is_woken:
            self._is_woken = True
            task.cancel()

    # both
    def _begin(self, raw: bytes | None) -> Any:
        """Restore the position of an earlier run; returns what to iterate over."""
        after = self._position.take_up(raw)
        self._due = time.monotonic() + self._every
        if self._position.is_over:
            return ()
        if isinstance(self._source, Iterable | AsyncIterable):
            self._position.pass_over()
            return self._source
        return self._source(after)

    def _open(self, given: Any, *, is_async: bool) -> None:
        if is_async and isinstance(given, AsyncIterable):
            self._async = aiter(given)
        elif isinstance(given, Iterable):
            self._plain = iter(given)
        else:
            if inspect.iscoroutine(given):
                given.close()
            wanted = "async for" if isinstance(given, AsyncIterable | Awaitable) else "a source that gives items"
            raise ConfigurationError(f"iterate {self._name!r}: {given!r:.80} needs {wanted}")

    def _arrive(self) -> bool:
        """Count the finished item; returns whether to stop instead of handing out the next one."""
        self._position.arrive()
        return self._keeping.must_stop()

    def _patience(self, is_last: bool) -> float:
        if is_last:
            return STOP_PATIENCE
        return 0.0 if self._every else PATIENCE  # with every=0 each write must succeed

    def _written(self) -> None:
        self._position.is_unwritten = False
        self._due = time.monotonic() + self._every

    def _missed(self, error: Exception, is_last: bool) -> None:
        """Retry the write later, except with every=0, where each write must succeed."""
        if not (self._every or is_last):
            raise error
        self._due = time.monotonic() + TRY_AGAIN
        log.warning("iterate %r: the position of job %s is not written: %s", self._name, self._keeping.id, error)

    def _interruption(self) -> Interruption:
        return Interruption(f"iterate {self._name!r}: stopped after {self.count} items, to continue from there")
