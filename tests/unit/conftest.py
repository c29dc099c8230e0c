"""Unit tests need no server and start no process; a test that tries to fails here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

_BELONGS = "Put it in tests/store (scripts), tests/system (app and worker), tests/process or tests/parts."
_in_a_unit_test = False


def _refuse_processes(event: str, args: Any) -> None:
    if _in_a_unit_test and event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
        raise RuntimeError(f"a unit test starts no process ({event}). {_BELONGS}")


sys.addaudithook(_refuse_processes)  # cannot be removed; it does nothing while other tests run


@pytest.fixture(autouse=True)
def _no_processes() -> Iterator[None]:
    global _in_a_unit_test
    _in_a_unit_test = True
    yield
    _in_a_unit_test = False


@pytest.fixture(scope="session")
def server() -> NoReturn:
    """Takes the place of the real one, on which `app`, `bus` and `store` stand."""
    pytest.fail(f"a unit test needs no server. {_BELONGS}", pytrace=False)
