"""Dead letters signed anew: those that come from another queue or env, and those that an operator vouches for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from relevo.dead.walk import Letter
from relevo.errors import JobError
from relevo.model.job import Envelope, Proof, write
from relevo.signing import Signer, checkpoints
from relevo.signing.bodies import digest_of, doubt_of
from relevo.signing.ends import doubt_of_late, input_of, late_proof, signer_at
from relevo.store import carried
from relevo.store.jobs import readable
from relevo.store.plan import Steps

if TYPE_CHECKING:
    from relevo.app import Relevo


def signed_copy(signer: Signer, id: str, envelope: Envelope) -> bytes:
    """A body under the signature of the owner of its queue."""
    return signer.signed("copy", id, write(msgspec.structs.replace(envelope, signature="")))


def moved(
    signer: Signer, from_place: str, id: str, body: bytes, beside: Mapping[str, str]
) -> tuple[bytes, dict[str, str]]:
    """What was signed for another place, and what it carries, signed for this one. What was not stays as it is."""
    old, envelope, known = signer_at(signer.keyring, from_place), readable(body), dict(beside)
    if old is None or envelope is None or doubt_of(old, id, body, envelope):
        return body, known
    for name, text in beside.items():
        if name.startswith(("s:", "p:")):
            value, doubt = checkpoints.read(old, id, name, text.encode())
            if not doubt:
                known[name] = checkpoints.signed(signer, id, name, value).decode()
        elif name.startswith("l:"):
            member = name[2:]
            taken = input_of(beside.get(f"#{member}", "").encode())
            if not doubt_of_late(old, id, member, taken, text):
                known[name] = late_proof(signer, id, member, taken.place)
    return signed_copy(signer, id, envelope), known


def vouched_for(app: Relevo, letter: Letter, envelope: Envelope) -> Steps[bytes]:
    """The body of a letter as it is run again by somebody who knows who made it: signed, if it is not."""
    keys, body = app.keys_of(letter.queue), bytes(letter.record.body)
    if keys.signer is None or not doubt_of(keys.signer, letter.id, body, envelope):
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
        proof = Proof(made_ms=(yield from app.now_ms()))
    return signed_copy(keys.signer, letter.id, msgspec.structs.replace(envelope, proof=proof))
