"""What tests with real processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server


@pytest.fixture
def mortal(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own, that keeps its data when it dies."""
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with Server(engine, directory=tmp_path / "mortal", config=config) as server:
        yield server
