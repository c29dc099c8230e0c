"""The lists of queues and pools: names by their last use."""

from __future__ import annotations

from collections.abc import Sequence

from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.store.scripts import Script, script

#: The list of queues ends a month after its last use; a worker or an enqueue puts a queue back on it.
LISTED_MS = 30 * 86_400_000
#: What makes a queue or pool worth listing: jobs and entities, records, and what an operator or a schedule left there.
_HELD = (
    *("jobs", "done", "dead", "cancelled", "expired", "bin", "flows", "letters", "errands", "idle", "instances"),
    *("schedules", "limits", "pauses", "paused", "entities"),
)


def register(key: bytes, names: Sequence[str | bytes], enlist: Script | None = None) -> Call[int]:
    """Put queues on a list and extend its TTL: how many there are. `enlist`: the script, if a test has its own."""
    return Call([LISTED_MS, *names], int, enlist or script("engine/list_names"), (key,))


def listed(key: bytes) -> Call[list[str]]:
    """The names on a list, in order of their last use."""
    return Call([b"ZRANGE", key, 0, -1], lambda names: [name.decode(errors="replace") for name in names])


def unused(key: bytes, most: int, before_ms: int) -> Call[list[tuple[bytes, int]]]:
    """The first names on a list that were not used since a time, and when they were last used."""

    def decode(reply: list[bytes]) -> list[tuple[bytes, int]]:
        return [(name, int(float(used))) for name, used in zip(reply[::2], reply[1::2], strict=True)]

    # Not ZRANGEBYSCORE: workers have no right to it, and need none.
    return Call([b"ZRANGE", key, b"-inf", before_ms, b"BYSCORE", b"LIMIT", 0, most, b"WITHSCORES"], decode)


def holds_something(queue: QueueKeys) -> Call[bool]:
    """True if a queue or pool still holds jobs, entities, records or settings."""
    return Call([b"EXISTS", *map(queue.key, _HELD)], bool)


def unlist(key: bytes, name: str | bytes, seen_ms: int) -> Call[bool]:
    """Take a queue off a list, unless it was used since that time: whether it was removed."""
    return Call([name, seen_ms], bool, script("engine/unlist_name"), (key,))
