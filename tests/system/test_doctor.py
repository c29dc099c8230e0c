"""Doctor at the bedside: real servers with each illness."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.store.facts import Facts, gather
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.servers import Server, free_port
from tests.system.shell import Output, relevo

#: Documented addresses that no machine has: bound to if possible (the minus), so nothing is opened to anybody.
PUBLIC = "127.0.0.1 -192.0.2.1"
FIT = {"appendonly": "yes"}


def examined(
    server: Server, url: str | None = None, *, is_far: bool = False
) -> tuple[Output, dict[str, dict[str, Any]]]:
    """What doctor says in JSON, and its checks by name.

    A machine that is busy with other tests may be slow for a moment: only a way that is slow each time is so.
    """
    for _ in range(20):
        told = relevo("doctor", "--json", url=url or server.url)
        assert told.err == ""
        checks = {check["name"]: check for check in told.json["checks"]}
        if is_far or checks["latency"]["level"] == "ok":
            break
    return told, checks


def ill(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["level"] for name, check in checks.items() if check["level"] != "ok"}


def test_a_fit_server_gets_a_clean_bill(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        told, checks = examined(server)
        assert (told.code, told.json["level"], ill(checks)) == (0, "ok", {})
        assert told.json["server"] == f"127.0.0.1:{server.port}"
        assert set(told.json) == {"server", "level", "checks"}
        assert set(checks["version"]) == {"name", "level", "found", "what_to_do"}
        text = eventually(
            lambda: told if (told := relevo("doctor", url=server.url)).code == 0 else None,
            what="no moment in which the machine is busy",
        )
        assert text.err == ""
        assert [line.split()[:2] for line in text.out.splitlines()[2:]] == [["ok", name] for name in checks]


def test_a_server_without_an_append_only_file_is_a_warning(server: Server) -> None:
    """No AOF."""
    told, checks = examined(server)
    assert (told.code, ill(checks)) == (1, {"persistence": "warning"})
    text = relevo("doctor", url=server.url)
    assert text.code == 1
    assert "→ set `appendonly yes`" in text.out


def test_an_evicting_server_is_critical(engine: str, tmp_path: Path) -> None:
    """Maxmemory-policy other than noeviction, before and after it did harm."""
    config = {**FIT, "maxmemory-policy": "allkeys-lru", "maxmemory": "64mb"}
    with Server(engine, directory=tmp_path, config=config) as server:
        told, checks = examined(server)
        assert (told.code, ill(checks)) == (2, {"eviction": "critical"})
        server.command("CONFIG", "SET", "maxmemory", "4mb")
        for number in range(100):
            server.command("SET", f"key{number}", "x" * 100_000)
        told, checks = examined(server)
        assert told.code == 2
        assert (checks["evicted"]["level"], checks["memory"]["level"]) == ("critical", "warning")


def test_a_nearly_full_server_is_a_warning(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        server.command("SET", "key", "x" * 20_000_000)
        used = int(server.command("INFO", "memory")["used_memory"])
        server.command("CONFIG", "SET", "maxmemory", str(used * 104 // 100))
        told, checks = examined(server)
        assert (told.code, ill(checks)) == (1, {"memory": "warning"})


def test_a_server_with_hardly_a_connection_left_is_a_warning(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config={**FIT, "maxclients": "20"}) as server, ExitStack() as open:
        for _ in range(18):
            connection = open.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(b"PING\r\n")
            assert connection.recv(7) == b"+PONG\r\n"
        told, checks = examined(server)
        assert (told.code, ill(checks)) == (1, {"clients": "warning"})


def test_a_public_server_without_a_password_is_critical(engine: str, tmp_path: Path) -> None:
    """No auth on non-loopback."""
    config = {**FIT, "bind": PUBLIC, "protected-mode": "no"}
    with Server(engine, directory=tmp_path / "open", config=config) as server:
        told, checks = examined(server)
        assert (told.code, ill(checks)) == (2, {"access": "critical"})
        server.command("CONFIG", "SET", "protected-mode", "yes")
        told, checks = examined(server)
        assert ill(checks) == {"access": "critical" if engine == "redis62" else "warning"}
    with Server(engine, directory=tmp_path / "closed", config={**config, "requirepass": "s3cret"}) as server:
        told, checks = examined(server)
        assert (told.code, ill(checks)) == (0, {})


def test_what_the_server_forbids_is_said_to_be_unchecked(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        server.command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-config", "-acl")
        told, checks = examined(server, f"redis://shop:pw@127.0.0.1:{server.port}/0")
        unchecked = {"access", "replay"} if engine == "redis7" else {"access"}  # only there the default user matters
        assert (told.code, ill(checks)) == (0, dict.fromkeys(unchecked, "unknown"))
        assert "could not check" in checks["access"]["found"]


def test_a_server_that_may_not_be_examined_at_all_is_critical(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        server.command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-info")
        told = relevo("doctor", url=f"redis://shop:pw@127.0.0.1:{server.port}/0")
        assert (told.code, told.out) == (2, "")
        assert "ACL" in told.err


def test_a_server_that_cannot_write_to_its_disk_is_critical(engine: str, tmp_path: Path) -> None:
    """MISCONF. A directory stands where the snapshot should go."""
    with Server(engine, directory=tmp_path, config={**FIT, "save": "3600 1"}) as server:
        (tmp_path / "dump.rdb").mkdir()
        server.command("BGSAVE")
        eventually(lambda: server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        told, checks = examined(server)
        assert (told.code, ill(checks)) == (2, {"disk": "critical"})
        assert "snapshot" in checks["disk"]["found"]
        (tmp_path / "dump.rdb").rmdir()  # so that the server can stop in good order


def test_a_replica_is_critical(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config={**FIT, "replicaof": f"127.0.0.1 {free_port()}"}) as server:
        told, checks = examined(server)
        assert (told.code, checks["role"]["level"]) == (2, "critical")
        assert "read-only replica, its link to the primary is down" in checks["role"]["found"]


def test_a_slow_way_to_the_server_is_a_warning(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server, Proxy("127.0.0.1", server.port) as proxy:
        proxy.delay(0.02)
        told, checks = examined(server, proxy.url, is_far=True)
        assert (told.code, ill(checks)) == (1, {"latency": "warning"})


def test_a_server_that_is_down_is_critical() -> None:
    told = relevo("doctor", url=f"redis://127.0.0.1:{free_port()}/0")
    assert (told.code, told.out) == (2, "")
    assert "cannot connect" in told.err


def test_facts_hold_no_password(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config={"requirepass": "s3cret"}) as server:
        app = Relevo("facts", url=server.url)
        facts: Facts = gather(app.run)
        app.close()
    assert facts.config is not None
    assert facts.config["requirepass"] == "set"
    assert "s3cret" not in repr(facts)
    assert len(facts.round_trips_ms) == 20


@pytest.mark.parametrize("words", [[], ["--name", "shop"]])
def test_doctor_needs_no_app(server: Server, words: list[str]) -> None:
    assert relevo("doctor", *words, url=server.url).out.startswith(f"server 127.0.0.1:{server.port}\n")
