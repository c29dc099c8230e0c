"""Checkpoints of a job: results of its steps and positions of its loops, kept with what else it carries."""

from __future__ import annotations

from typing import Literal

from relevo.store.carried import bag
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: s: the result of a step, p: the position of a loop.
Kind = Literal["s", "p"]


def keep(queue: QueueKeys, id: str, token: int, kind: Kind, name: str, value: bytes) -> Call[bool]:
    """Write a checkpoint; False: the token is not the one of the job's lease, and nothing was written."""
    script = queue.script("checkpoint")
    return Call([id, token, f"{kind}:{name}", value], bool, script, queue.of(script))


def kept(queue: QueueKeys, id: str, kind: Kind, name: str) -> Call[bytes | None]:
    """The value kept under this name; None: nothing."""
    return Call([b"HGET", bag(queue, id), f"{kind}:{name}"])
