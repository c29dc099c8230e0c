"""`relevo doctor` against real servers, each with one fault."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.store import server_verdicts as verdicts
from relevo.store.server_facts import Facts, gather
from tests.eventually import PATIENCE, eventually
from tests.proxy import Proxy
from tests.servers import Server, free_port
from tests.system.shell import Output, relevo

#: Documented addresses that no machine has: bound to if possible (the minus), so nothing is opened to anybody.
PUBLIC = "127.0.0.1 -192.0.2.1"
FIT = {"appendonly": "yes"}
SLOW_MS = verdicts.SLOW_MS


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is busy or stands still does not make the server's connection slow or its clock wrong."""
    monkeypatch.setattr(verdicts, "SLOW_MS", 1_000.0 * PATIENCE)
    monkeypatch.setattr(verdicts, "CLOCKS_APART_MS", 1_000.0 * PATIENCE)


def examined(server: Server, url: str | None = None) -> tuple[Output, dict[str, dict[str, Any]]]:
    """The output of doctor in JSON, and its checks by name."""
    seen = relevo("doctor", "--json", url=url or server.url)
    assert seen.err == ""
    return seen, {check["name"]: check for check in seen.json["checks"]}


def ill(checks: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: check["level"] for name, check in checks.items() if check["level"] != "ok"}


def test_good_server_passes_every_check(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        seen, checks = examined(server)
        assert (seen.code, seen.json["level"], ill(checks)) == (0, "ok", {})
        assert seen.json["server"] == f"127.0.0.1:{server.port}"
        assert set(seen.json) == {"server", "data_dir", "level", "checks"} and seen.json["data_dir"] is None
        assert set(checks["version"]) == {"name", "level", "found", "what_to_do"}
        text = relevo("doctor", "--name", "shop", url=server.url)  # an app may be named, and is not needed
        assert (text.code, text.err) == (0, "")
        assert [line.split()[:2] for line in text.out.splitlines()[2:]] == [["ok", name] for name in checks]


def test_a_server_without_an_append_only_file_is_a_warning(server: Server) -> None:
    seen, checks = examined(server)
    assert (seen.code, ill(checks)) == (1, {"persistence": "warning"})
    text = relevo("doctor", url=server.url)
    assert text.code == 1
    assert "→ set `appendonly yes`" in text.out


def test_an_evicting_server_is_critical(engine: str, tmp_path: Path) -> None:
    """Maxmemory-policy other than noeviction, before and after it did harm."""
    config = {**FIT, "maxmemory-policy": "allkeys-lru", "maxmemory": "64mb"}
    with Server(engine, directory=tmp_path, config=config) as server:
        seen, checks = examined(server)
        assert (seen.code, ill(checks)) == (2, {"eviction": "critical"})
        server.command("CONFIG", "SET", "maxmemory", "4mb")
        for number in range(100):
            server.command("SET", f"key{number}", "x" * 100_000)
        seen, checks = examined(server)
        assert seen.code == 2
        assert (checks["evicted"]["level"], checks["memory"]["level"]) == ("critical", "warning")


def test_server_near_its_limit_of_connections_is_a_warning(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config={**FIT, "maxclients": "20"}) as server, ExitStack() as open:
        for _ in range(18):
            connection = open.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(b"PING\r\n")
            assert connection.recv(7) == b"+PONG\r\n"
        seen, checks = examined(server)
        assert (seen.code, ill(checks)) == (1, {"clients": "warning"})


def test_a_public_server_without_a_password_is_critical(engine: str, tmp_path: Path) -> None:
    config = {**FIT, "bind": PUBLIC, "protected-mode": "no"}
    with Server(engine, directory=tmp_path / "open", config=config) as server:
        seen, checks = examined(server)
        assert (seen.code, ill(checks)) == (2, {"access": "critical"})
        server.command("CONFIG", "SET", "protected-mode", "yes")
        seen, checks = examined(server)
        assert ill(checks) == {"access": "critical" if engine == "redis62" else "warning"}
    with Server(engine, directory=tmp_path / "closed", config={**config, "requirepass": "s3cret"}) as server:
        seen, checks = examined(server)
        assert (seen.code, ill(checks)) == (0, {})


def test_check_that_the_server_forbids_is_reported_as_unchecked(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        server.command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-config", "-acl")
        seen, checks = examined(server, f"redis://shop:pw@127.0.0.1:{server.port}/0")
        unchecked = {"access", "replay"} if engine == "redis7" else {"access"}  # only there the default user matters
        assert (seen.code, ill(checks)) == (0, dict.fromkeys(unchecked, "unknown"))
        assert "could not check" in checks["access"]["found"]


def test_a_server_that_may_not_be_examined_at_all_is_critical(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config=FIT) as server:
        server.command("ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*", "+@all", "-info")
        seen = relevo("doctor", url=f"redis://shop:pw@127.0.0.1:{server.port}/0")
        assert (seen.code, seen.out) == (2, "")
        assert "ACL" in seen.err


def test_a_server_that_cannot_write_to_its_disk_is_critical(engine: str, tmp_path: Path) -> None:
    """MISCONF. A directory stands where the snapshot should go."""
    with Server(engine, directory=tmp_path, config={**FIT, "save": "3600 1"}) as server:
        (tmp_path / "dump.rdb").mkdir()
        server.command("BGSAVE")
        eventually(lambda: server.command("INFO", "persistence")["rdb_last_bgsave_status"] == "err")
        seen, checks = examined(server)
        assert (seen.code, ill(checks)) == (2, {"disk": "critical"})
        assert "snapshot" in checks["disk"]["found"]
        (tmp_path / "dump.rdb").rmdir()  # so that the server can stop in good order


def test_a_replica_is_critical(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config={**FIT, "replicaof": f"127.0.0.1 {free_port()}"}) as server:
        seen, checks = examined(server)
        assert (seen.code, checks["role"]["level"]) == (2, "critical")
        assert "read-only replica, its link to the primary is down" in checks["role"]["found"]


def test_slow_connection_is_a_warning(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "SLOW_MS", SLOW_MS)
    with Server(engine, directory=tmp_path, config=FIT) as server, Proxy("127.0.0.1", server.port) as proxy:
        proxy.delay(4 * SLOW_MS / 1000)
        seen, checks = examined(server, proxy.url)
        assert (seen.code, ill(checks)) == (1, {"latency": "warning"})


def test_facts_hold_no_password(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path, config={"requirepass": "s3cret"}) as server:
        app = Relevo("facts", url=server.url)
        facts: Facts = gather(app.engine.run)
        app.close()
    assert facts.config is not None
    assert facts.config["requirepass"] == "set"
    assert "s3cret" not in repr(facts)
    assert len(facts.round_trips_ms) == 20
