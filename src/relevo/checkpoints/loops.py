"""Loops that keep their position: what was worked on stays done, whatever ends the run.

An item counts as worked on when the next one is asked for. Then the position is written, if the last time was long
enough ago, if the job is to stop, and when the loop ends. So after a kill the items of the last `every` seconds may
come again, and none is ever left out.
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
from relevo.model.durations import Duration, seconds

T = TypeVar("T")
Items: TypeAlias = Iterable[T] | AsyncIterable[T]
Source: TypeAlias = Items[T] | Callable[[Any], Items[T] | Awaitable[Items[T]]]

log = logging.getLogger("relevo.checkpoints")

#: Seconds for the last write of a job that is to stop: its worker waits for it.
STOP_PATIENCE = 2.0
#: Seconds until a position that could not be written is tried again.
TRY_AGAIN = 5.0
#: Seconds of items that need no waiting, after which the event loop gets its turn: else it could not even hear that the
#: worker is to stop.
BREATHE = 0.01
_END: Any = object()


class Iteration(Generic[T]):
    """What `iterate` gives: for one `for`, or one `async for`."""

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
        #: whose waiting for the source can be ended, and whether it was
        self._task: asyncio.Task[Any] | None = None
        self._is_woken = False

    @property
    def count(self) -> int:
        """How many items have been worked on, those of earlier runs of the job included."""
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
        except BaseException:  # of the source, or the worker's way to stop a thread: what was worked on stays so
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
                await self._async.aclose()  # here and now, and not when the event loop gets to it
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
            # Asked once more, now that we can be woken: who tells us may do so from another thread.
            if self._keeping.must_stop():
                raise self._interruption()
            return await anext(self._async, _END)
        finally:
            self._keeping.asleep.discard(self)
            self._task = None
            if self._is_woken and task is not None:
                task.uncancel()  # it was our way to wake up, and nobody else's business

    def wake(self) -> None:
        """Wait no longer for the source. Safe from other threads."""
        if (task := self._task) is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(self._stop_waiting, task)

    def _stop_waiting(self, task: asyncio.Task[Any]) -> None:
        # It sits in the source, and goes nowhere before we return: the cancellation cannot hit anything else.
        if self._task is task and not self._is_woken:
            self._is_woken = True
            task.cancel()

    # both
    def _begin(self, raw: bytes | None) -> Any:
        """Take up the position of an earlier run; what to iterate over."""
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
        """The next item is asked for: whether to stop instead."""
        self._position.arrive()
        return self._keeping.must_stop()

    def _patience(self, is_last: bool) -> float:
        if is_last:
            return STOP_PATIENCE
        return 0.0 if self._every else PATIENCE  # who wants each item written also wants to wait for it

    def _written(self) -> None:
        self._position.is_unwritten = False
        self._due = time.monotonic() + self._every

    def _missed(self, error: Exception, is_last: bool) -> None:
        """A position may be written later. Only who wants each one written must not go on."""
        if not (self._every or is_last):
            raise error
        self._due = time.monotonic() + TRY_AGAIN
        log.warning("iterate %r: the position of job %s is not written: %s", self._name, self._keeping.id, error)

    def _interruption(self) -> Interruption:
        return Interruption(f"iterate {self._name!r}: stopped after {self.count} items, to go on from there")
