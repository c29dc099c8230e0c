"""Both drivers behind one face, for tests that state the same of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

from relevo.store.aio import AsyncDriver
from relevo.store.blocking import BlockingDriver
from relevo.store.plan import Plan
from relevo.store.source import Source
from tests.eventually import PATIENCE

T = TypeVar("T")


class Line(Protocol):
    """Either driver."""

    def run(self, plan: Plan[T], *, patience: float | None = None) -> T: ...
    def close(self) -> None: ...


class AsyncLine:
    """The asyncio driver on a loop of its own, which runs during a call."""

    def __init__(self, source: Source) -> None:
        self._runner = asyncio.Runner()
        self.driver = self.do(self._make(source))

    @staticmethod
    async def _make(source: Source) -> AsyncDriver:
        return AsyncDriver(source)

    def do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def run(self, plan: Plan[T], *, patience: float | None = None) -> T:
        return self.do(self.driver.perform(plan, patience=patience))

    def close(self) -> None:
        self.do(self._close())
        self._runner.close()

    async def _close(self) -> None:
        self.driver.close()


class BlockingLine:
    """The blocking driver."""

    def __init__(self, source: Source) -> None:
        self.driver = BlockingDriver(source)
        self.run = self.driver.perform
        self.close = self.driver.close


OpenLine = Callable[..., Line]


def patient(url: str, directory: Path, call_timeout: float = PATIENCE) -> Source:
    return Source(url, data_dir=directory, connect_timeout=PATIENCE, call_timeout=call_timeout)
