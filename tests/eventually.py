"""Bounded waiting: look again and again until a condition holds, and never for longer than said."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")

#: Seconds to wait for anything that must happen. A machine may stand still for ten seconds several times over, so this
#: is never reached by a test that passes: it only ends one that hangs.
PATIENCE = 90.0
_PAUSE = 0.01  # seconds between two looks: short against a test, long against one look


def eventually(
    check: Callable[[], T | None],
    *,
    timeout: float = PATIENCE,
    what: str = "",
    errors: tuple[type[Exception], ...] = (),
) -> T:
    """Give the first truthy value of `check`, or fail after `timeout` seconds and show the last one.

    `errors` are those that mean "not yet", such as a refused connection during a failover; any other
    error of `check` ends the waiting at once.

        eventually(lambda: server.command("EXISTS", "done"), what="the job's mark")
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            last = value = check()
            if value:
                return value
        except errors as error:
            last = error
        if time.monotonic() >= deadline:
            raise AssertionError(_too_late(what, timeout, last))
        time.sleep(_PAUSE)


@overload
async def aeventually(
    check: Callable[[], Awaitable[T | None]],
    *,
    timeout: float = PATIENCE,
    what: str = "",
    errors: tuple[type[Exception], ...] = (),
) -> T: ...
@overload
async def aeventually(
    check: Callable[[], T | None],
    *,
    timeout: float = PATIENCE,
    what: str = "",
    errors: tuple[type[Exception], ...] = (),
) -> T: ...
async def aeventually(
    check: Callable[[], object],
    *,
    timeout: float = PATIENCE,
    what: str = "",
    errors: tuple[type[Exception], ...] = (),
) -> object:
    """`eventually` for a running event loop, which it leaves free; `check` may be sync or async.

    An async `check` that hangs is cancelled at the deadline.
    """
    last: object = "nothing yet"
    try:
        async with asyncio.timeout(timeout) as bound:
            while True:
                try:
                    found = check()
                    last = await found if inspect.isawaitable(found) else found
                    if last:
                        return last
                except errors as error:
                    last = error
                await asyncio.sleep(_PAUSE)
    except TimeoutError as error:
        if not bound.expired():  # it came from `check`, not from our bound
            raise
        raise AssertionError(_too_late(what, timeout, last)) from error


def _too_late(what: str, timeout: float, last: object) -> str:
    return f"{what or 'the condition'}: not so within {timeout:g} s; the last look gave {last!r}"
