"""Limits of the groups of a queue: said, taken back, paused, and looked at."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from msgspec import Struct

from relevo.model.limits import Limit, read_limit
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: Running jobs, or groups, that one call looks at.
CHUNK = 200
#: Limits of groups begin with it, so that others can have limits in the same keys one day.
_GROUP = "g:"


class GroupLimit(Struct, frozen=True):
    """The limit of a group, and how the group stands."""

    group: str
    #: How many of its jobs may run at once; None: any number.
    concurrency: int | None
    #: How fast they may start, such as `10/s`; None: as fast as workers take them.
    rate: str | None
    #: How many may start at once after a while without any; None without a rate.
    burst: int | None
    paused: bool
    running: int
    #: Jobs that would be ready if the group had no limit. They are counted among the waiting ones.
    parked: int


def limit(queue: QueueKeys, group: str, limit: Limit) -> Generator[Call[Any], Any, bool]:
    """Limit a group, or change its limit: whether that changed anything."""
    return _say(queue, group, "limit", limit.terms)


def unlimit(queue: QueueKeys, group: str) -> Call[bool]:
    """Take a group's limit away: whether it had one."""
    return _call(queue, group, "unlimit")


def pause(queue: QueueKeys, group: str) -> Generator[Call[Any], Any, bool]:
    """Start no more jobs of a group: whether that changed anything."""
    return _say(queue, group, "pause")


def resume(queue: QueueKeys, group: str) -> Call[bool]:
    """Start jobs of a group again: whether that changed anything."""
    return _call(queue, group, "resume")


def _say(queue: QueueKeys, group: str, does: str, terms: str = "") -> Generator[Call[Any], Any, bool]:
    changed: bool = yield _call(queue, group, does, terms)
    # Jobs that start from now on are counted as they do. Those that run already are counted here; twice does no harm.
    running: list[bytes] = yield Call([b"ZRANGE", queue.key("running"), 0, -1])
    for at in range(0, len(running), CHUNK):
        yield adopt(queue, group, running[at : at + CHUNK])
    return changed


def _call(queue: QueueKeys, group: str, does: str, terms: str = "") -> Call[bool]:
    script = queue.script("limit")
    return Call([_GROUP + group, does, terms], bool, script, queue.of(script))


def adopt(queue: QueueKeys, group: str, ids: list[bytes]) -> Call[int]:
    """Count those of these running jobs that are of the group: how many were not counted before."""
    script = queue.script("adopt")
    return Call([_GROUP + group, *ids], int, script, queue.of(script))


def limits(queue: QueueKeys) -> Generator[Call[Any], Any, list[GroupLimit]]:
    """All groups that have a limit or are paused, by name."""
    names: list[bytes] = yield Call([b"HKEYS", queue.key("limits")])
    groups = sorted(name.decode().removeprefix(_GROUP) for name in names)
    found: list[GroupLimit] = []
    for at in range(0, len(groups), CHUNK):
        found += yield gauge(queue, groups[at : at + CHUNK])
    return found


def gauge(queue: QueueKeys, groups: list[str]) -> Call[list[GroupLimit]]:
    """How these groups stand; those without a limit are left out."""
    script = queue.script("gauge")

    def decode(reply: list[Any]) -> list[GroupLimit]:
        rows = zip(groups, reply[::3], reply[1::3], reply[2::3], strict=True)
        return [_read(group, text.decode(), *counts) for group, text, *counts in rows if text]

    return Call([_GROUP + group for group in groups], decode, script, queue.of(script))


def _read(group: str, text: str, running: int, parked: int) -> GroupLimit:
    one = read_limit(text)
    rate = None if one.rate is None else str(one.rate)
    return GroupLimit(group, one.concurrency, rate, one.burst, one.paused, running, parked)
