"""Signs dead letters again: those imported from another queue or env, and those that an operator trusts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from relevo.checkpoints import signing as checkpoints
from relevo.dead.walk import Letter
from relevo.engine import carried
from relevo.engine.job import Envelope, Proof, write
from relevo.engine.job_store import readable
from relevo.engine.signed_bodies import digest_of, verify_body
from relevo.engine.signed_ends import input_of, late_proof, signer_at, verify_late
from relevo.errors import JobError
from relevo.signing import Signer
from relevo.store.plan import Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def signed_copy(signer: Signer, id: str, envelope: Envelope) -> bytes:
    """A body signed by the owner of its queue."""
    return signer.signed("copy", id, write(msgspec.structs.replace(envelope, signature="")))


def moved(
    signer: Signer, from_place: str, id: str, body: bytes, beside: Mapping[str, str]
) -> tuple[bytes, dict[str, str]]:
    """A body and the data it carries, signed for this place if the signature for the other place is good."""
    old, envelope, known = signer_at(signer.keyring, from_place), readable(body), dict(beside)
    if old is None or envelope is None or verify_body(old, id, body, envelope):
        return body, known
    for name, text in beside.items():
        if name.startswith(("s:", "p:")):
            value, error = checkpoints.read(old, id, name, text.encode())
            if not error:
                known[name] = checkpoints.signed(signer, id, name, value).decode()
        elif name.startswith("l:"):
            member = name[2:]
            taken = input_of(beside.get(f"#{member}", "").encode())
            if not verify_late(old, id, member, taken, text):
                known[name] = late_proof(signer, id, member, taken.place)
    return signed_copy(signer, id, envelope), known


def vouched_for(engine: Engine, letter: Letter, envelope: Envelope) -> Steps[bytes]:
    """The body of a dead letter with a good signature: its own, or one of the operator's process."""
    keys, body = engine.keys_of(letter.queue), bytes(letter.record.body)
    if keys.signer is None or not verify_body(keys.signer, letter.id, body, envelope):
        return body
    proof = Proof()
    if envelope.takes == "claim":
        data: bytes | None = yield carried.claimed(keys, letter.id)
        proof = Proof(data=digest_of(data or b""))
    elif envelope.takes:
        raise JobError(
            f"dead letter {letter.id} cannot be signed: its first argument came from another job and would have to be "
            "signed, too. Make the job, or its workflow, anew"
        )
    if envelope.headers is not None and envelope.headers.intent == "event":
        proof = Proof(made_ms=(yield from engine.now_ms()))
    return signed_copy(keys.signer, letter.id, msgspec.structs.replace(envelope, proof=proof))
