"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relevo import Relevo
from relevo.testing import TestKit, bind
from tests.servers import Server


@pytest.fixture
def kit(app: Relevo, server: Server) -> Iterator[TestKit]:
    """Runs jobs with `kit.drain()` and moves the time of the app with `kit.clock.move("1h")`."""
    with bind(app, url=server.url) as kit:
        yield kit
