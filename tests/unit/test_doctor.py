"""Doctor's verdicts, one danger at a time, from facts alone."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.cli.doctor import worst
from relevo.store import server_verdicts as checks
from relevo.store.server_facts import Facts, engine
from relevo.store.server_verdicts import CHECKS, Level, Verdict, judge

OK, UNKNOWN, WARNING, CRITICAL = Level.OK, Level.UNKNOWN, Level.WARNING, Level.CRITICAL
INFO = {
    "redis_version": "7.2.4",
    "valkey_version": "8.1.0",
    "role": "master",
    "connected_slaves": "0",
    "maxmemory_policy": "noeviction",
    "maxmemory": "0",
    "used_memory": "1048576",
    "evicted_keys": "0",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "rdb_last_bgsave_status": "ok",
    "connected_clients": "3",
    "maxclients": "10000",
}
CONFIG = {
    "appendfsync": "everysec",
    "bind": "127.0.0.1 -::1",
    "port": "6379",
    "tls-port": "0",
    "protected-mode": "yes",
    "requirepass": "",
    "maxclients": "10000",
}
OPEN = ("on", "nopass", "sanitize-payload")
CLOSED = ("on", "sanitize-payload")


def facts(info: dict[str, str | None] | None = None, **others: Any) -> Facts:
    """A server in good health, but for what is given; None takes a line of INFO away."""
    lines = {name: value for name, value in {**INFO, **(info or {})}.items() if value is not None}
    healthy: dict[str, Any] = {
        "config": CONFIG,
        "default_user": OPEN,
        "default_rights": "+@all",
        "round_trips_ms": (0.2,) * 20,
        "libraries": {"hiredis": "3.4.2", "redis": "6.4.0"},
    }
    return Facts(info=lines, **{**healthy, **others})


def redis_of(version: str) -> dict[str, str | None]:
    return {"valkey_version": None, "redis_version": version}


@pytest.mark.parametrize(
    ("version", "rights", "level"),
    [
        ("7.0.15", "+@all", Level.OK),
        ("7.0.15", "-@all", Level.CRITICAL),
        ("7.0.15", None, Level.UNKNOWN),
        ("6.2.14", "-@all", Level.OK),
        ("7.2.0", "-@all", Level.OK),
    ],
)
def test_an_append_only_file_that_would_not_be_read_back_is_found(
    version: str, rights: str | None, level: Level
) -> None:
    """Redis 7.0 replays as the default user and drops what that user may not do."""
    found = checks.replay(facts({**redis_of(version), "aof_enabled": "1"}, default_rights=rights))
    assert found.level is level


def test_a_healthy_server_passes_every_check() -> None:
    verdicts = judge(facts())
    assert [verdict.level for verdict in verdicts] == [OK] * len(CHECKS)
    assert len({verdict.name for verdict in verdicts}) == len(CHECKS)
    assert worst(verdicts) is OK


def test_every_bad_verdict_says_what_to_do() -> None:
    ill = facts(
        {
            "valkey_version": "7.0.0", "role": "slave", "maxmemory_policy": "allkeys-lru", "evicted_keys": "1",
            "aof_enabled": "0", "rdb_last_bgsave_status": "err", "maxmemory": "1048576", "maxclients": "3",
        },
        config={**CONFIG, "bind": "*"},
        round_trips_ms=(9.0,),
        clock_ahead_ms=5000.0,
        libraries={"hiredis": "3.3.0", "redis": "5.0"},
    )  # fmt: skip
    # with an append-only file, so that what may go wrong with one can be seen too
    replayed = checks.replay(facts({**redis_of("7.0.15"), "aof_enabled": "1"}, default_rights="-@all"))
    others = [verdict for verdict in judge(ill) if verdict.name != "replay"]
    assert len(others) == len(CHECKS) - 1
    for verdict in (*others, replayed):
        assert verdict.level in (WARNING, CRITICAL), verdict
        assert verdict.what_to_do, verdict


@pytest.mark.parametrize(
    ("info", "level"),
    [
        (redis_of("6.2.0"), OK),
        (redis_of("6.0.16"), CRITICAL),
        (redis_of("10.0.1"), OK),
        ({"valkey_version": "7.2.0"}, OK),
        ({"valkey_version": "7.2.0-rc1"}, OK),
        ({"valkey_version": "7.1.9"}, CRITICAL),
        ({"valkey_version": None, "redis_version": None}, CRITICAL),
    ],
)
def test_an_old_server_is_critical(info: dict[str, str | None], level: Level) -> None:
    assert checks.version(facts(info)).level is level


def test_valkey_is_known_although_it_also_gives_a_redis_version() -> None:
    assert str(engine(INFO)) == "valkey 8.1.0"
    assert str(engine({"redis_version": "7.0.15"})) == "redis 7.0.15"


@pytest.mark.parametrize(("policy", "level"), [("noeviction", OK), ("volatile-ttl", CRITICAL), (None, UNKNOWN)])
def test_a_server_that_may_evict_jobs_is_critical(policy: str | None, level: Level) -> None:
    assert checks.eviction(facts({"maxmemory_policy": policy})).level is level


def test_evicted_keys_are_critical() -> None:
    verdict = checks.evicted(facts({"evicted_keys": "12345"}))
    assert verdict.level is CRITICAL
    assert "12,345 keys" in verdict.found


@pytest.mark.parametrize(
    ("enabled", "fsync", "level"),
    [("1", "everysec", OK), ("1", "always", OK), ("1", "no", WARNING), ("0", "everysec", WARNING), (None, "", UNKNOWN)],
)
def test_a_server_that_forgets_is_a_warning(enabled: str | None, fsync: str, level: Level) -> None:
    found = facts({"aof_enabled": enabled}, config={**CONFIG, "appendfsync": fsync})
    assert checks.persistence(found).level is level


def test_a_forbidden_configuration_leaves_what_it_would_tell_unknown() -> None:
    assert checks.persistence(facts(config=None)).level is OK
    verdict = checks.access(facts(config=None, default_user=None))
    assert verdict.level is UNKNOWN
    assert "could not check" in verdict.found


@pytest.mark.parametrize("field", ["aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status"])
def test_a_failed_write_to_disk_is_critical(field: str) -> None:
    assert checks.disk(facts({field: "err"})).level is CRITICAL


@pytest.mark.parametrize(
    ("link", "read_only", "words"),
    [("up", "1", "read-only replica"), ("down", "1", "is down"), ("up", "0", "writable replica")],
)
def test_a_replica_is_critical(link: str, read_only: str, words: str) -> None:
    verdict = checks.role(facts({"role": "slave", "master_link_status": link, "slave_read_only": read_only}))
    assert verdict.level is CRITICAL
    assert words in verdict.found
    assert ("repair the link" in verdict.what_to_do) is (link == "down")


@pytest.mark.parametrize(("used", "limit", "level"), [(900, 1000, OK), (901, 1000, WARNING), (10**9, 0, OK)])
def test_memory_near_its_limit_is_a_warning(used: int, limit: int, level: Level) -> None:
    assert checks.memory(facts({"used_memory": str(used), "maxmemory": str(limit)})).level is level


@pytest.mark.parametrize(("used", "limit", "level"), [("89", "100", OK), ("90", "100", WARNING), ("3", None, UNKNOWN)])
def test_connections_near_their_limit_are_a_warning(used: str, limit: str | None, level: Level) -> None:
    found = facts({"connected_clients": used, "maxclients": limit}, config=None)
    assert checks.clients(found).level is level


def test_the_limit_of_connections_may_come_from_the_configuration() -> None:
    found = facts({"connected_clients": "10", "maxclients": None}, config={**CONFIG, "maxclients": "10"})
    assert checks.clients(found).level is WARNING


@pytest.mark.parametrize(
    ("config", "user", "level"),
    [
        ({"bind": "127.0.0.1 -::1"}, OPEN, OK),
        ({"bind": "localhost"}, OPEN, OK),
        ({"bind": "0.0.0.0", "port": "0", "tls-port": "6380", "protected-mode": "no"}, OPEN, CRITICAL),
        ({"bind": "0.0.0.0", "protected-mode": "no"}, OPEN, CRITICAL),
        ({"bind": "0.0.0.0", "protected-mode": "no"}, CLOSED, OK),
        ({"bind": "0.0.0.0", "protected-mode": "no"}, ("off", "nopass"), OK),
        ({"bind": "* -::*", "protected-mode": "no"}, OPEN, CRITICAL),
        ({"bind": "", "protected-mode": "no"}, OPEN, CRITICAL),
        ({"bind": "127.0.0.1 10.0.0.5", "protected-mode": "no"}, OPEN, CRITICAL),
        ({"bind": "0.0.0.0", "protected-mode": "yes"}, OPEN, WARNING),
        ({"bind": "0.0.0.0", "protected-mode": "no"}, None, CRITICAL),  # ACL forbidden: requirepass decides
        ({"bind": "0.0.0.0", "protected-mode": "no", "requirepass": "set"}, None, OK),
    ],
)
def test_a_public_server_without_a_password_is_critical(
    config: dict[str, str], user: tuple[str, ...] | None, level: Level
) -> None:
    assert checks.access(facts(config={**CONFIG, **config}, default_user=user)).level is level


def test_a_server_on_a_unix_socket_is_open_to_this_machine_only_whatever_may_be_asked() -> None:
    assert checks.access(facts({"tcp_port": "0"}, config=None)).level is OK


def test_protected_mode_of_redis_6_looks_away_once_an_address_is_given() -> None:
    given = facts(redis_of("6.2.14"), config={**CONFIG, "bind": "10.0.0.5", "protected-mode": "yes"})
    assert checks.access(given).level is CRITICAL
    none = facts(redis_of("6.2.14"), config={**CONFIG, "bind": "", "protected-mode": "yes"})
    assert checks.access(none).level is WARNING


@pytest.mark.parametrize(
    ("took", "level"),
    [((5.0,), OK), ((5.1,), WARNING), ((0.1, 0.1, 900.0), OK), ((0.1, 9.0, 9.0), WARNING), ((), UNKNOWN)],
)
def test_a_slow_connection_is_a_warning_and_one_slow_reply_is_not(took: tuple[float, ...], level: Level) -> None:
    assert checks.latency(facts(round_trips_ms=took)).level is level


@pytest.mark.parametrize(("ahead", "level"), [(1000, OK), (-1000, OK), (1001, WARNING), (-3_600_000, WARNING)])
def test_clocks_that_differ_are_a_warning(ahead: float, level: Level) -> None:
    verdict = checks.clock(facts(clock_ahead_ms=ahead))
    assert verdict.level is level
    assert ("ahead of" in verdict.found) is (ahead > 0)


@pytest.mark.parametrize(
    ("hiredis", "redis", "level"), [("3.4.2", "6.4.0", OK), ("3.4.1", "8.0", WARNING), ("4.0", "6.3.9", WARNING)]
)
def test_old_libraries_are_a_warning(hiredis: str, redis: str, level: Level) -> None:
    assert checks.libraries(facts(libraries={"hiredis": hiredis, "redis": redis})).level is level


def test_the_worst_verdict_counts_and_an_unknown_one_does_not() -> None:
    def of(*levels: Level) -> list[Verdict]:
        return [Verdict("x", level, "") for level in levels]

    assert worst(of(OK, UNKNOWN)) is OK
    assert worst(of(OK, WARNING, UNKNOWN)) is WARNING
    assert worst(of(WARNING, CRITICAL, OK)) is CRITICAL
