"""The lifespan of an app: what a worker process opens before its first job and closes after its last one.

Entered once per process: by the worker, for tasks on its event loop and in its threads, and by each child process.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from relevo.errors import ConfigurationError, TargetError

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.worker")

Manager: TypeAlias = AbstractAsyncContextManager[Any] | AbstractContextManager[Any]


class Lifespan:
    """The lifespan of one app; it may have none."""

    def __init__(self, _engine: Engine) -> None:
        self._make: Callable[[], Manager] | None = None
        #: The values of those that are entered, by the id of their worker.
        self.states: dict[str, Any] = {}
        self._shared: tuple[Any, ...] = ()

    @property
    def is_declared(self) -> bool:
        """Whether the app has one."""
        return self._make is not None

    def declare(self, func: Callable[..., Any], app: object) -> None:
        """Take the function of `@app.lifespan`."""
        if self._make is not None:
            raise ConfigurationError("the app has a lifespan already: enter both context managers in one function")
        self._make = _maker(func, app)

    @asynccontextmanager
    async def entered(self, worker: str) -> AsyncIterator[None]:
        """While this is entered, jobs of the worker find its value in `current_job().state`."""
        if self._make is None:
            yield
            return
        if self._shared:
            self.states[worker] = self._shared[0]
            try:
                yield
            finally:
                del self.states[worker]
            return
        stack = AsyncExitStack()
        self.states[worker] = await _enter(stack, self._make)
        try:
            yield
        finally:
            del self.states[worker]
            try:
                await stack.aclose()
            except Exception:  # the jobs are settled: the worker ends as it would have
                log.exception("the lifespan of the app failed when the worker stopped")

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """While this is entered, all workers of this process have one value. For tests, which start many."""
        if self._make is None or self._shared:
            yield
            return
        async with AsyncExitStack() as stack:
            self._shared = (await _enter(stack, self._make),)
            try:
                yield
            finally:
                self._shared = ()


async def _enter(stack: AsyncExitStack, make: Callable[[], Manager]) -> Any:
    try:
        manager = make()
        if isinstance(manager, AbstractAsyncContextManager):
            return await stack.enter_async_context(manager)
        return stack.enter_context(manager)
    except Exception as error:
        log.error("the lifespan of the app failed:", exc_info=error)
        raise ConfigurationError(f"the worker cannot start: the lifespan of the app failed: {error!r:.500}") from error


def _maker(func: Callable[..., Any], app: object) -> Callable[[], Manager]:
    """What makes the context manager of a lifespan, however it is written."""
    name = getattr(func, "__qualname__", repr(func))
    if not callable(func):
        raise TargetError(f"@app.lifespan needs a function, found {func!r:.80}")
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    needed = [one for one in parameters if one.default is one.empty and one.kind not in _REST]
    if len(needed) > 1:
        raise TargetError(f"@app.lifespan: {name} takes the app, or nothing; found {inspect.signature(func)}")
    args = (app,) if parameters and parameters[0].kind in _POSITIONAL else ()
    made: Callable[..., Any] = func
    if inspect.isasyncgenfunction(func):
        made = asynccontextmanager(func)
    elif inspect.isgeneratorfunction(func):
        made = contextmanager(func)
    elif inspect.iscoroutinefunction(func):
        raise TargetError(f"@app.lifespan: {name} is no context manager: it needs a `yield` where the worker runs")

    def make() -> Manager:
        manager = made(*args)
        if not isinstance(manager, AbstractAsyncContextManager | AbstractContextManager):
            raise TargetError(f"@app.lifespan: {name} gives no context manager: it needs a `yield`; {manager!r:.80}")
        return cast("Manager", manager)

    return make


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
