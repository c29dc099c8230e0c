"""Locks with an owner and an end: one process at a time sweeps the bus, or purges a queue."""

from __future__ import annotations

from relevo.store.keys import QueueKeys
from relevo.store.plan import Call


def lock(keys: QueueKeys, owner: str, lock_ms: int) -> Call[bool]:
    """Be the one who does it, unless somebody else is: whether we are."""
    script = keys.script("lock")
    return Call([owner, lock_ms], bool, script, keys.of(script), repeatable=False)


def unlock(keys: QueueKeys, owner: str) -> Call[bool]:
    """Give it back, unless somebody else has it by now: whether it was ours."""
    script = keys.script("unlock")
    return Call([owner], bool, script, keys.of(script))
