"""Ends of jobs: what a signature of a record, of a reply or of a result that is passed on covers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from relevo.model.job import Record, State, write
from relevo.model.message import Fault
from relevo.model.replying import NOT_KEPT, reply_of
from relevo.signing.keyring import Keyring
from relevo.signing.signer import Signer

#: Between a result that is passed on and who vouches for it. No JSON holds it.
_PARTED = b"\x1e"


def said(status: str, result: bytes, fault: Fault | None) -> bytes:
    """What is signed of an end, as a text. Why it was cancelled is all that the one who cancels knows of it."""
    if status == "cancelled":
        return write([status, fault.reason if fault is not None else ""])
    return write([status, fault]) + b"\n" + result


def _said_by(record: Record) -> bytes:
    reply = reply_of(record)
    return said(reply.status, bytes(record.result), reply.error)


_DONE, _DONE_FOR_NOBODY = said("done", b"", None), _said_by(Record(State.DONE))


def done_mark(signer: Signer, id: str, result: bytes) -> bytes:
    """A field for the record of a job that went well. Without a result: none is kept of its task."""
    text = _DONE + result if result else _DONE_FOR_NOBODY
    return b',"signature' + signer.mark("end", id, text)[len(b',"s') :]


def signed_record(signer: Signer, id: str, record: Record) -> Record:
    """A record with its signature."""
    return msgspec.structs.replace(record, signature=signer.sign("end", id, _said_by(record)))


def cancelled_by_hand(signer: Signer | None, id: str, reason: str = "cancelled") -> str:
    """The signature for a record that a script writes; '': none is needed. Any process with a key may cancel."""
    return "" if signer is None else signer.sign_as_any("end", id, said("cancelled", b"", Fault("", reason=reason)))


def doubt_of_record(signer: Signer, id: str, record: Record) -> str:
    """What is wrong with what a record says of a job's end; '': it is believed."""
    if record.reason == NOT_KEPT and record.state is not State.DONE:  # else the end of one that is done would do for it
        return "it says that it failed for a reason that only jobs have which are done"
    status = "cancelled" if record.state is State.CANCELLED else ""
    return _doubt(signer, id, status, _said_by(record), record.signature)


def doubt_of_end(signer: Signer, id: str, status: str, result: bytes, fault: Fault | None, signature: str) -> str:
    """The same of what a callback is told."""
    return _doubt(signer, id, status, said(status, result, fault), signature)


def _doubt(signer: Signer, id: str, status: str, text: bytes, signature: str) -> str:
    return signer.doubt("end", id, text, signature, service=None if status == "cancelled" else signer.owner)


class Input(Struct, frozen=True):
    """A result of one job that another one takes."""

    raw: bytes
    #: Whose result it is, by id and place of its queue, and the signature of its end; '': it is not signed.
    parent: str = ""
    place: str = ""
    signature: str = ""

    def doubt(self, keyring: Keyring) -> str:
        """What is wrong with it; '': it is the result of that job."""
        signer = signer_at(keyring, self.place) if self.signature else None
        if signer is None:
            return "a result that it takes bears no signature"
        return doubt_of_end(signer, self.parent, "done", self.raw, None, self.signature)


def passed_on(raw: bytes, parent: str, place: str, signature: str) -> bytes:
    """A result as it is passed on."""
    return raw + _PARTED + write([parent, place, signature]) if signature else raw


def input_of(text: bytes) -> Input:
    """Read a result that was passed on."""
    raw, parted, proof = text.partition(_PARTED)
    if not parted:
        return Input(raw)
    try:
        return Input(raw, *msgspec.json.decode(proof, type=tuple[str, str, str]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Input(raw)


def late_proof(signer: Signer, id: str, member: str, place: str) -> str:
    """That a job in another place may join what waits for it: signed for the one that waits."""
    return signer.sign("late", id, f"{member} {place}".encode())


def doubt_of_late(signer: Signer, id: str, member: str, taken: Input, proof: str) -> str:
    """What is wrong with such a proof, and with whose result is taken for that of the member; '': nothing."""
    if taken.parent != member:
        return "a result that it takes is not that of the job that was let join"
    return signer.doubt("late", id, f"{member} {taken.place}".encode(), proof, service=signer.owner)


def signer_at(keyring: Keyring, place: str) -> Signer | None:
    """What signs at a place that is read from the store; None: it is none."""
    return _signer_at(keyring, place) if place.count(":") >= 2 else None


@lru_cache(maxsize=1024)
def _signer_at(keyring: Any, place: str) -> Signer:
    return Signer(keyring, place)
