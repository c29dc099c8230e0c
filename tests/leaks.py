"""What an app of a test left on the server without an end: `relevo.testing.leaks`, by the app's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relevo.store.client import Client
from relevo.store.keys import AppKeys
from relevo.testing import leaks as of_prefix
from relevo.testing.leaks import Run
from tests.servers import Server


def leaks(server: Server, app: str) -> list[str]:
    """Keys, and entries as `key[entry]`, of the app of this name that nothing will ever remove."""
    with _calls(server) as run:
        return of_prefix.leaks(run, f"*{app}*")


def remove(server: Server, app: str) -> None:
    """Delete all keys of an app, so that one test's ten thousand jobs do not slow the next test's look."""
    with _calls(server) as run:
        of_prefix.remove(run, f"*{app}*")


@contextmanager
def _calls(server: Server) -> Iterator[Run]:
    client = Client(server.url, AppKeys("", "", "leaks"), data_dir=Path(), connect_timeout=30, call_timeout=30)
    try:
        yield client.run
    finally:
        client.close()
