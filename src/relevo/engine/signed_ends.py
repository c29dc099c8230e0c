"""Ends of jobs: the signatures of records, of replies to callbacks, and of results that other jobs take."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.job import Record, State, write
from relevo.engine.message import Fault
from relevo.engine.replies import NOT_KEPT, reply_of
from relevo.signing.keyring import Keyring
from relevo.signing.signer import Signer

#: Between a result that another job takes and its proof. No JSON contains it.
_PARTED = b"\x1e"


def signed_text(status: str, result: bytes, fault: Fault | None) -> bytes:
    """The text that is signed. Of a cancelled job only the reason: the canceller knows nothing else of its record."""
    if status == "cancelled":
        return write([status, fault.reason if fault is not None else ""])
    return write([status, fault]) + b"\n" + result


def _text_of(record: Record) -> bytes:
    reply = reply_of(record)
    return signed_text(reply.status, bytes(record.result), reply.error)


_DONE, _DONE_NOT_KEPT = signed_text("done", b"", None), _text_of(Record(State.DONE))


def done_signature_field(signer: Signer, id: str, result: bytes) -> bytes:
    """The field `signature` for the record of a job that is done. An empty result: its task keeps none."""
    text = _DONE + result if result else _DONE_NOT_KEPT
    return b',"signature' + signer.signature_field("end", id, text)[len(b',"s') :]


def signed_record(signer: Signer, id: str, record: Record) -> Record:
    """A record with its signature."""
    return msgspec.structs.replace(record, signature=signer.sign("end", id, _text_of(record)))


def cancelled_by_hand(signer: Signer | None, id: str, reason: str = "cancelled") -> str:
    """The signature of a cancellation, whose record a script writes; '': no keys. Any process with a key may cancel."""
    if signer is None:
        return ""
    return signer.sign_as_any("end", id, signed_text("cancelled", b"", Fault("", reason=reason)))


def verify_record(signer: Signer, id: str, record: Record) -> str:
    """What is wrong with the signature of a record; '': it is good."""
    if record.reason == NOT_KEPT and record.state is not State.DONE:  # the signed text of one that is done is the same
        return "its reason is one of jobs that are done, and its state is another"
    status = "cancelled" if record.state is State.CANCELLED else ""
    return _verify(signer, id, status, _text_of(record), record.signature)


def verify_end(signer: Signer, id: str, status: str, result: bytes, fault: Fault | None, signature: str) -> str:
    """What is wrong with the signature of a reply to a callback; '': it is good."""
    return _verify(signer, id, status, signed_text(status, result, fault), signature)


def _verify(signer: Signer, id: str, status: str, text: bytes, signature: str) -> str:
    return signer.verify("end", id, text, signature, service=None if status == "cancelled" else signer.owner)


class Input(Struct, frozen=True):
    """The result of one job that another job takes."""

    raw: bytes
    #: The job that gave it, the place of its queue, and the signature of its end; '': it is not signed.
    parent: str = ""
    place: str = ""
    signature: str = ""

    def verify(self, keyring: Keyring) -> str:
        """What is wrong with its signature; '': it is the result of that job."""
        signer = signer_at(keyring, self.place) if self.signature else None
        if signer is None:
            return "a result that it takes bears no signature"
        return verify_end(signer, self.parent, "done", self.raw, None, self.signature)


def passed_on(raw: bytes, parent: str, place: str, signature: str) -> bytes:
    """A result as it is stored for the job that takes it."""
    return raw + _PARTED + write([parent, place, signature]) if signature else raw


def input_of(text: bytes) -> Input:
    """Read such a result."""
    raw, parted, proof = text.partition(_PARTED)
    if not parted:
        return Input(raw)
    try:
        return Input(raw, *msgspec.json.decode(proof, type=tuple[str, str, str]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Input(raw)


def late_proof(signer: Signer, id: str, member: str, place: str) -> str:
    """The proof that a job may join a workflow late: signed for the job or workflow that waits for it."""
    return signer.sign("late", id, f"{member} {place}".encode())


def verify_late(signer: Signer, id: str, member: str, taken: Input, proof: str) -> str:
    """What is wrong with such a proof, or with the result of that member; '': nothing."""
    if taken.parent != member:
        return "a result that it takes is not the result of the job that joined"
    return signer.verify("late", id, f"{member} {taken.place}".encode(), proof, service=signer.owner)


def signer_at(keyring: Keyring, place: str) -> Signer | None:
    """The signer of a place that was read from the store; None: it is no place."""
    return _signer_at(keyring, place) if place.count(":") >= 2 else None


@lru_cache(maxsize=1024)
def _signer_at(keyring: Any, place: str) -> Signer:
    return Signer(keyring, place)
