"""Whether a message may be worked on: what it is told is signed, it is in time, and its sender gets the answer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from relevo.errors import OptionError
from relevo.model.job import NO_JSON, Attempt, Envelope, Proof
from relevo.model.message import Fault, Headers
from relevo.model.names import parse
from relevo.model.outcome import Happened, Raised, TooLate, Unrunnable
from relevo.model.verdicts import Snooze
from relevo.signing import Keyring
from relevo.signing.ends import doubt_of_end, signer_at
from relevo.signing.signer import kind_said
from relevo.store.settlement import Held

if TYPE_CHECKING:
    from relevo.app import Relevo

#: A callback is called so much before its deadline, by clocks that need not quite agree, without waiting for it.
CLOCKS_MS = 1_000


def refusal(app: Relevo, queue: str, held: Held, now_ms: int) -> Happened | None:
    """What happens to it instead; None: it may be worked on. Nobody is told of one that is refused."""
    envelope = held.envelope
    assert envelope is not None
    headers, proof = envelope.headers, envelope.proof or _NO_PROOF
    if headers is None:
        return None
    attempt = Attempt("refused", held.worker, now_ms, now_ms)
    if app.keyring and headers.intent == "callback" and envelope.takes == "taken":
        doubt = _doubt_of_reply(app.keyring, envelope, headers, proof)
        if doubt == _UNSAID and proof.until_ms is not None:
            # That it was too late nobody can sign, but everybody can see.
            if proof.until_ms - now_ms > CLOCKS_MS:
                return _wait(proof.until_ms - now_ms, attempt)
        elif doubt:
            return Unrunnable("bad_signature", _saying(attempt, f"the reply: {doubt}"))
    if app.keyring and headers.intent == "event":
        subscribed = app.bus.subscribed(queue)
        if subscribed is not None and now_ms > (proof.made_ms or 0) + subscribed.retention_ms:
            return TooLate()
    if headers.reply_to or headers.callback:
        settings = app.settings
        why = _wrong_address(settings.prefix, settings.env, headers.reply_to, headers.source, headers.intent)
        if why:
            return Unrunnable("bad_reply_to", _saying(attempt, f"reply_to {headers.reply_to!r:.120}: {why}"))
    return None


_NO_PROOF = Proof()
#: What a reply says that nobody has signed, for nobody has answered.
_UNSAID = "it says that there is no answer"


def _saying(attempt: Attempt, message: str) -> Attempt:
    return msgspec.structs.replace(attempt, message=message[:2000])


def _wait(ms: int, attempt: Attempt) -> Raised:
    """It was told too early that there is no answer: it waits until that is so."""
    told = msgspec.structs.replace(attempt, how="snoozed", message="no answer, said unsigned and before its deadline")
    return Raised(Snooze(ms / 1000), told)


class _End(Struct):
    """What a callback is told of a message's end."""

    status: str
    result: Raw = NO_JSON
    error: Fault | None = None
    signature: str = ""


def _doubt_of_reply(keyring: Keyring, envelope: Envelope, headers: Headers, proof: Proof) -> str:
    """What is wrong with the reply that a callback is called with; '': nothing."""
    try:
        (end,) = msgspec.json.decode(envelope.args, type=tuple[_End])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "it cannot be read"
    if kind_said(envelope.signature) == "timeout" and end.status != "timeout":
        return "it is not for the action that is called at the deadline"
    if end.status == "timeout" and not (bytes(end.result) or end.error or end.signature):
        return _UNSAID
    signer = signer_at(keyring, proof.answers)
    if signer is None:
        return "the callback does not say whose answer it takes"
    return doubt_of_end(signer, headers.causation, end.status, bytes(end.result), end.error, end.signature)


@lru_cache(maxsize=4096)  # most messages come from a few processes
def _wrong_address(prefix: str, env: str, reply_to: str, source: str, intent: str) -> str:
    try:
        address = parse(reply_to, prefix=bool(prefix), env=bool(env))
    except OptionError as error:
        return str(error)
    if (address.prefix, address.env) != (prefix, env):
        return f"it is not under {prefix}:{env}, as we are"
    kinds = {"request": "responses", "send": "callbacks"}
    if address.kind != kinds.get(intent, ""):
        return f"{address.kind} are not where a {intent} is answered"
    if address.service != source:
        return f"it belongs to {address.service}, and the message says that it is from {source or 'nobody'}"
    return ""
