"""What a way of asking takes from the server and leaves on it: connections while it runs, keys when it has ended."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple, Self

from bench.resp import Connection
from bench.server import Server

#: Seconds between two looks at the connections: often enough for a run of seconds, and nothing beside its requests.
LOOK = 0.1
#: Seconds in which a key with a short time limit ends by itself (a bell, a sign of life: a minute), and some more.
SHORT = 75.0


class Connections:
    """Inside `with`, the most connections at one time beyond those that were there before."""

    def __init__(self, server: Server) -> None:
        self._ask = Connection(server.port)
        self._before = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._ask.close()

    def _watch(self) -> None:
        while True:
            ended = self._stop.wait(LOOK)
            self.most = max(self.most, self._now() - self._before)
            if ended:
                return

    def _now(self) -> int:
        return int(self._ask.info("clients")["connected_clients"])


class Kept(NamedTuple):
    """Keys that are there when nobody works."""

    n: int
    #: Of these, keys without a time limit.
    endless: int
    #: Of these, keys whose time limit ends soon.
    passing: int

    @property
    def lasting(self) -> int:
        """Keys that will still be there in two minutes."""
        return self.n - self.passing


def kept(server: Server, prefix: str) -> Kept:
    """The keys that begin with `prefix`; the server is ours alone, so looking at all of them is allowed."""
    found: set[bytes] = set()
    cursor = b"0"
    while True:
        cursor, keys = server.ask("SCAN", cursor, "MATCH", prefix + "*", "COUNT", 1000)
        found.update(keys)
        if cursor == b"0":
            break
    limits = [server.ask("PTTL", key) for key in found]
    gone = limits.count(-2)
    passing = sum(0 <= limit <= SHORT * 1e3 for limit in limits)
    return Kept(len(found) - gone, limits.count(-1), passing)


def kept_in_the_end(server: Server, prefix: str, at_first: int) -> Kept:
    """The same when what ends by itself had time to end; at once if no more is there than `at_first`."""
    until = time.monotonic() + SHORT
    while True:
        found = kept(server, prefix)
        if found.n <= at_first or not found.passing or time.monotonic() > until:
            return found
        time.sleep(0.5)
