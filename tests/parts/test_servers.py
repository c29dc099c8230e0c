"""The servers that tests start: engines, addresses, kills, pauses, and what a failed start shows."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import servers
from tests.eventually import PATIENCE
from tests.servers import ENGINES, Server, ServerDidNotStart, available, free_port


def client_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), socket_timeout=PATIENCE, protocol=2)


@pytest.mark.parametrize(
    ("engine", "field", "version"),
    [("valkey", "valkey_version", "9."), ("redis7", "redis_version", "7."), ("redis62", "redis_version", "6.2.")],
)
def test_each_engine_is_the_one_it_is_named_for(engine: str, field: str, version: str, tmp_path: Path) -> None:
    if available(engine) is None:
        pytest.skip(f"no {engine} on this machine")
    with Server(engine, directory=tmp_path) as server, client_of(server.url) as client:
        assert server.command("INFO", "server")[field].startswith(version)
        assert client.info()["aof_enabled"] == 0
    assert not server.is_running


def test_unknown_engine_is_refused_with_the_known_ones() -> None:
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


def test_without_append_only_file_a_stopped_server_loses_its_data(tmp_path: Path) -> None:
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
    with Server(directory=tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as line:
        server.pause()
        line.sendall(b"PING\r\n")
        line.settimeout(0.05)
        with pytest.raises(TimeoutError):
            line.recv(100)
        server.resume()
        line.settimeout(PATIENCE)
        assert line.recv(100) == b"+PONG\r\n"


def test_paused_server_is_stopped_in_good_order(tmp_path: Path) -> None:
    server = Server(directory=tmp_path)
    server.start()
    server.pause()
    server.stop()
    assert not server.is_running
    assert "bye bye" in server.log(), "it was killed"


def test_server_takes_another_port_when_its_first_is_taken(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([server.port, server.port, free_port()])
    monkeypatch.setattr(servers, "free_port", lambda: next(ports))
    with Server(directory=tmp_path) as other:
        assert other.port != server.port
        assert other.command("CONFIG", "GET", "port") == [b"port", str(other.port).encode()]
    assert server.command("PING")


def test_server_with_a_fixed_port_that_is_taken_does_not_start(server: Server, tmp_path: Path) -> None:
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
    group = [Server(directory=tmp_path / str(n)) for n in range(3)]
    try:
        with ThreadPoolExecutor() as together:
            list(together.map(Server.start, group))
        assert len({server.port for server in group}) == len({server.pid for server in group}) == 3
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
