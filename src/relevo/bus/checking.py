"""Whether a message may be worked on: signed by somebody we know, and answered to nobody but its sender."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from relevo.errors import OptionError
from relevo.model.job import NO_JSON, Envelope
from relevo.model.message import Fault
from relevo.model.names import is_bus_name, parse
from relevo.model.replying import signed_part
from relevo.store.settlement import Held

if TYPE_CHECKING:
    from relevo.app import Relevo


def refusal(app: Relevo, queue: str, held: Held) -> tuple[str, str] | None:
    """Why it may not, as the reason of a dead letter and a sentence; None: it may. Nobody is told of a refused one."""
    envelope = held.envelope
    assert envelope is not None
    signer = app.bus.signer
    if signer.is_on and is_bus_name(queue):
        beside = bytes(envelope.kwargs) if envelope.takes == "claimed" else b""
        if not signer.is_good(held.id, envelope.target, envelope.signature, held.body, beside):
            found = "a signature that is not right" if envelope.signature else "no signature"
            return "bad_signature", f"the message bears {found}; the setting `signing_keys` says whom we believe"
    headers = envelope.headers
    if signer.is_on and headers is not None and headers.intent == "callback" and envelope.takes == "taken":
        reply = _end_of(envelope)
        if reply is not None and not signer.is_good_end(headers.causation, *reply):
            return "bad_signature", "the reply is not signed by anybody whom the setting `signing_keys` names"
    if headers is not None and (headers.reply_to or headers.callback):
        settings = app.settings
        why = _wrong_address(settings.prefix, settings.env, headers.reply_to, headers.source, headers.intent)
        if why:
            return "bad_reply_to", f"reply_to {headers.reply_to!r:.120}: {why}"
    return None


class _End(Struct):
    """What a callback is told of a message's end."""

    status: str
    result: Raw = NO_JSON
    error: Fault | None = None
    signature: str = ""


def _end_of(envelope: Envelope) -> tuple[bytes, str] | None:
    """What was signed and the signature; None where nobody can sign: a deadline, or a message somebody removed."""
    try:
        (end,) = msgspec.json.decode(envelope.args, type=tuple[_End])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b"", ""
    if end.status in ("timeout", "cancelled") and not bytes(end.result) and not end.signature:
        return None
    return signed_part(end.status, bytes(end.result), end.error), end.signature


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
