"""Whether a message may be worked on: signed by somebody we know, and answered to nobody but its sender."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from relevo.errors import OptionError
from relevo.model.names import is_bus_name, parse
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
    if headers is not None and headers.reply_to and headers.intent in ("send", "request"):
        settings = app.settings
        why = _wrong_address(settings.prefix, settings.env, headers.reply_to, headers.source, headers.intent)
        if why:
            return "bad_reply_to", f"reply_to {headers.reply_to!r:.120}: {why}"
    return None


@lru_cache(maxsize=4096)  # most messages come from a few processes
def _wrong_address(prefix: str, env: str, reply_to: str, source: str, intent: str) -> str:
    try:
        address = parse(reply_to, prefix=bool(prefix), env=bool(env))
    except OptionError as error:
        return str(error)
    if (address.prefix, address.env) != (prefix, env):
        return f"it is not under {prefix}:{env}, as we are"
    if address.kind != ("responses" if intent == "request" else "callbacks"):
        return f"{address.kind} are not where a {intent} is answered"
    if address.service != source:
        return f"it belongs to {address.service}, and the message says that it is from {source or 'nobody'}"
    return ""
