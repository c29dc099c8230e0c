"""Which server to ask: one that is given, the primary that sentinels know, or a cluster's node for a key.

redis-py knows how to ask sentinels; only that goes through it, and only then is it imported, which takes longer than
the rest of relevo together. The look-ups block for a moment, so the asyncio driver makes them in a thread; between
failures the answers are kept. A node of a cluster that refuses a key names the right one, which is kept as well.
"""

from __future__ import annotations

import threading
from binascii import crc_hqx
from typing import Any

from relevo.errors import ServerUnavailable, StoreError
from relevo.store.call_numbers import Numbers, ServerClock
from relevo.store.endpoint import Endpoint, Location
from relevo.store.link import Link
from relevo.store.replies import NotNow, WrongNode

SLOTS = 16_384


def slot_of(key: bytes) -> int:
    """The slot of a key in a cluster."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start)
    return crc_hqx(key[start:end] if 0 < start < end else key, 0) % SLOTS


class Topology:
    """Finds the server for a key. Safe between threads."""

    def __init__(self, location: Location, *, timeout: float) -> None:
        self._location = location
        self._timeout = timeout
        self._lock = threading.Lock()
        self._primary: Endpoint | None = None
        #: Of a cluster: the node of each slot, as far as it has one; empty until it is asked for.
        self._slots: list[Endpoint | None] = []

    @property
    def is_cluster(self) -> bool:
        """Whether keys live on different servers."""
        return self._location.kind == "cluster"

    def known(self, route: bytes | None) -> Endpoint | None:
        """The server for a key, if that is known without a look-up."""
        match self._location.kind:
            case "standalone":
                return self._location.seeds[0]
            case "sentinel":
                return self._primary
            case "cluster":
                if not self._slots:
                    return None
                return self._slots[slot_of(route)] if route else next(filter(None, self._slots), None)

    def locate(self, route: bytes | None) -> Endpoint:
        """The server for a key; blocks while it asks sentinels or nodes, if that is needed."""
        found = self.known(route)
        if found is not None:
            return found
        with self._lock:
            if self._location.kind == "sentinel":
                self._primary = self._primary or self._ask_sentinels()
            else:
                self._slots = self._slots or self._ask_nodes()
            found = self.known(route)
        if found is None:
            raise NotNow("the cluster has no node for this key now")
        return found

    def heed(self, error: WrongNode) -> Endpoint | None:
        """The node that has the key, as named by another node; None: it named none."""
        if not self.is_cluster or not error.host:
            return None
        node = self._location.seeds[0].at(error.host, error.port)
        slots = self._slots
        if slots and not error.is_moving:
            slots[error.slot] = node
        return node

    def forget(self) -> None:
        """What is known may be out of date: ask again next time."""
        with self._lock:
            self._primary = None
            self._slots = []

    def _options(self, seed: Endpoint) -> dict[str, Any]:
        # All options are explicit: defaults of the client change between versions, and its retries run scripts twice.
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        options: dict[str, Any] = {
            "socket_timeout": self._timeout,
            "socket_connect_timeout": self._timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
        }
        if seed.tls:
            options |= {
                "ssl": True,
                "ssl_ca_certs": seed.tls.ca_certs,
                "ssl_certfile": seed.tls.certfile,
                "ssl_keyfile": seed.tls.keyfile,
                "ssl_cert_reqs": "required" if seed.tls.verify else "none",
                "ssl_check_hostname": seed.tls.verify and seed.tls.check_hostname,
            }
        return options

    def _ask_sentinels(self) -> Endpoint:
        import redis
        from redis.sentinel import Sentinel

        seeds = self._location.seeds
        options = self._options(seeds[0]) | {
            "username": self._location.sentinel_username,
            "password": self._location.sentinel_password,
        }
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            [(seed.host, seed.port) for seed in seeds], **options
        )
        try:
            host, port = sentinel.discover_master(self._location.primary)  # type: ignore[no-untyped-call]
        except (redis.RedisError, OSError) as error:
            raise NotNow(f"no server can be found now: {error}") from error
        finally:
            for one in sentinel.sentinels:
                one.close()
        return seeds[0].at(str(host), int(port))

    def _ask_nodes(self) -> list[Endpoint | None]:
        error: StoreError = NotNow("no node has slots")
        for seed in self._location.seeds:
            try:
                rows = self._ranges_of(seed)
            except ServerUnavailable as failure:
                error = failure
                continue
            found: list[Endpoint | None] = [None] * SLOTS
            for first, last, (host, port, *_), *_ in rows:
                name = (host or b"").decode().strip("?") or seed.host  # a node may not know its own address
                found[first : last + 1] = [seed.at(name, int(port))] * (last + 1 - first)
            if rows:
                return found
        raise NotNow(f"no server can be found now: {error}")

    def _ranges_of(self, seed: Endpoint) -> list[Any]:
        numbers = Numbers(ServerClock(), self._timeout)
        link = Link(seed, connect_timeout=self._timeout, timeout=self._timeout, numbers=numbers)
        try:
            rows: list[Any] = link.request((b"CLUSTER", b"SLOTS"))
        finally:
            link.close()
        return rows
