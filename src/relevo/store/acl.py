"""Users for an ACL file of Redis or Valkey: which commands each role needs, on which keys.

The commands of a role are read from the scripts that it calls, since the server checks the commands inside of scripts,
too. For the same reason a user who may write to a key may write anything to it: these rights keep mistakes, other apps'
programs and dangerous commands away, but not an attacker who has the password (docs/security.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, TypeAlias

from msgspec import Struct

from relevo.store import scripts
from relevo.text.names import encode

Role: TypeAlias = Literal["producer", "worker", "service", "monitor"]

#: The scripts of a dry-run purge, those of a purge that acts, and those of pools.
_LOOKING = {
    "upkeep/find_old_jobs",
    "upkeep/find_orphans",
    "queues/count_jobs",
    "pools/count_entities",
    "pools/list_entities",
    "pools/find_unplaced",
}
_PURGING = _LOOKING | {
    "upkeep/purge_jobs",
    "upkeep/take_back_jobs",
    "engine/lead",
    "engine/remember",
    "pools/move_entity",
    "pools/fail_entity",
    "pools/remove_entity",
    "pools/expire_entity",
    "pools/add_entity",
    "pools/update_entity",
    "pools/revive_entity",
}
_ENQUEUING = {
    "engine/push",
    "engine/push_with_options",
    "engine/agree_format",
    "engine/list_names",
    "engine/read_job",
    "engine/wait_for_end",
    "engine/watch_jobs",
    "bus/publish_event",
    "bus/deliver_events",
    "bus/log_events",
    "engine/take_outbox",
}
_WORKING = {
    *_ENQUEUING,
    "engine/announce_worker",
    "engine/turn",
    "engine/renew_leases",
    "engine/rest",
    "engine/stop_waiting",
    "engine/release_leases",
    "engine/write_logs",
    "engine/publish_events",
    "engine/change_job",
    "engine/claim_job",
    "engine/cancel_jobs",
    "workflows/announce_members",
    "workflows/notify_dependents",
    "workflows/register_dependents",
    "queues/clear_queue",
    "queues/promote_jobs",
    "checkpoints/write_checkpoint",
    "schedules/fire_ticks",
    "schedules/register_schedule",
    "schedules/remove_schedule",
    "schedules/pause_schedule",
    "limits/count_failures",
    "limits/count_running",
    "bus/renew_subscriptions",
    "bus/remove_subscription",
    "upkeep/sweep_subscriptions",
    "bus/close_subscription",
    "health/measure_queue",
    "health/sample_counters",
    "health/keep_report",
    "metrics/add_timings",
    "queues/count_jobs",
    "engine/unlist_name",
    "engine/register_offers",
    *_PURGING,
}
_ON_THE_BUS = {
    "bus/send_message",
    "bus/send_requests",
    "bus/store_data",
    "bus/store_callback",
    "bus/report_progress",
    "upkeep/clean_conversation",
    "bus/add_spans",
    "bus/measure_lag",
}

#: The scripts that each role calls.
SCRIPTS: dict[Role, set[str]] = {
    "producer": _ENQUEUING,
    "worker": _WORKING,
    "service": _WORKING | _ON_THE_BUS,
    "monitor": {
        "queues/count_jobs",
        "queues/list_jobs",
        "queues/walk_jobs",
        "engine/read_job",
        "dead/list_letters",
        "dead/read_error_groups",
        "health/measure_queue",
        "bus/measure_lag",
        *_LOOKING,
    },
}
_PLAIN_OF_WORKERS = {
    *("ping", "time", "info", "subscribe", "blpop", "set", "del", "zadd", "zrem", "pexpire"),
    *("hget", "hset", "hmget", "hdel", "zrange", "mget"),  # jobs that depend on others, workflows, schedules, health
    *("zcount", "hgetall", "get", "hscan", "exists"),  # metrics, purges, pools, lists of queues
}
#: The commands that each role calls without a script.
PLAIN: dict[Role, set[str]] = {
    "producer": {"ping", "time", "subscribe", "zadd", "zrange", "mget", "pexpire"},
    "worker": _PLAIN_OF_WORKERS,
    "service": _PLAIN_OF_WORKERS | {"zrangebyscore", "xrange", "xrevrange", "unlink"},
    "monitor": {
        *("ping", "time", "info", "get", "mget", "hget", "hmget", "hgetall", "hkeys", "hscan", "getrange", "lrange"),
        *("zcount", "zmscore", "zrange", "zrevrange", "zrangebyscore", "xrevrange", "hlen", "cluster|countkeysinslot"),
    },
}
#: They find the node of a key, also while its slot moves. A server outside a cluster refuses them anyway.
_OF_CLUSTERS = {"cluster|slots", "asking"}


class User(Struct, frozen=True, kw_only=True):
    """A user of the server, without a password."""

    name: str
    #: Everything behind the password.
    rights: str

    def line(self, password: str) -> str:
        """Its line in an ACL file."""
        return f"user {self.name} on >{password} {self.rights}"


#: A user that is off cannot log in. It keeps its rights: Redis 7.0 reads its append-only file with them.
DEFAULT = "user default off resetpass ~* &* +@all"
OPERATOR = User(name="operator", rights="~* &* +@all")


def commands(role: Role) -> list[str]:
    """The commands that a role needs: `hget`, `zadd`, …"""
    found = {"eval", "evalsha", *PLAIN[role], *_OF_CLUSTERS}
    for name in SCRIPTS[role]:
        found |= called_by(scripts.script(name).text.decode())
    return sorted(found)


def called_by(text: str) -> set[str]:
    """The commands of a script: the first argument of each `call`, which may be chosen by `and … or`.

    Commands that only store/lua/include/guard.lua calls are left out: the guard works without them.
    """
    calls = re.findall(r"(?:(?<![\w.])|redis\.p)call\(([^,()]+)", text)
    return {word.lower() for call in calls for word in re.findall(r"'([A-Z]+)'", call)}


def monitor(prefix: str, env: str) -> User:
    """A user that may read everything under a prefix and env."""
    bus = _glob(prefix, env)
    return _user("monitor", "monitor", [f"{{{bus}}}:*", f"{{{bus}:*}}:*"], [])


def of_app(prefix: str, env: str, app: str) -> list[User]:
    """Two users of an app: one that enqueues jobs, one that runs them."""
    bus, own = _glob(prefix, env), _glob(prefix, env, app)
    keys = [f"{{{own}}}:*", f"{{{own}:actions:*}}:*", *_of_bus(bus)]
    return [_user(f"{app}-{role}", role, keys, [f"{{{own}}}:inbox:*"]) for role in ("producer", "worker")]


def of_service(
    prefix: str, env: str, app: str, services: Iterable[str], calls: Iterable[str], called_by: Iterable[str]
) -> User:
    """The user of a process on the bus: the services it runs, those it sends to, and those it replies to.

    It may use the action queues of services it sends to, the callback queues of services it replies to, and the
    channels on which those wait.
    """
    bus, own = _glob(prefix, env), _glob(prefix, env, app)
    keys, channels = [f"{{{own}}}:*", *_of_bus(bus)], [f"{{{own}}}:inbox:*"]
    for service in dict.fromkeys((app, *services)):
        keys.append(f"{{{_glob(prefix, env, service)}:*}}:*")
    for kind, others in (("actions", calls), ("callbacks", called_by)):
        for other in dict.fromkeys(others):
            name = _glob(prefix, env, other)
            keys += f"{{{name}:{kind}}}:*", f"{{{name}:*:{kind}}}:*"
    channels += [f"{{{_glob(prefix, env, other)}}}:inbox:*" for other in dict.fromkeys(called_by)]
    return _user(f"{app}-service", "service", keys, channels)


def _of_bus(bus: str) -> list[str]:
    """The lists of the bus, and the queues of events, but neither the audit trail nor what services are asked."""
    events = (f"{{{bus}:*:notifications}}:*", f"{{{bus}:*:notifications:*}}:*")
    # The hash tag that scripts receive; all lists that do not begin with the letter of `audit`, and one that does.
    return [f"{{{bus}}}:", f"{{{bus}}}:[^a]*", f"{{{bus}}}:aside*", *events]


def _user(name: str, role: Role, keys: Iterable[str], channels: Iterable[str]) -> User:
    parts = ["resetchannels", *(f"~{key}" for key in keys), *(f"&{channel}" for channel in channels), "-@all"]
    return User(name=name, rights=" ".join([*parts, *(f"+{command}" for command in commands(role))]))


def _glob(*parts: str) -> str:
    """An address as a part of a pattern."""
    names = (encode(part, what="name") for part in parts if part)
    return ":".join(re.sub(r"[\\*?\[\]^]", r"\\\g<0>", name) for name in names)
