"""What an app of a test left on the server without an end: `relevo.testing.leaks`, by the app's name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from relevo.engine.client import Client
from relevo.store.keys import AppKeys
from relevo.testing import leaks as of_prefix
from tests.servers import Server
from tests.topologies import Cluster


def leaks(server: Server | Cluster, app: str) -> list[str]:
    """Keys, and entries as `key[entry]`, of the app of this name that nothing will ever remove."""
    if isinstance(server, Cluster):  # all keys of a queue are on one node
        return [leak for node in server.primaries for leak in leaks(node, app)]
    return of_prefix.leaks(_client(server.url).run, f"*{app}*")


def remove(server: Server, app: str) -> None:
    """Delete all keys of an app, so that one test's ten thousand jobs do not slow the next test's look."""
    of_prefix.remove(_client(server.url).run, f"*{app}*")


def lasting(keys: Iterable[str]) -> list[str]:
    """Keys without the counters of calls, which every connection leaves for ten `call_timeout`s."""
    return [key for key in keys if "}:sent:" not in key]


@cache
def _client(url: str) -> Client:
    return Client(url, AppKeys("", "", "leaks"), data_dir=Path(), connect_timeout=30, call_timeout=30)
