"""Binds an app to a test: a test server, its own namespace, a clock that can be moved."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any

from relevo.app import Relevo
from relevo.testing.kit import Clock, TestKit
from relevo.testing.leaks import leaks, remove
from relevo.testing.real_server import server

#: One for all tests of a process: scripts differ by clock key, and servers keep them all.
_CLOCK_KEY = f"relevo-test-clock-{secrets.token_hex(6)}"


class bind:  # noqa: N801  # used like a function: `with bind(app) as kit:`
    """While this is entered, the app uses a test server under unique names; gives a `TestKit`.

    Afterwards the app is as before and its namespace is removed. Keys that would never expire raise an
    AssertionError. Without a `url`, the server is that of `RELEVO_TEST_URL`, else an embedded one.

        with bind(app) as kit: ...
        async with bind(app) as kit: ...    # also closes the connections of the running event loop
    """

    def __init__(self, app: Relevo, *, url: str | None = None) -> None:
        self._app = app
        self._bound = _bound(app, url)

    def __enter__(self) -> TestKit:
        return self._bound.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bound.__exit__(kind, error, trace)

    async def __aenter__(self) -> TestKit:
        return self._bound.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._app.aclose()
        self._bound.__exit__(kind, error, trace)


@contextmanager
def _bound(app: Relevo, url: str | None) -> Iterator[TestKit]:
    with ExitStack() as stack:
        prefix = f"test-{secrets.token_hex(8)}"
        ours = f"{{{prefix}:*"
        used = url or stack.enter_context(server())
        stack.enter_context(app.engine.rebound(url=used, prefix=prefix, clock_key=_CLOCK_KEY))
        stack.callback(remove, app.engine.run, ours)
        stack.enter_context(_overriding(app.dependency_overrides))
        clock = Clock(app, _CLOCK_KEY)
        stack.callback(clock._shift_to, clock._shift_ms())  # of an enclosing binding, which shares the clock
        kit = TestKit(app, clock, lambda: leaks(app.engine.run, ours))
        yield kit
        left = kit.leaks()  # not after a failure of the test, whose error matters more
        assert not left, f"left on the server without an end: {', '.join(left)}"


@contextmanager
def _overriding(overrides: dict[Any, Any]) -> Iterator[None]:
    """Overrides of dependencies are afterwards as they are now."""
    before = dict(overrides)
    try:
        yield
    finally:
        overrides.clear()
        overrides.update(before)
