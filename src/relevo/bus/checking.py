"""Checks of a message before it is handled: a signed reply, its deadline, and an answer that goes to its sender."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from relevo.engine.job import NO_JSON, Attempt, Envelope, Proof
from relevo.engine.message import Fault, Headers
from relevo.engine.outcome import Happened, Raised, TooLate, Unrunnable
from relevo.engine.settle import Held
from relevo.engine.signed_ends import signer_at, verify_end
from relevo.engine.verdicts import Snooze
from relevo.errors import OptionError
from relevo.signing import Keyring
from relevo.signing.signer import kind_of_signature
from relevo.text.names import parse

if TYPE_CHECKING:
    from relevo.bus.bus import Bus
    from relevo.engine.engine import Engine

#: A timeout is accepted so long before the deadline, since two clocks are compared.
CLOCKS_MS = 1_000


def refusal(engine: Engine, bus: Bus, queue: str, held: Held, now_ms: int) -> Happened | None:
    """The outcome of a message that is refused; None: it may be handled. No process is notified of a refused one."""
    envelope = held.envelope
    assert envelope is not None
    headers, proof = envelope.headers, envelope.proof or _NO_PROOF
    if headers is None:
        return None
    attempt = Attempt("refused", held.worker, now_ms, now_ms)
    if engine.keyring and headers.intent == "callback" and envelope.takes == "taken":
        error = _verify_reply(engine.keyring, envelope, headers, proof)
        if error == _NO_ANSWER and proof.until_ms is not None:
            # The server cannot sign the deadline: this worker's clock decides.
            if proof.until_ms - now_ms > CLOCKS_MS:
                return _wait(proof.until_ms - now_ms, attempt)
        elif error:
            return Unrunnable("bad_signature", _saying(attempt, f"the reply: {error}"))
    if engine.keyring and headers.intent == "event":
        subscribed = bus.subscribed(queue)
        if subscribed is not None and now_ms > (proof.made_ms or 0) + subscribed.retention_ms:
            return TooLate()
    if headers.reply_to or headers.callback:
        settings = engine.settings
        why = _wrong_address(settings.prefix, settings.env, headers.reply_to, headers.source, headers.intent)
        if why:
            return Unrunnable("bad_reply_to", _saying(attempt, f"reply_to {headers.reply_to!r:.120}: {why}"))
    return None


_NO_PROOF = Proof()
#: A reply without a signature, because there was no answer in time.
_NO_ANSWER = "it claims that there was no answer in time"


def _saying(attempt: Attempt, message: str) -> Attempt:
    return msgspec.structs.replace(attempt, message=message[:2000])


def _wait(ms: int, attempt: Attempt) -> Raised:
    """The reply claims a timeout before the deadline: the callback waits for its deadline."""
    message = "an unsigned reply claimed a timeout before the deadline"
    return Raised(Snooze(ms / 1000), msgspec.structs.replace(attempt, how="snoozed", message=message))


class _End(Struct):
    """The reply that a callback is called with."""

    status: str
    result: Raw = NO_JSON
    error: Fault | None = None
    signature: str = ""


def _verify_reply(keyring: Keyring, envelope: Envelope, headers: Headers, proof: Proof) -> str:
    """What is wrong with the reply that a callback is called with; '': nothing."""
    try:
        (end,) = msgspec.json.decode(envelope.args, type=tuple[_End])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "it cannot be read"
    if kind_of_signature(envelope.signature) == "timeout" and end.status != "timeout":
        return "it is not for the action that is called at the deadline"
    if end.status == "timeout" and not (bytes(end.result) or end.error or end.signature):
        return _NO_ANSWER
    signer = signer_at(keyring, proof.answers)
    if signer is None:
        return "the callback does not name the queue of its message"
    return verify_end(signer, headers.causation, end.status, bytes(end.result), end.error, end.signature)


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
        return f"it belongs to {address.service}, but the message names {source or 'no service'} as its sender"
    return ""
