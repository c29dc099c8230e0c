"""A clock that only the test moves: scripts read it instead of the server's, so no stall ends a lease."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from copy import copy
from functools import cache
from typing import Any

from relevo import Relevo
from relevo.engine.engine import Engine
from relevo.store import scripts
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from tests.servers import Server

KEY = b"test-clock"  # one for all tests of a server, which then knows their scripts already
_ASK, _READ = b"call('TIME')", scripts._SHIFTED.encode()
_KEEP_S = 3600  # seconds for which the server keeps a clock: longer than any test


def step(server: Server, key: str, ms: int) -> int:
    """Set the clock that an app reads (`_clock_key`) forward or back; how far it is ahead then."""
    shift = int(server.command("GET", key) or 0) + ms
    server.command("SET", key, shift, "EX", _KEEP_S)
    return shift


def let_time_pass(server: Server, key: str, ms: int) -> None:
    """Move the clock that an app reads (`_clock_key`), as if some worker had reached the server all the time."""
    shift = step(server, key, ms)
    seconds, micros = server.command("TIME")
    now_ms = int(seconds) * 1000 + int(micros) // 1000 + shift
    for contact in server.command("KEYS", "*:contact"):
        server.command("SET", contact, f"{now_ms} 0", "EX", 60)


class Clock:
    """A time in milliseconds, kept in one key of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def start(self) -> None:
        """Set it to the server's time, where it stands still."""
        seconds, micros = self._server.ask("TIME")
        self.set(seconds * 1000 + micros // 1000)

    @property
    def now_ms(self) -> int:
        return int(self._server.ask("GET", KEY))

    def set(self, now_ms: int) -> None:
        self._server.ask("SET", KEY, now_ms, "EX", _KEEP_S)

    def advance(self, ms: int) -> None:
        self.set(self.now_ms + ms)


class TimedKeys(QueueKeys):
    """The keys of a queue whose scripts read the `Clock`."""

    def script(self, name: str) -> scripts.Script:
        return _timed_script(name)


class TimedEngine(Engine):
    """An engine whose queues have such keys."""

    def keys_of(self, queue: str) -> QueueKeys:
        keys = super().keys_of(queue)
        if not isinstance(keys, TimedKeys):
            self._queue_keys[queue] = keys = TimedKeys(keys.address)
        return keys

    def now_ms(self) -> Generator[Call[Any], Any, int]:
        return int((yield Call([b"GET", KEY])))


class TimedApp(Relevo):
    """An app whose scripts read the `Clock`."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__(name, **settings)
        self.engine.__class__ = TimedEngine
        self.engine.bus_keys = TimedKeys(self.engine.bus_keys.address)
        self.engine.own_keys = TimedKeys(self.engine.own_keys.address)


@cache
def _timed_script(name: str) -> scripts.Script:
    made = copy(scripts.script(name))
    for here, there in ((_ASK, b"call('GET', '%b')" % KEY), (_READ, b"local now = tonumber(time)")):
        made.text = made.text.replace(here, there)
    assert b"'TIME'" not in made.text, f"{name} reads the time in a way that is unknown here"
    made.sha = hashlib.sha1(made.text, usedforsecurity=False).hexdigest().encode()
    return made
