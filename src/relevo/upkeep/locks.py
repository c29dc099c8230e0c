"""Locks with an owner and a TTL: one process at a time sweeps the bus, or purges a queue."""

from __future__ import annotations

from relevo.store.keys import QueueKeys
from relevo.store.plan import Call


def lock(keys: QueueKeys, owner: str, lock_ms: int) -> Call[bool]:
    """Take the lock, unless another owner has it: whether it is ours."""
    script = keys.script("upkeep/take_lock")
    return Call([owner, lock_ms], bool, script, keys.of(script), repeatable=False)


def unlock(keys: QueueKeys, owner: str) -> Call[bool]:
    """Release the lock, unless another owner has it by now: whether it was ours."""
    script = keys.script("upkeep/release_lock")
    return Call([owner], bool, script, keys.of(script))
