"""The jobs made in a conversation of the bus, queue by queue."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from msgspec import Struct

from relevo.engine.push import KEEP_MS
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.store.scripts import script

#: Entries looked at in one call.
PART = 500


class Left(Struct, frozen=True):
    """What a clean-up found in one queue."""

    removed: int = 0
    #: Still in use: waiting, scheduled, ready or running.
    living: int = 0
    #: Dead letters that were left for inspection.
    dead: int = 0


def enlist(key: bytes, queues: Sequence[str], ttl_ms: int) -> Call[int]:
    """Note queues in which a conversation makes jobs, on the list of that key."""
    return Call([ttl_ms, *queues], int, script("engine/list_names"), (key,))


def noted(bus: QueueKeys, conversation: str) -> Call[list[str]]:
    """The queues in which a conversation made jobs."""
    return Call([b"ZRANGE", bus.own("made", conversation), 0, -1], lambda reply: [name.decode() for name in reply])


def forget(bus: QueueKeys, conversation: str, queues: Sequence[str]) -> Call[int]:
    """Nothing of the conversation is left in these queues."""
    return Call([b"ZREM", bus.own("made", conversation), *queues])


def made(queue: QueueKeys, conversation: str) -> Call[list[str]]:
    """Ids of the jobs that a conversation made in a queue, oldest first; the newest ten thousand."""
    return Call([b"ZRANGE", queue.own("made", conversation), -10_000, -1], lambda reply: [id.decode() for id in reply])


def clean(queue: QueueKeys, conversation: str, *, dead: bool, dry_run: bool) -> Generator[Call[Any], Any, Left]:
    """Remove what is left of a conversation in one queue, in bounded steps. Live jobs are never touched."""
    script = queue.script("upkeep/clean_conversation")
    removed = living = buried = skip = 0
    while True:
        gone, lives, kept, more = yield Call(
            [KEEP_MS, conversation, int(dead), int(dry_run), PART, skip], tuple, script, queue.of(script)
        )
        removed, living, buried = removed + gone, living + lives, buried + kept
        skip += lives + kept + (gone if dry_run else 0)
        if not more:
            return Left(removed, living, buried)
