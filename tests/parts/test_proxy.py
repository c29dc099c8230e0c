"""The proxy that tests put before a server: silence, resets, delays and lost replies."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.eventually import PATIENCE, eventually
from tests.proxy import Proxy
from tests.servers import Server

PING, PONG = b"PING\r\n", b"+PONG\r\n"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


def line_to(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def client_id(line: socket.socket) -> int:
    return int(ask(line, b"CLIENT ID\r\n").removeprefix(b":"))


def ask(line: socket.socket, request: bytes = PING) -> bytes:
    line.sendall(request)
    return line.recv(100)


def answers(proxy: Proxy) -> bool:
    with line_to(proxy) as line:
        return ask(line) == PONG


def is_connected(server: Server, client_id: int) -> bool:
    return f"id={client_id} ".encode() in server.command("CLIENT", "LIST")


def assert_silent(line: socket.socket) -> None:
    """No reply comes. A short look: where a reply is on its way, `answers(proxy)` before it lets it arrive."""
    line.settimeout(0.05)
    with pytest.raises(TimeoutError):
        line.recv(100)


def test_requests_and_replies_of_any_size_pass(proxy: Proxy) -> None:
    value = os.urandom(1_000_000)
    with line_to(proxy) as line:
        request = b"*5\r\n$3\r\nSET\r\n$9\r\nproxy:big\r\n$1000000\r\n%b\r\n$2\r\nEX\r\n$2\r\n60\r\n"
        assert ask(line, request % value) == b"+OK\r\n"
        line.sendall(b"GET proxy:big\r\n")
        with line.makefile("rb") as reply:
            assert reply.readline() == b"$1000000\r\n"
            assert reply.read(1_000_000) == value
        assert proxy.connections == proxy.accepted == 1


def test_the_end_of_a_connection_passes_from_either_side(proxy: Proxy, server: Server) -> None:
    with line_to(proxy) as line:
        assert server.command("CLIENT", "KILL", "ID", client_id(line)) == 1
        assert line.recv(100) == b""
    eventually(lambda: proxy.connections == 0)
    with line_to(proxy) as line:
        ended = client_id(line)
        assert is_connected(server, ended)
    eventually(lambda: not is_connected(server, ended))
    eventually(lambda: proxy.connections == 0)


def test_black_hole_swallows_bytes_without_ending_the_connection(proxy: Proxy, server: Server) -> None:
    with line_to(proxy) as old:
        silenced = client_id(old)
        proxy.black_hole()
        old.sendall(b"SET proxy:swallowed 1\r\n")
        assert answers(proxy)
        assert_silent(old)
        assert not server.command("EXISTS", "proxy:swallowed")
    assert is_connected(server, silenced)  # the server cannot know that its client has gone


def test_silenced_connection_stays_silent_after_healing(proxy: Proxy) -> None:
    with line_to(proxy) as old:
        assert ask(old) == PONG
        proxy.black_hole()
        proxy.heal()
        old.sendall(PING)
        assert answers(proxy)
        assert_silent(old)


def test_black_hole_takes_connections_made_just_before(proxy: Proxy) -> None:
    lines = []
    for _ in range(50):  # so many, for some to be made before the proxy has accepted them
        lines.append(line_to(proxy))
        proxy.black_hole()
    for line in lines:
        line.sendall(PING)
    assert answers(proxy)
    assert_silent(lines[0])
    for line in lines:
        with line:
            line.settimeout(0)
            with pytest.raises(BlockingIOError):
                line.recv(100)


def test_black_hole_for_all_accepts_new_connections_and_leaves_them_unanswered(proxy: Proxy) -> None:
    with line_to(proxy) as old:
        assert ask(old) == PONG
        proxy.black_hole_all()
        before = proxy.accepted
        with line_to(proxy) as new:
            old.sendall(PING)
            new.sendall(PING)
            assert_silent(old)
            assert_silent(new)
            eventually(lambda: proxy.accepted == before + 1)
    proxy.heal()
    assert answers(proxy)


def test_reset_reaches_the_client_as_a_reset(proxy: Proxy) -> None:
    with line_to(proxy) as line:
        assert ask(line) == PONG
        proxy.reset_all()
        with pytest.raises(ConnectionResetError):
            line.recv(100)
    assert proxy.connections == 0


def test_delayed_reply_is_held_back_until_the_delay_is_over(proxy: Proxy, server: Server) -> None:
    with line_to(proxy) as held, line_to(proxy) as late:
        assert ask(held) == ask(late) == PONG
        proxy.delay(3600)
        held.sendall(b"SET proxy:delayed 1 EX 60\r\n")
        eventually(lambda: server.command("EXISTS", "proxy:delayed"), what="the request passes at once")
        assert_silent(held)
        proxy.delay(0.05)
        assert ask(late) == PONG
        proxy.heal()
        assert ask(late) == PONG


def test_lost_reply_leaves_the_request_done(proxy: Proxy, server: Server) -> None:
    with line_to(proxy) as line:
        assert ask(line, b"SET proxy:counter 0 EX 60\r\n") == b"+OK\r\n"
        proxy.drop_replies(1)
        with pytest.raises(ConnectionResetError):
            ask(line, b"INCR proxy:counter\r\n")
    assert server.command("GET", "proxy:counter") == b"1"


def test_every_connection_that_lost_a_reply_is_reset(proxy: Proxy) -> None:
    with line_to(proxy) as first, line_to(proxy) as second:
        assert ask(first) == ask(second) == PONG
        proxy.drop_replies(2)
        first.sendall(PING)
        eventually(lambda: proxy.replies_to_drop == 1, what="the first reply is swallowed")
        for line in (second, first):
            with pytest.raises(ConnectionResetError):
                ask(line)


def test_proxy_of_a_dead_server_resets_and_serves_again_after_its_restart(tmp_path: Path) -> None:
    with Server(directory=tmp_path) as server, Proxy("127.0.0.1", server.port) as proxy:
        with line_to(proxy) as line:
            client_id(line)
            server.kill()
            assert line.recv(100) == b""
        with pytest.raises(ConnectionResetError), line_to(proxy) as line:  # may come while connecting
            line.recv(100)
        server.start()
        assert answers(proxy)


def test_closed_proxy_refuses_connections(server: Server) -> None:
    proxy = Proxy("127.0.0.1", server.port)
    with line_to(proxy):
        proxy.close()
        proxy.close()
        with pytest.raises(ConnectionRefusedError):
            line_to(proxy)
