"""The parts that the tests stand on do what they say: servers, topologies, proxy, waiting."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.retry import Retry

from tests import servers
from tests.eventually import aeventually, eventually
from tests.proxy import Proxy
from tests.servers import ENGINES, Server, ServerDidNotStart, available, free_port
from tests.topologies import Cluster, SentinelGroup


def client_of(url: str, *, timeout: float = 5) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=timeout, protocol=2)


def line_to(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=5)


def client_id(line: socket.socket) -> int:
    line.sendall(b"CLIENT ID\r\n")
    return int(line.recv(100).removeprefix(b":"))


def is_connected(server: Server, client_id: int) -> bool:
    return f"id={client_id} ".encode() in server.command("CLIENT", "LIST")


def assert_silent(line: socket.socket) -> None:
    line.settimeout(0.1)
    with pytest.raises(TimeoutError):
        line.recv(100)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(directory=tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[redis.Redis]:
    """Connected through the proxy, and quick to give up."""
    with client_of(proxy.url, timeout=0.5) as client:
        client.ping()
        yield client


# --- servers


@pytest.mark.parametrize(
    ("engine", "field", "version"),
    [("valkey", "valkey_version", "9."), ("redis7", "redis_version", "7."), ("redis62", "redis_version", "6.2.")],
)
def test_each_engine_is_the_one_it_says(engine: str, field: str, version: str, tmp_path: Path) -> None:
    if available(engine) is None:
        pytest.skip(f"no {engine} on this machine")
    with Server(engine, directory=tmp_path) as server, client_of(server.url) as client:
        assert server.command("INFO", "server")[field].startswith(version)
        assert client.info()["aof_enabled"] == 0
    assert not server.is_running


def test_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=", ".join(ENGINES)):
        available("redis5")


def test_server_answers_on_a_unix_socket_only(tmp_path: Path) -> None:
    with Server(directory=tmp_path, unix=True) as server, client_of(server.url) as client:
        assert client.ping()
        assert server.command("CONFIG", "GET", "port") == [b"port", b"0"]
        assert server.command("PING")


def test_unix_socket_of_a_deep_directory_is_put_where_its_path_is_short(tmp_path: Path) -> None:
    with Server(directory=tmp_path / ("deep" * 30), unix=True) as server:
        assert server.command("PING")
        assert server.socket is not None
        assert len(str(server.socket)) < 100
    assert not server.socket.parent.exists()


def test_killed_server_starts_again_with_its_data_at_the_same_address(tmp_path: Path) -> None:
    with Server(directory=tmp_path, config={"appendonly": "yes"}) as server:
        url, first = server.url, server.pid
        server.command("SET", "kept", "1")
        server.kill()
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        with pytest.raises(redis.ConnectionError):
            server.command("PING")
        server.start()
        assert server.url == url
        assert server.pid != first
        assert server.command("GET", "kept") == b"1"


def test_without_append_only_file_a_stopped_server_forgets(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server:
        server.command("SET", "kept", "1")
        server.stop()
        assert not server.is_running
        server.start()
        assert server.keys() == []


def test_started_server_refuses_a_second_start(server: Server) -> None:
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()


def test_paused_server_is_silent_until_resumed(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server, client_of(server.url, timeout=0.5) as client:
        client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
        assert client.ping()


def test_paused_server_can_be_stopped(tmp_path: Path) -> None:
    server = Server(directory=tmp_path)
    server.start()
    server.pause()
    before = time.monotonic()
    server.stop()
    assert not server.is_running
    assert time.monotonic() - before < 3


def test_server_takes_another_port_when_its_own_was_snatched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([server.port, server.port, free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with Server(directory=tmp_path) as other:
        assert other.port != server.port
        assert other.command("CONFIG", "GET", "port") == [b"port", str(other.port).encode()]
    assert server.command("PING")


def test_server_told_a_taken_port_says_so(server: Server, tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDidNotStart, match="Address already in use"),
        Server(directory=tmp_path, port=server.port),
    ):
        pass


def test_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDidNotStart, match="no-such-setting"),
        Server(directory=tmp_path, config={"no-such-setting": "1"}),
    ):
        pass


def test_servers_started_together_do_not_share_ports(tmp_path: Path) -> None:
    group = [Server(directory=tmp_path / str(n)) for n in range(4)]
    try:
        with ThreadPoolExecutor() as together:
            list(together.map(Server.start, group))
        assert len({server.port for server in group}) == len({server.pid for server in group}) == 4
    finally:
        for server in group:
            server.kill()


def test_keys_come_with_their_time_to_live(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server:
        server.command("SET", "endless", "1")
        server.command("SET", b"ending\xff", "1", "EX", 100)
        server.command("MSET", *(f"k{n}" for pair in range(1500) for n in (pair, pair)))
        found = dict(server.keys())
        assert len(found) == 1502
        assert found["endless"] == -1
        assert 0 < found["ending\\xff"] <= 100


def test_url_holds_the_password_of_a_guarded_server(tmp_path: Path) -> None:
    with Server(directory=tmp_path, config={"requirepass": "s3cret"}) as server:
        assert server.command("PING")
        with client_of(server.url) as client:
            assert client.ping()
        with client_of(server.url.replace(":s3cret@", "")) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


# --- topologies


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


# --- proxy


def test_proxy_passes_requests_and_replies_of_any_size(client: redis.Redis, proxy: Proxy) -> None:
    value = os.urandom(1_000_000)
    client.set("proxy:big", value, ex=60)
    assert client.get("proxy:big") == value
    assert proxy.connections == proxy.accepted == 1


def test_proxy_passes_on_the_end_of_a_connection_from_either_side(proxy: Proxy, server: Server) -> None:
    with line_to(proxy) as line:
        me = client_id(line)
        assert server.command("CLIENT", "KILL", "ID", me) == 1
        assert line.recv(100) == b""
    eventually(lambda: proxy.connections == 0)
    with line_to(proxy) as line:
        me = client_id(line)
        assert is_connected(server, me)
    eventually(lambda: not is_connected(server, me))
    eventually(lambda: proxy.connections == 0)


def test_black_hole_swallows_bytes_without_ending_the_connection(proxy: Proxy, server: Server) -> None:
    with line_to(proxy) as old:
        me = client_id(old)
        proxy.black_hole()
        old.sendall(b"SET proxy:swallowed 1\r\n")
        assert_silent(old)
        with client_of(proxy.url) as new:
            assert new.ping()
            assert not new.exists("proxy:swallowed")
    assert is_connected(server, me)  # its client has gone, and the server cannot know


def test_silenced_connection_stays_silent_after_healing(proxy: Proxy) -> None:
    with line_to(proxy) as old:
        client_id(old)
        proxy.black_hole()
        proxy.heal()
        old.sendall(b"PING\r\n")
        assert_silent(old)
    with client_of(proxy.url) as new:
        assert new.ping()


def test_black_hole_takes_connections_made_just_before(proxy: Proxy) -> None:
    lines = []
    for _ in range(50):  # so many, for the proxy to be caught before it has accepted one
        lines.append(line_to(proxy))
        proxy.black_hole()
    for line in lines:
        line.sendall(b"PING\r\n")
    assert_silent(lines[0])
    for line in lines:
        with line:
            line.settimeout(0)
            with pytest.raises(BlockingIOError):
                line.recv(100)


def test_black_hole_for_all_accepts_new_connections_and_leaves_them_unanswered(
    client: redis.Redis, proxy: Proxy
) -> None:
    proxy.black_hole_all()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    before = proxy.accepted
    with pytest.raises(redis.TimeoutError):
        client.ping()
    assert proxy.accepted == before + 1
    proxy.heal()
    assert client.ping()


def test_reset_reaches_the_client_as_a_reset(proxy: Proxy) -> None:
    with line_to(proxy) as line:
        line.sendall(b"PING\r\n")
        assert line.recv(100) == b"+PONG\r\n"
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            line.recv(100)
    assert proxy.connections == 0


def test_delayed_reply_comes_late_and_whole(proxy: Proxy) -> None:
    def ping_takes() -> float:
        before = time.monotonic()
        assert patient.ping()
        return time.monotonic() - before

    with client_of(proxy.url) as patient:
        patient.ping()
        proxy.delay(0.3)
        assert ping_takes() >= 0.3
        proxy.heal()
        assert ping_takes() < 0.3


def test_lost_reply_leaves_the_work_done_and_the_client_ignorant(client: redis.Redis, proxy: Proxy) -> None:
    client.set("proxy:counter", 0, ex=60)
    proxy.drop_replies(1)
    with pytest.raises(redis.ConnectionError):
        client.incr("proxy:counter")
    assert client.get("proxy:counter") == b"1"


def test_every_connection_that_lost_a_reply_is_reset(client: redis.Redis, proxy: Proxy) -> None:
    with line_to(proxy) as other:
        other.sendall(b"PING\r\n")
        assert other.recv(100) == b"+PONG\r\n"
        proxy.drop_replies(2)
        other.sendall(b"PING\r\n")
        eventually(lambda: proxy.replies_to_drop == 1, what="the first reply is swallowed")
        with pytest.raises(redis.ConnectionError):
            client.ping()
        with pytest.raises(ConnectionResetError):
            other.recv(100)


def test_proxy_of_a_dead_server_resets_and_serves_again_after_its_restart(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server, Proxy("127.0.0.1", server.port) as proxy:
        with line_to(proxy) as line:
            client_id(line)
            server.kill()
            assert line.recv(100) == b""
        with pytest.raises(ConnectionResetError), line_to(proxy) as line:  # on connecting already, if it is quick
            line.recv(100)
        server.start()
        with line_to(proxy) as line:
            assert client_id(line)


def test_closed_proxy_refuses_connections(server: Server) -> None:
    proxy = Proxy("127.0.0.1", server.port)
    with line_to(proxy):
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port))


# --- waiting


def test_eventually_gives_the_first_truthy_value() -> None:
    values = iter([None, 0, "", "now", "later"])
    assert eventually(lambda: next(values)) == "now"


def test_eventually_fails_in_time_and_shows_the_last_value() -> None:
    before = time.monotonic()
    with pytest.raises(AssertionError, match=r"three jobs: not so within 0\.05 s; the last look gave \[\]"):
        eventually(list, timeout=0.05, what="three jobs")
    assert 0.05 <= time.monotonic() - before < 1


def test_eventually_bears_only_the_errors_it_was_told() -> None:
    def broken() -> int:
        raise KeyError("lost")

    with pytest.raises(AssertionError, match="KeyError"):
        eventually(broken, timeout=0.03, errors=(KeyError,))
    with pytest.raises(KeyError):
        eventually(broken, errors=(ValueError,))


async def test_async_waiting_leaves_the_loop_free_and_takes_both_kinds_of_check() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, done.set)

    async def look() -> str | None:
        return "seen" if done.is_set() else None

    seen: str = await aeventually(look)
    assert seen == "seen"
    assert await aeventually(done.is_set)


async def test_async_waiting_ends_a_look_that_hangs() -> None:
    with pytest.raises(AssertionError, match="the answer: not so within"):
        await aeventually(asyncio.Event().wait, timeout=0.05, what="the answer")


async def test_time_out_inside_a_look_is_not_taken_for_the_bound() -> None:
    async def look() -> bool:
        raise TimeoutError("of the check")

    with pytest.raises(TimeoutError, match="of the check"):
        await aeventually(look)
    with pytest.raises(AssertionError, match="of the check"):
        await aeventually(look, timeout=0.05, errors=(TimeoutError,))
