"""Runs middleware around calls, the first one outermost. An error is never lost: it goes on, or another one does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from typing import Any, TypeAlias, TypeVar

from relevo.errors import ConfigurationError
from relevo.middleware.middleware import Call, Part

R = TypeVar("R")

Steps: TypeAlias = Generator[None, Any, None]
AsyncSteps: TypeAlias = AsyncGenerator[None, Any]

#: Calls after which the event loop gets a turn.
_TURN = 300


def around(parts: Sequence[Part], calls: Sequence[Call], act: Callable[[], Sequence[R]]) -> Sequence[R]:
    """What `act` gives, one result for each call. Each call goes through all parts."""
    opened: list[Steps] = []
    try:
        for call in calls:
            for part in parts:
                steps = _steps(part, call)
                assert not isinstance(steps, AsyncGenerator)
                next(steps)
                opened.append(steps)
        results = act()
        while opened:
            steps = opened.pop()
            _end(steps, results[len(opened) // len(parts)])
        return results
    except BaseException as error:  # noqa: BLE001  # it is raised below
        failure = _failed(opened, error)
        try:
            if failure is error:
                raise
            raise failure  # its cause is what the middleware says
        finally:
            del failure  # it refers to this frame


async def aaround(
    parts: Sequence[Part], calls: Sequence[Call], act: Callable[[], Awaitable[Sequence[R]]]
) -> Sequence[R]:
    """`around` for async code, where a part may be async, too."""
    opened: list[Steps | AsyncSteps] = []
    try:
        for number, call in enumerate(calls, 1):
            for part in parts:
                steps = _steps(part, call)
                await anext(steps) if isinstance(steps, AsyncGenerator) else next(steps)
                opened.append(steps)
            if number % _TURN == 0:
                await asyncio.sleep(0)
        results = await act()
        while opened:
            steps, result = opened.pop(), results[len(opened) // len(parts)]
            if isinstance(steps, AsyncGenerator):
                await _aend(steps, result)
            else:
                _end(steps, result)
        return results
    except BaseException as error:  # noqa: BLE001  # it is raised below
        failure = await _afailed(opened, error)
        try:
            if failure is error:
                raise
            raise failure  # its cause is what the middleware says
        finally:
            del failure  # it refers to this frame


def _steps(part: Part, call: Call) -> Steps | AsyncSteps:
    steps: Steps | AsyncSteps = part(call)
    if isinstance(steps, Generator | AsyncGenerator):
        return steps
    raise ConfigurationError(f"{getattr(part, '__qualname__', part)} must have one `yield` where the call is made")


def _end(steps: Steps, result: object) -> None:
    try:
        steps.send(result)
    except StopIteration:
        return
    steps.close()
    raise ConfigurationError(_TWICE.format(getattr(steps, "__qualname__", steps)))


async def _aend(steps: AsyncSteps, result: object) -> None:
    try:
        await steps.asend(result)
    except StopAsyncIteration:
        return
    await steps.aclose()
    raise ConfigurationError(_TWICE.format(getattr(steps, "__qualname__", steps)))


_TWICE = "{} yields a second time; middleware has one `yield`, in whose place the call is made"


def _failed(opened: list[Steps], error: BaseException) -> BaseException:
    """What goes on after an error: the same, unless a part raises another one."""
    while opened:
        steps, trace = opened.pop(), error.__traceback__
        try:
            steps.throw(error)
            steps.close()
        except StopIteration:  # it was caught there, which changes nothing
            error.__traceback__ = trace
        except BaseException as other:  # noqa: BLE001  # of the user's code
            error = _next(error, other, trace)
    return error


async def _afailed(opened: list[Steps | AsyncSteps], error: BaseException) -> BaseException:
    while opened:
        steps, trace = opened.pop(), error.__traceback__
        if not isinstance(steps, AsyncGenerator):
            error = _failed([steps], error)
            continue
        try:
            await steps.athrow(error)
            await steps.aclose()
        except StopAsyncIteration:
            error.__traceback__ = trace
        except BaseException as other:  # noqa: BLE001  # of the user's code
            error = _next(error, other, trace)
    return error


def _next(error: BaseException, other: BaseException, trace: Any) -> BaseException:
    # Python makes a RuntimeError of a StopIteration that passes through a generator.
    if other is error or (isinstance(other, RuntimeError) and other.__cause__ is error):
        error.__traceback__ = trace  # without the frames of the middleware
        return error
    return other
