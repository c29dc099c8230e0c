"""Checkpoints of a job: results of its steps and positions of its loops, kept with what else it carries."""

from __future__ import annotations

from typing import Literal

from relevo.checkpoints.signing import read, signed
from relevo.errors import BadSignature
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: s: the result of a step, p: the position of a loop.
Kind = Literal["s", "p"]


def keep(queue: QueueKeys, id: str, token: int, kind: Kind, name: str, value: bytes) -> Call[bool]:
    """Write a checkpoint; False: the token is not the one of the job's lease, and nothing was written."""
    script, field = queue.script("checkpoints/write_checkpoint"), f"{kind}:{name}"
    return Call([id, token, field, signed(queue.signer, id, field, value)], bool, script, queue.of(script))


def kept(queue: QueueKeys, id: str, kind: Kind, name: str) -> Call[bytes | None]:
    """The value kept under this name; None: nothing. BadSignature if a process without a key wrote it."""
    field = f"{kind}:{name}"

    def decode(text: bytes | None) -> bytes | None:
        value, error = read(queue.signer, id, field, text) if text is not None else (None, "")
        if error:
            raise BadSignature(f"checkpoint {name!r:.80} of job {id}: {error}")
        return value

    return Call([b"HGET", queue.own("carried", id), field], decode)
