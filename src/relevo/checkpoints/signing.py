"""Checkpoints of jobs: the result of a step, or the position of a loop, with a signature."""

from __future__ import annotations

from relevo.signing.signer import Signer

#: Between the value and its signature. No JSON holds it.
_PARTED = b"\x1e"


def signed(signer: Signer | None, id: str, name: str, value: bytes) -> bytes:
    """A checkpoint as it is kept."""
    if signer is None:
        return value
    return value + _PARTED + signer.sign("checkpoint", id, _text(name, value)).encode()


def read(signer: Signer | None, id: str, name: str, text: bytes) -> tuple[bytes, str]:
    """A checkpoint, and what is wrong with its signature; '': nothing, or none is needed."""
    value, _, signature = text.partition(_PARTED)
    if signer is None:
        return value, ""
    bears = signature.decode(errors="replace")
    return value, signer.verify("checkpoint", id, _text(name, value), bears, service=signer.owner)


def _text(name: str, value: bytes) -> bytes:
    return name.encode(errors="replace") + b"\n" + value
