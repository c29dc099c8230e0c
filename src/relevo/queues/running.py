"""The longest-running jobs of many queues: chosen by their claims, so that only those few are read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from relevo.engine.job import State
from relevo.engine.job_store import Claim, read_claim, readable
from relevo.queues.store import Listed
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps

#: Running jobs of one queue whose start is read: more than most fleets run. A claim is short, so this costs the server
#: a fraction of a millisecond.
OF_A_QUEUE = 500
#: The same for all queues together; many busy queues share it equally.
OF_ALL = 5_000


class Longest(Struct, frozen=True):
    """The longest-running jobs, the longest first."""

    #: Each with its queue.
    jobs: list[tuple[str, Listed]]
    #: Queue -> how many of its running jobs were read.
    looked_at: dict[str, int]
    #: At most so many of each queue.
    of_each: int


def longest(queues: Mapping[str, QueueKeys], count: int) -> Steps[Longest]:
    """The `count` longest-running jobs of these queues.

    The set of running jobs is ordered by lease, which each renewal changes. The start is in their claims.
    """
    each = min(OF_A_QUEUE, max(count, OF_ALL // max(1, len(queues))))
    fronts: list[list[bytes]] = yield Ahead(
        Call([b"ZRANGE", keys.key("running"), 0, each - 1]) for keys in queues.values()
    )
    ids = {name: front for name, front in zip(queues, fronts, strict=True) if front}
    texts: list[list[bytes | None]] = yield Ahead(
        Call([b"HMGET", queues[name].key("claims"), *some]) for name, some in ids.items()
    )
    claims: list[tuple[Claim, str, bytes]] = []
    for (name, some), held in zip(ids.items(), texts, strict=True):
        for id, text in zip(some, held, strict=True):
            claim = read_claim(text) if text else None
            if claim is not None:  # else it has ended since
                claims.append((claim, name, id))
    first = sorted(claims, key=lambda one: (one[0].since_ms, one[2]))[:count]
    bodies: list[bytes | None] = yield Ahead(Call([b"HGET", queues[name].key("jobs"), id]) for _, name, id in first)
    jobs = [
        (name, Listed(id.decode(), State.RUNNING, readable(body), body, claim=claim))
        for (claim, name, id), body in zip(first, bodies, strict=True)
        if body is not None
    ]
    return Longest(jobs, {name: len(some) for name, some in ids.items()}, each)
