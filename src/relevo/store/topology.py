"""Which server to ask: one that is given, the primary that sentinels know, or a cluster's node for a key.

redis-py knows how to ask sentinels and cluster nodes; only these look-ups go through it, and only then is it imported,
which takes longer than the rest of relevo together. They block for a moment, so the asyncio driver makes them in a
thread; between failures the answers are kept.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from relevo.store.endpoint import Endpoint, Location
from relevo.store.replies import NotNow

if TYPE_CHECKING:
    from redis.cluster import RedisCluster


class Topology:
    """Finds the server for a key. Safe between threads."""

    def __init__(self, location: Location, *, timeout: float) -> None:
        self._location = location
        self._timeout = timeout
        self._lock = threading.Lock()
        self._primary: Endpoint | None = None
        self._cluster: RedisCluster | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether keys live on different servers."""
        return self._location.kind == "cluster"

    def known(self, route: bytes | None) -> Endpoint | None:
        """The server for a key if that is known without asking anybody."""
        match self._location.kind:
            case "standalone":
                return self._location.seeds[0]
            case "sentinel":
                return self._primary
            case "cluster":
                cluster = self._cluster
                if cluster is None:
                    return None
                node = cluster.get_node_from_key(route) if route else cluster.get_primaries()[0]  # type: ignore[no-untyped-call]
                return None if node is None else self._location.seeds[0].at(node.host, int(node.port))

    def locate(self, route: bytes | None) -> Endpoint:
        """The server for a key; asks sentinels or nodes if need be, and blocks meanwhile."""
        found = self.known(route)
        if found is not None:
            return found
        import redis

        with self._lock:
            try:
                if self._location.kind == "sentinel":
                    self._primary = self._primary or self._ask_sentinels()
                else:
                    self._cluster = self._cluster or self._ask_nodes()
            except (redis.RedisError, OSError) as error:
                raise NotNow(f"no server can be found now: {error}") from error
        found = self.known(route)
        if found is None:
            raise NotNow("the cluster has no node for this key now")
        return found

    def forget(self) -> None:
        """What is known may be out of date: ask again next time."""
        with self._lock:
            self._primary = None
            if self._cluster is not None:
                self._cluster.close()
            self._cluster = None

    def _options(self, seed: Endpoint) -> dict[str, Any]:
        # Everything said explicitly: defaults of the client change between versions, and its retries run scripts twice.
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
        finally:
            for one in sentinel.sentinels:
                one.close()
        return seeds[0].at(str(host), int(port))

    def _ask_nodes(self) -> RedisCluster:
        from redis.cluster import ClusterNode, RedisCluster

        seeds = self._location.seeds
        options = self._options(seeds[0]) | {"username": seeds[0].username, "password": seeds[0].password}
        nodes = [
            ClusterNode(seed.host, seed.port)  # type: ignore[no-untyped-call]
            for seed in seeds
        ]
        return RedisCluster(startup_nodes=nodes, require_full_coverage=False, **options)
