"""Duties: the repeated jobs of a worker itself. A feature gives its duties to the engine; every worker runs them.

>>> class Greeting(Duty[int]):
...     name, interval = "greeting", 60.0
...
...     async def run_once(self) -> int:
...         return 1
>>> engine.duties.append(lambda worker: [Greeting()])  # doctest: +SKIP
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from relevo.errors import ServerUnavailable, StoreError

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.offers_store import Known
    from relevo.engine.workers import WorkerInfo

log = logging.getLogger("relevo.worker")

Report = TypeVar("Report", covariant=True)
Part = TypeVar("Part")

#: Seconds until a failed run is repeated, at most: long enough not to burden a server that is in trouble.
RETRY_AFTER = 20.0


class Duty(ABC, Generic[Report]):
    """A repeated job of a worker. The loop, commands and tests call the same `run_once`."""

    #: Names it in log lines.
    name: str
    #: Seconds between two runs at most; `repeat` shortens them at random, so that workers do not run it in step.
    interval: float
    #: Seconds until the first run; None: about one interval.
    first: float | None = None
    #: It announces the worker: it also runs before the worker claims its first job, and after each reconnect.
    is_registration = False
    _hurried: asyncio.Event | None = None

    @abstractmethod
    async def run_once(self) -> Report:
        """Do it once, now."""

    async def withdraw(self) -> None:
        """The worker is stopping and claims no more jobs."""

    async def close(self) -> None:
        """The worker has stopped."""

    def hurry(self) -> None:
        """Run again now instead of at the end of the interval."""
        self._waker.set()

    async def wait(self, seconds: float) -> None:
        """Wait for so long, or until it is to hurry."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._waker.wait()
        self._waker.clear()

    @property
    def _waker(self) -> asyncio.Event:
        if self._hurried is None:
            self._hurried = asyncio.Event()
        return self._hurried


class Host(Protocol):
    """The worker that runs the duties, as features see it."""

    @property
    def engine(self) -> Engine:
        """The engine of its app."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that it serves."""

    def about(self) -> WorkerInfo:
        """Its record for the list of workers, with its counters now."""

    def known(self, queue: str) -> Known:
        """The targets that it can run for a queue."""

    def part(self, kind: type[Part]) -> Part:
        """The state of a feature for this worker, made from it when first asked for."""


#: Gives the duties of a feature for a worker.
GivesDuties: TypeAlias = Callable[[Host], Iterable[Duty[Any]]]


async def repeat(duty: Duty[Any]) -> None:
    """Run a duty at its interval until cancelled. A failure of the server is logged once, not once per run."""
    pause = duty.interval * random.uniform(0.5, 1.0) if duty.first is None else duty.first
    is_failing = False
    while True:
        await duty.wait(pause)
        pause = duty.interval
        try:
            await duty.run_once()
        except StoreError as error:
            # That the server is unavailable is logged by the consumers.
            is_news = not is_failing and not isinstance(error, ServerUnavailable)
            log.log(logging.WARNING if is_news else logging.DEBUG, "%s: %s; it will be retried", duty.name, error)
            is_failing, pause = True, min(pause, RETRY_AFTER)
        else:
            is_failing = False
        pause *= random.uniform(0.8, 1.0)
