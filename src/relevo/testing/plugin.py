"""The pytest plugin: two fixtures. Nothing is started before one of them is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from relevo.app import Relevo
    from relevo.testing.kit import TestKit


@pytest.fixture(scope="session")
def relevo_server() -> Iterator[str]:
    """The URL of a real server for the whole run: `RELEVO_TEST_URL`, else an embedded one that stops at the end."""
    from relevo.testing.real_server import server

    with server() as url:
        yield url


@pytest.fixture
def relevo_app(relevo_server: str) -> Iterator[Callable[[Relevo], TestKit]]:
    """Call it with your app: until the test ends, the app uses the test server, under names of its own.

    def test_signup(relevo_app):
        kit = relevo_app(app)
    """
    from contextlib import ExitStack

    from relevo.testing.binding import bind

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(bind(app, url=relevo_server))
