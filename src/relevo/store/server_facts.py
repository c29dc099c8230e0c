"""Facts about a server and this machine, mostly for `relevo doctor`. Nothing here changes the server.

A server may forbid some of the questions (CONFIG on hosted ones); then the answer is None, and the checks say so
instead of guessing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.metadata import version as installed
from typing import Any

from msgspec import Struct

from relevo.errors import ServerRefused
from relevo.store.embedded.program import Engine
from relevo.store.plan import Call

#: Round trips measured: enough for a median that one hiccup does not move.
LOOKS = 20
LIBRARIES = ("hiredis", "redis")
_ASKED = ("appendfsync", "bind", "maxclients", "protected-mode", "requirepass")


class Facts(Struct, frozen=True, kw_only=True):
    """The input of all checks."""

    info: dict[str, str]
    #: None: the server forbids CONFIG. A password is kept as "set", never as itself.
    config: dict[str, str] | None = None
    #: ACL flags of the user that connects without a name; None: the server forbids the question.
    default_user: tuple[str, ...] | None = None
    #: What that user may do, as ACL rules; None: the server forbids the question.
    default_rights: str | None = None
    round_trips_ms: tuple[float, ...] = ()
    #: The server's clock minus this machine's.
    clock_ahead_ms: float = 0.0
    libraries: dict[str, str] = {}


def info() -> Call[dict[str, str]]:
    """The reply to INFO, as names and values."""
    return Call([b"INFO"], _lines)


def _lines(reply: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


class Memory(Struct, frozen=True):
    """A server's memory: used, limit, policy, evictions."""

    used: int = 0
    #: 0: it has no limit of its own.
    most: int = 0
    policy: str = "noeviction"
    #: Keys deleted to make room, since the server started.
    evicted: int = 0


def memory() -> Call[Memory]:
    """The server's memory and evictions."""

    def decode(reply: bytes) -> Memory:
        found = _lines(reply)
        used, most, evicted = (int(found.get(name, 0)) for name in ("used_memory", "maxmemory", "evicted_keys"))
        return Memory(used, most, found.get("maxmemory_policy", "noeviction"), evicted)

    return Call([b"INFO"], decode)


def setting(name: str) -> Call[str | None]:
    """One line of the server's configuration; None if it knows no such line."""
    # Texts, not bytes: bytes in second place would be taken for the key that chooses a cluster's node.
    return Call(["CONFIG", "GET", name], lambda reply: reply[1].decode(errors="replace") if reply else None)


def default_user() -> Call[tuple[tuple[str, ...], str]]:
    """The ACL flags of the default user, and its rights."""

    def decode(reply: list[Any]) -> tuple[tuple[str, ...], str]:
        fields = dict(zip(reply[::2], reply[1::2], strict=True))
        return tuple(flag.decode() for flag in fields[b"flags"]), fields[b"commands"].decode()

    return Call(["ACL", "GETUSER", "default"], decode)


def engine(info: Mapping[str, str]) -> Engine:
    """Which server it is. Valkey also gives a redis_version, for old clients."""
    if "valkey_version" in info:
        return Engine("valkey", info["valkey_version"])
    return Engine("redis", info.get("redis_version", "0"))


def gather(run: Callable[[Call[Any]], Any]) -> Facts:
    """Ask the server for all facts. `run` performs a call and blocks; about 30 of them."""
    about = run(info())
    user = _unless_forbidden(lambda: run(default_user()))
    looks = [_look_at_clock(run) for _ in range(LOOKS)]
    return Facts(
        info=about,
        config=_unless_forbidden(lambda: _config(run)),
        default_user=user[0] if user else None,
        default_rights=user[1] if user else None,
        round_trips_ms=tuple(took for took, _ in looks),
        clock_ahead_ms=min(looks)[1],  # of the quickest round trip, which has the smallest error
        libraries={name: installed(name) for name in LIBRARIES},
    )


def _look_at_clock(run: Callable[[Call[Any]], Any]) -> tuple[float, float]:
    """How long a round trip took, and how far the server's clock is ahead of ours; both in milliseconds."""
    # Not PING: a server whose disk fails refuses it, and doctor must still get an answer then.
    began = time.time_ns()
    seconds, micros = run(Call([b"TIME"]))
    ended = time.time_ns()
    return (ended - began) / 1e6, int(seconds) * 1e3 + int(micros) / 1e3 - (began + ended) / 2e6


def _config(run: Callable[[Call[Any]], Any]) -> dict[str, str]:
    found = {name: run(setting(name)) for name in _ASKED}
    if found["requirepass"]:
        found["requirepass"] = "set"
    return {name: value for name, value in found.items() if value is not None}


def _unless_forbidden(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except ServerRefused:
        return None
