"""The app's lifespan in a child process: entered with its first function, left when the worker stops."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from relevo.engine.lifespan import Lifespan

T = TypeVar("T")

_HERE = "this process"


class ChildLifespan:
    """One asyncio task enters the lifespan and leaves it, as some libraries demand."""

    def __init__(self) -> None:
        self._lifespan: Lifespan | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_entered(self) -> bool:
        """Whether it has something to leave."""
        return self._task is not None

    @property
    def state(self) -> Any:
        """What the lifespan gave."""
        return None if self._lifespan is None else self._lifespan.states.get(_HERE)

    async def enter(self, lifespan: Lifespan) -> None:
        """Enter it; ConfigurationError: it failed."""
        if self._task is None:
            self._lifespan, self._is_over = lifespan, asyncio.Event()
            entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._live(lifespan, entered), name="relevo lifespan")
            try:
                await entered
            except BaseException:
                self._task = None
                raise

    async def leave(self) -> None:
        """Leave it."""
        if self._task is not None:
            self._is_over.set()
            await self._task

    async def _live(self, lifespan: Lifespan, entered: asyncio.Future[None]) -> None:
        try:
            async with lifespan.entered(_HERE):
                entered.set_result(None)
                await self._is_over.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)


class OwnLoop:
    """The event loop of a child that runs one attempt at a time: it stands still in between.

    A child without a lifespan has none; its coroutines run with `asyncio.run`.
    """

    def __init__(self) -> None:
        self.lifespan = ChildLifespan()
        self._runner: asyncio.Runner | None = None

    @property
    def run(self) -> Callable[[Coroutine[Any, Any, T]], T]:
        """Runs a coroutine where the lifespan was entered, so that it can use what was opened there."""
        runner = self._runner
        if runner is None:
            return asyncio.run
        return lambda coroutine: runner.run(coroutine, context=contextvars.copy_context())

    def enter(self, lifespan: Lifespan) -> None:
        """Enter a lifespan."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        self.run(self.lifespan.enter(lifespan))

    def leave(self) -> None:
        """Leave it."""
        if self._runner is not None:
            self.run(self.lifespan.leave())
            self._runner.close()
