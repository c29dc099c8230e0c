"""Several servers that stand together on loopback: a cluster, and a primary guarded by sentinels.

Both form in a little over two seconds. The servers themselves set that floor: a cluster node waits two seconds before
it calls itself ready, and sentinels exchange greetings every two seconds. They fail over when a test kills a primary,
and never by themselves, however long the machine stands still.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from tests.eventually import PATIENCE, eventually
from tests.servers import Server

_SLOTS = 16_384
_FORM = 90.0  # seconds until a cluster or a group of sentinels must agree
_NO_FAILOVER_MS = 600_000  # a node that is silent for less is not replaced

# A replica is complete only once its primary has pinged it, every ten seconds by default, and a primary
# waits five seconds for further replicas before it sends its first copy.
_FAST_REPLICATION = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


class _Group:
    """Servers that live and end together."""

    def __init__(self, directory: Path, engine: str = "valkey") -> None:
        self.directory = directory
        self.engine = engine
        self.nodes: list[Server] = []
        self._all: list[Server] = []

    def __enter__(self) -> Self:
        try:
            self._form()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def keys(self) -> list[tuple[str, int]]:
        """Every key with its time to live in seconds, once: the replicas' copies are left out."""
        return sorted(chain.from_iterable(map(Server.keys, filter(_is_primary, self.nodes))))

    def _form(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        for server in self._all:  # there is nothing to keep, and a good order would start failovers
            server.kill()

    def _start(self, count: int, name: str, config: dict[str, str], arguments: Sequence[str] = ()) -> list[Server]:
        servers = [
            Server(self.engine, directory=self.directory / f"{name}{n}", config=config, arguments=arguments)
            for n in range(1, count + 1)
        ]
        self._all += servers
        with ThreadPoolExecutor(count) as together:
            list(together.map(Server.start, servers))
        return servers


class Cluster(_Group):
    """Three primaries, each with a replica; `nodes` are the primaries and then the replicas, as formed."""

    @property
    def url(self) -> str:
        return "redis+cluster://" + _addresses(self.nodes)

    @property
    def primaries(self) -> list[Server]:
        """The nodes that have slots now."""
        return [node for node in self.nodes if node.is_running and _is_primary(node)]

    def primary_of(self, key: str) -> Server:
        """The running primary that serves the key, waiting for one while the cluster fails over."""
        return eventually(lambda: self._serving(key), timeout=_FORM, what=f"a primary that serves {key!r}")

    def kill_primary_of(self, key: str) -> Server:
        """Kill the primary that serves the key, let its replica take over, and give the killed one.

        The replica has all that was acknowledged, and does not wait until the others agree that the primary is gone.
        """
        primary = self.primary_of(key)
        _wait_until_replicated(primary)
        primary.kill()
        replica = next(node for node in self.nodes if node.is_running and _primary_port(node) == primary.port)
        replica.command("CLUSTER", "FAILOVER", "TAKEOVER")
        return primary

    def move_slot_of(self, key: str) -> SlotMove:
        """Begin to move the slot of a key to another primary."""
        source = self.primary_of(key)
        return SlotMove(self.primaries, key, source, next(node for node in self.primaries if node is not source))

    def move_slot_at_once(self, key: str) -> None:
        """Let Valkey 9 move the slot of a key to another primary: it is copied, and changes its node in one step."""
        source = self.primary_of(key)
        target = next(node for node in self.primaries if node is not source)
        slot, target_id = source.command("CLUSTER", "KEYSLOT", key), target.command("CLUSTER", "MYID")
        source.command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target_id)
        eventually(lambda: self.primary_of(key) is target, what="the slot has moved")

    def _serving(self, key: str) -> Server | None:
        for node in self.nodes:
            try:
                if node.is_running:
                    node.command("EXISTS", key)  # every other node, its replica too, answers MOVED
                    return node
            except redis.RedisError:
                continue
        return None

    def _form(self) -> None:
        config = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": "1000",
            "cluster-replica-validity-factor": "0",  # a replica may step up however old its data
            **_FAST_REPLICATION,
        }
        self.nodes = self._start(6, "node", config)
        primaries, replicas = self.nodes[:3], self.nodes[3:]
        # Slots and epochs are settled while the nodes are strangers: there is no conflict to resolve later.
        for n, node in enumerate(primaries):
            node.command("CLUSTER", "ADDSLOTS", *range(n * _SLOTS // 3, (n + 1) * _SLOTS // 3))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        # Everyone meets everyone, which is quicker than waiting for gossip.
        for n, node in enumerate(self.nodes):
            for other in self.nodes[n + 1 :]:
                node.command("CLUSTER", "MEET", "127.0.0.1", other.port)
        for primary, replica in zip(primaries, replicas, strict=True):
            _replicate(primary, replica)
        for node in self.nodes:
            eventually(partial(_knows_the_cluster, node), timeout=_FORM, what=f"{node.url} knows the whole cluster")
        for replica in replicas:
            _wait_for_copy(replica)
        for node in self.nodes:  # a machine that stands still must not start a failover
            node.command("CONFIG", "SET", "cluster-node-timeout", _NO_FAILOVER_MS)


class SlotMove:
    """A slot on its way from one node to another, key by key, as `redis-cli --cluster reshard` moves it.

    Until `finish()` both nodes refuse what needs keys of both, and scripts, which name keys that are nowhere.
    """

    def __init__(self, primaries: Sequence[Server], key: str, source: Server, target: Server) -> None:
        self.source, self.target = source, target
        self._primaries = primaries
        self.slot = int(source.command("CLUSTER", "KEYSLOT", key))
        self._target_id = target.command("CLUSTER", "MYID")
        target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", source.command("CLUSTER", "MYID"))
        source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", self._target_id)

    def carry(self, *keys: str | bytes) -> None:
        """Move these keys, as far as they exist."""
        self.source.ask("MIGRATE", "127.0.0.1", self.target.port, "", 0, 60_000, "KEYS", *keys)

    def carry_some(self, count: int = 10) -> bool:
        """Move so many keys; False if none was left."""
        keys: list[bytes] = self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        if keys:
            self.carry(*keys)
        return bool(keys)

    def finish(self, count: int = 10) -> None:
        """Move what is left, and tell all nodes whose slot it is, the new one first."""
        while self.carry_some(count):
            pass
        others = [node for node in self._primaries if node not in (self.target, self.source)]
        for node in (self.target, self.source, *others):  # replicas hear of it by gossip
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", self._target_id)

    def refused(self) -> int:
        """How often the nodes refused a call because the slot is moving."""
        return sum(_errors(node, name) for node in (self.source, self.target) for name in ("TRYAGAIN", "ASK"))


class SentinelGroup(_Group):
    """A primary and its replica in `nodes`, watched by three `sentinels`."""

    NAME = "mymaster"

    def __init__(self, directory: Path, engine: str = "valkey") -> None:
        super().__init__(directory, engine)
        self.sentinels: list[Server] = []

    @property
    def url(self) -> str:
        return f"redis+sentinel://{_addresses(self.sentinels)}/{self.NAME}"

    def primary(self) -> Server:
        """The running primary, waiting for one while the sentinels fail over."""
        return eventually(self._serving, timeout=_FORM, what="a running primary", errors=(redis.RedisError,))

    def kill_primary(self) -> Server:
        """Kill the primary, make a sentinel replace it by its replica, and give the killed one."""
        primary = self.primary()
        _wait_until_replicated(primary)
        primary.kill()
        eventually(
            lambda: self.sentinels[0].command("SENTINEL", "FAILOVER", self.NAME),
            what="the sentinel begins the failover",
            errors=(redis.ResponseError,),
        )
        return primary

    def _serving(self) -> Server | None:
        return next((node for node in self.nodes if _is_primary(node)), None)

    def _form(self) -> None:
        self.nodes = self._start(2, "node", _FAST_REPLICATION)
        primary, replica = self.nodes
        replica.command("REPLICAOF", "127.0.0.1", primary.port)
        _wait_for_copy(replica)  # before the sentinels look: their next look is ten seconds later
        self.sentinels = self._start(
            3,
            "sentinel",
            {
                f"sentinel monitor {self.NAME}": f"127.0.0.1 {primary.port} 2",
                f"sentinel down-after-milliseconds {self.NAME}": str(_NO_FAILOVER_MS),
                f"sentinel failover-timeout {self.NAME}": "3000",
            },
            ["--sentinel"],
        )
        for sentinel in self.sentinels:
            eventually(
                partial(_knows_the_group, sentinel, self.NAME),
                timeout=_FORM,
                what=f"{sentinel.url} knows the whole group",
            )


def _addresses(servers: Sequence[Server]) -> str:
    return ",".join(f"127.0.0.1:{server.port}" for server in servers)


def _errors(node: Server, name: str) -> int:
    stats: dict[str, dict[str, int]] = node.command("INFO", "errorstats")
    return stats.get(f"errorstat_{name}", {}).get("count", 0)


def _is_primary(node: Server) -> bool:
    return node.is_running and bool(node.command("ROLE")[0] == b"master")


def _primary_port(node: Server) -> int | None:
    """The port of a replica's primary; None for a primary."""
    role = node.command("ROLE")
    return int(role[2]) if role[0] == b"slave" else None


def _wait_until_replicated(primary: Server) -> None:
    with redis.Redis(host="127.0.0.1", port=primary.port, protocol=2, socket_timeout=None) as client:
        # WAIT is about what was written before the last command of its connection, so there must be one.
        client.ping()
        assert client.wait(1, round(PATIENCE * 1000)), f"the replica of {primary.url} is not up to date"


def _replicate(primary: Server, replica: Server) -> None:
    name = primary.command("CLUSTER", "MYID")
    eventually(
        lambda: replica.command("CLUSTER", "REPLICATE", name),
        what="the replica has heard of its primary",
        errors=(redis.ResponseError,),
    )


# Commands of two words are sent as two: under its full name the client would parse the reply, and how
# depends on the client's version.


def _knows_the_cluster(node: Server) -> bool:
    info: bytes = node.command("CLUSTER", "INFO")
    ranges: list[list[object]] = node.command("CLUSTER", "SLOTS")
    return (
        b"cluster_state:ok" in info
        and b"cluster_known_nodes:6" in info
        and [len(servers) for _, _, *servers in ranges] == [2, 2, 2]
    )


def _knows_the_group(sentinel: Server, name: str) -> bool:
    fields: list[bytes] = sentinel.command("SENTINEL", "MASTER", name)
    known = dict(zip(fields[::2], fields[1::2], strict=True))
    return known[b"num-slaves"] == b"1" and known[b"num-other-sentinels"] == b"2"


def _wait_for_copy(replica: Server) -> None:
    eventually(
        lambda: replica.command("INFO", "replication").get("master_link_status") == "up",
        timeout=_FORM,
        what=f"the replica {replica.url} has its first copy",
    )
