"""The cluster and the sentinels that tests start, and their failovers."""

from __future__ import annotations

from pathlib import Path

from redis.cluster import RedisCluster

from tests.eventually import eventually
from tests.topologies import Cluster, SentinelGroup


def test_cluster_serves_every_slot_and_survives_the_loss_of_a_primary(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        assert cluster.url == f"redis+cluster://{addresses}"
        assert len(cluster.nodes) == 6
        with RedisCluster(host="127.0.0.1", port=cluster.nodes[-1].port) as client:
            for n in range(50):
                client.set(f"key{n}", n)
            assert client.wait(1, 2000, target_nodes=RedisCluster.PRIMARIES)
        assert cluster.keys() == sorted((f"key{n}", -1) for n in range(50))
        assert all(node.keys() for node in cluster.nodes[:3])

        dead = cluster.kill_primary_of("key7")
        assert not dead.is_running
        heir = cluster.primary_of("key7")
        assert heir is not dead
        assert heir.command("GET", "key7") == b"7"


def test_sentinels_name_a_new_primary_when_theirs_is_killed(tmp_path: Path) -> None:
    with SentinelGroup(tmp_path) as group:
        addresses = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        assert group.url == f"redis+sentinel://{addresses}/mymaster"
        primary, replica = group.nodes
        sentinel = group.sentinels[0]

        def address() -> list[bytes]:
            reply: list[bytes] = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster")
            return reply

        assert address() == [b"127.0.0.1", str(primary.port).encode()]
        primary.command("SET", "kept", "1")
        eventually(lambda: replica.command("GET", "kept"), what="the write on the replica")
        assert group.keys() == [("kept", -1)]

        assert group.kill_primary() is primary
        assert group.primary() is replica
        assert group.keys() == [("kept", -1)]
        eventually(lambda: address() == [b"127.0.0.1", str(replica.port).encode()], what="the new address")
