"""`as_completed`: many jobs in the order in which they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from relevo.engine.job import Record
from relevo.engine.waits import Wait, noted, warn_on_loop
from relevo.errors import OptionError, ResultTimeout
from relevo.store.keys import QueueKeys
from relevo.text.durations import Duration, seconds

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


class Handle(Protocol):
    """A job or a workflow."""

    id: str
    queue: str
    _engine: Engine
    _ended: Record | None


H = TypeVar("H", bound=Handle)


def as_completed(jobs: Iterable[H], *, timeout: Duration | None = None) -> Completed[H]:
    """The jobs (or workflows) in the order in which they end, for `for` and for `async for`; nothing is polled.

    Each has its outcome with it, so `result()` returns or raises at once. A job that does not exist comes, too, and its
    `result()` raises UnknownJob. Raises ResultTimeout if not all have ended within `timeout`; they go on.

    >>> for job in as_completed(jobs):      # doctest: +SKIP
    ...     print(job.id, job.result())
    """
    limit = None if timeout is None else seconds(timeout, what="timeout")
    given = tuple(jobs)
    for one in given:
        if not hasattr(one, "_ended"):
            raise OptionError(f"as_completed: jobs as enqueue() returned them are needed, found {one!r:.80}")
    return Completed(given, limit)


class Completed(Generic[H]):
    """Jobs in the order in which they end: made by `as_completed`."""

    def __init__(self, jobs: Sequence[H], timeout: float | None) -> None:
        self._jobs = jobs
        self._timeout = timeout

    def __iter__(self) -> Iterator[H]:
        if not self._jobs:
            return
        left, first = len(self._jobs), self._jobs[0]
        warn_on_loop(first._engine, "async for job in as_completed(…)")
        wait = partial(Wait, first.queue, first.id, self._timeout, rest=self._rest)
        ends = iter(first._engine.client.ends(self._places(), self._timeout))
        while True:
            with noted(first._engine, wait):
                found = next(ends, None)
            if found is None:
                break
            yield self._ended(*found)
            left -= 1
        if left:
            raise self._late(left)

    async def __aiter__(self) -> AsyncGenerator[H, None]:
        if not self._jobs:
            return
        left = len(self._jobs)
        loop = asyncio.get_running_loop()
        until = None if self._timeout is None else loop.time() + self._timeout
        ends = self._jobs[0]._engine.client.await_ends(self._places())
        try:
            while left:
                try:
                    async with asyncio.timeout_at(until):
                        place, record = await anext(ends)
                except TimeoutError:
                    raise self._late(left) from None
                yield self._ended(place, record)
                left -= 1
        finally:
            await ends.aclose()

    def _rest(self) -> list[tuple[str, str]]:
        return [(job.queue, job.id) for job in self._jobs if job._ended is None]

    def _places(self) -> list[tuple[QueueKeys, str]]:
        return [(job._engine.keys_of(job.queue), job.id) for job in self._jobs]

    def _ended(self, place: int, record: Record | None) -> H:
        job = self._jobs[place]
        job._ended = record
        return job

    def _late(self, left: int) -> ResultTimeout:
        return ResultTimeout(
            f"{left:,} of {len(self._jobs):,} jobs have not ended within {self._timeout:g} s; they go on"
        )
