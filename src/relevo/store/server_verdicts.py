"""Whether a server is fit to keep jobs: one pure verdict for each danger, from the facts of `server_facts.py`."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from ipaddress import ip_address
from statistics import median

from msgspec import Struct

from relevo.store.server_facts import Facts, engine

#: The oldest servers whose commands the scripts use.
OLDEST = {"redis": (6, 2), "valkey": (7, 2)}
#: hiredis before 3.4.2 leaks memory with every pushed message; redis-py before 6.4 lacks options we set.
OLDEST_LIBRARIES = {"hiredis": (3, 4, 2), "redis": (6, 4)}
#: A round trip in one data centre takes well under 1 ms; with 5 ms one connection does 200 turns a second.
SLOW_MS = 5.0
#: Clocks kept by NTP differ by milliseconds. From a second on, a time of day given by one machine misleads another.
CLOCKS_APART_MS = 1_000.0
#: Share of a limit from which a busy day may exceed it.
NEARLY_FULL = 0.9


class Level(StrEnum):
    """How bad it is; `unknown`: the server did not let us look."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"


class Verdict(Struct, frozen=True):
    """What one check says."""

    name: str
    level: Level
    found: str
    what_to_do: str = ""


def version(facts: Facts) -> Verdict:
    """The scripts need commands that older servers lack."""
    found = engine(facts.info)
    least = OLDEST[found.engine]
    if _numbers(found.version) >= least:
        return Verdict("version", Level.OK, str(found))
    wanted = ".".join(map(str, least))
    return Verdict("version", Level.CRITICAL, str(found), f"upgrade: {found.engine} {wanted} is the oldest that works")


def role(facts: Facts) -> Verdict:
    """Jobs written to a replica are refused, or lost with the next synchronisation."""
    if facts.info.get("role") != "slave":
        replicas = int(facts.info.get("connected_slaves", 0))
        return Verdict("role", Level.OK, f"primary, {replicas} replica{'' if replicas == 1 else 's'}")
    link = facts.info.get("master_link_status", "unknown")
    mode = "read-only" if facts.info.get("slave_read_only", "1") == "1" else "writable"
    return Verdict(
        "role",
        Level.CRITICAL,
        f"a {mode} replica, its link to the primary is {link}",
        "let the URL name the primary, or the sentinels that know it (redis+sentinel://…)"
        + ("; and repair the link" if link != "up" else ""),
    )


def eviction(facts: Facts) -> Verdict:
    """A server that may evict keys deletes jobs when memory runs short."""
    policy = facts.info.get("maxmemory_policy")
    if policy is None:
        return Verdict("eviction", Level.UNKNOWN, "could not check: INFO does not tell maxmemory_policy")
    if policy == "noeviction":
        return Verdict("eviction", Level.OK, "maxmemory-policy is noeviction")
    return Verdict(
        "eviction",
        Level.CRITICAL,
        f"maxmemory-policy is {policy}: when memory is full, jobs are deleted silently",
        "set `maxmemory-policy noeviction` in the server's configuration; then a full server refuses new jobs instead",
    )


def evicted(facts: Facts) -> Verdict:
    """Keys that were evicted may have been jobs."""
    count = int(facts.info.get("evicted_keys", 0))
    if not count:
        return Verdict("evicted", Level.OK, "no key was evicted since the server started")
    return Verdict(
        "evicted",
        Level.CRITICAL,
        f"{count:,} keys were evicted since the server started: jobs may have been lost",
        "set `maxmemory-policy noeviction`, check what was enqueued, then `CONFIG RESETSTAT` ends this message",
    )


def persistence(facts: Facts) -> Verdict:
    """Without the append-only file a restart forgets the jobs since the last snapshot."""
    enabled = facts.info.get("aof_enabled")
    if enabled is None:
        return Verdict("persistence", Level.UNKNOWN, "could not check: INFO does not tell aof_enabled")
    if enabled != "1":
        return Verdict(
            "persistence",
            Level.WARNING,
            "the append-only file is off: a restart loses the jobs since the last snapshot, if there is one",
            "set `appendonly yes` and `appendfsync everysec`",
        )
    synced = (facts.config or {}).get("appendfsync", "")
    if synced == "no":
        return Verdict(
            "persistence",
            Level.WARNING,
            "appendfsync is no: a power failure loses what the system had not written yet, often 30 s",
            "set `appendfsync everysec` (at most two seconds) or `always` (nothing)",
        )
    return Verdict("persistence", Level.OK, f"append-only file on{', fsync ' + synced if synced else ''}")


def replay(facts: Facts) -> Verdict:
    """Redis 7.0 reads its append-only file back as the default user, and drops what that user may not do."""
    found = engine(facts.info)
    affected = found.engine == "redis" and (7, 0) <= _numbers(found.version) < (7, 2)
    if not affected or facts.info.get("aof_enabled") != "1":
        return Verdict("replay", Level.OK, f"{found} reads its append-only file back whatever users it has")
    if facts.default_rights is None:
        return Verdict("replay", Level.UNKNOWN, "could not check: the server does not let us read its users")
    if facts.default_rights == "+@all":
        return Verdict("replay", Level.OK, "the default user may do everything, so the file is read back whole")
    return Verdict(
        "replay",
        Level.CRITICAL,
        f"the default user has only {facts.default_rights}: {found} would drop every job at its next restart",
        "let it keep its rights and switch it off instead: `user default off ~* &* +@all`",
    )


def disk(facts: Facts) -> Verdict:
    """A server that cannot write to its disk refuses jobs, or will lose them."""
    failed = [
        what
        for what, field in (
            ("append-only file", "aof_last_write_status"),
            ("rewrite of the append-only file", "aof_last_bgrewrite_status"),
            ("snapshot", "rdb_last_bgsave_status"),
        )
        if facts.info.get(field, "ok") != "ok"
    ]
    if not failed:
        return Verdict("disk", Level.OK, "the last writes to disk went well")
    return Verdict(
        "disk",
        Level.CRITICAL,
        f"the last write failed: {', '.join(failed)}; the server may refuse jobs (MISCONF)",
        "look at the server's log; free disk space, or let its user write to `dir`",
    )


def memory(facts: Facts) -> Verdict:
    """A full server refuses new jobs."""
    used, limit = int(facts.info.get("used_memory", 0)), int(facts.info.get("maxmemory", 0))
    if not limit:
        return Verdict("memory", Level.OK, f"{_mebibytes(used)} used, no limit set")
    found = f"{_mebibytes(used)} of {_mebibytes(limit)} used ({used / limit:.0%})"
    if used <= limit * NEARLY_FULL:
        return Verdict("memory", Level.OK, found)
    return Verdict("memory", Level.WARNING, found, "raise `maxmemory`, add workers, or keep results for a shorter time")


def clients(facts: Facts) -> Verdict:
    """At the limit of connections, workers are turned away."""
    used = int(facts.info.get("connected_clients", 0))
    limit = int(facts.info.get("maxclients") or (facts.config or {}).get("maxclients") or 0)
    if not limit:
        return Verdict("clients", Level.UNKNOWN, f"{used:,} connected; could not check the limit")
    found = f"{used:,} of {limit:,} connections used"
    if used < limit * NEARLY_FULL:
        return Verdict("clients", Level.OK, found)
    return Verdict("clients", Level.WARNING, found, "raise `maxclients`, or find out who keeps so many connections")


def access(facts: Facts) -> Verdict:
    """A client that can write to the server can run any task with any arguments."""
    if facts.info.get("tcp_port") == "0":  # that of TLS, too
        return Verdict("access", Level.OK, "listens on a unix socket only")
    if facts.config is None or "bind" not in facts.config:
        return Verdict("access", Level.UNKNOWN, "could not check: the server does not let us read its configuration")
    config = facts.config
    bind = config["bind"].split() or ["*"]
    public = [address for address in bind if not _is_loopback(address)]
    if not public:
        return Verdict("access", Level.OK, f"listens on this machine only ({' '.join(bind)})")
    open_to_all = (
        not config.get("requirepass") if facts.default_user is None else {"on", "nopass"} <= set(facts.default_user)
    )
    if not open_to_all:
        return Verdict("access", Level.OK, f"listens on {' '.join(public)}, a password is needed")
    todo = "set a password (`requirepass`, or ACL users with `user default off`), or `bind 127.0.0.1 -::1`"
    if _is_protected(facts):
        found = f"listens on {' '.join(public)} without a password; only protected mode keeps others out"
        return Verdict("access", Level.WARNING, found, todo)
    found = f"listens on {' '.join(public)} without a password: every host that reaches it can run tasks and read jobs"
    return Verdict("access", Level.CRITICAL, found, todo)


def _is_protected(facts: Facts) -> bool:
    config = facts.config or {}
    if config.get("protected-mode") != "yes":
        return False
    # Before Redis 7, protected mode was off as soon as an address to bind to was configured.
    found = engine(facts.info)
    return found.engine == "valkey" or _numbers(found.version) >= (7,) or not config.get("bind")


def latency(facts: Facts) -> Verdict:
    """Each turn of a worker and each enqueue waits for one round trip."""
    if not facts.round_trips_ms:
        return Verdict("latency", Level.UNKNOWN, "not measured")
    middle = median(facts.round_trips_ms)
    found = f"{middle:.2f} ms per round trip (median of {len(facts.round_trips_ms)})"
    if middle <= SLOW_MS:
        return Verdict("latency", Level.OK, found)
    return Verdict("latency", Level.WARNING, found, "run workers near the server; look at its load and at SLOWLOG")


def clock(facts: Facts) -> Verdict:
    """Delays and leases go by the server's clock; times that people give go by theirs."""
    apart = facts.clock_ahead_ms
    where = "ahead of" if apart > 0 else "behind"
    if abs(apart) <= CLOCKS_APART_MS:
        return Verdict("clock", Level.OK, f"the server's clock is {abs(apart):.0f} ms {where} this machine's")
    found = f"the server's clock is {abs(apart) / 1000:.1f} s {where} this machine's"
    return Verdict(
        "clock", Level.WARNING, found, "let NTP set both clocks; jobs given for a time of day run off by that"
    )


def libraries(facts: Facts) -> Verdict:
    """Known faults of older client libraries."""
    found = ", ".join(f"{name} {number}" for name, number in facts.libraries.items())
    old = [name for name, number in facts.libraries.items() if _numbers(number) < OLDEST_LIBRARIES[name]]
    if not old:
        return Verdict("libraries", Level.OK, found)
    wanted = " ".join(f'"{name}>={".".join(map(str, OLDEST_LIBRARIES[name]))}"' for name in old)
    return Verdict("libraries", Level.WARNING, found, f"pip install --upgrade {wanted}")


CHECKS: tuple[Callable[[Facts], Verdict], ...] = (
    version,
    role,
    eviction,
    evicted,
    persistence,
    replay,
    disk,
    memory,
    clients,
    access,
    latency,
    clock,
    libraries,
)


def judge(facts: Facts) -> list[Verdict]:
    """The verdict of every check."""
    return [check(facts) for check in CHECKS]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address.removeprefix("-")).is_loopback
    except ValueError:
        return address == "localhost"


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
