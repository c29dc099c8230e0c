"""Signs what is stored in one queue, and says what is wrong with what is found there.

    {"t":"shop.pay","a":[7],"s":"v2.job.k1.<43 characters>"}

The signature is the last field of an object. It covers a version, the key's name, the kind, the place (prefix, env and
queue), the id, and everything before the signature. The kind is written out so that an error can name it; what is
believed of it is decided by who reads.
"""

from __future__ import annotations

import hmac
import re
from typing import Literal
from urllib.parse import unquote

from relevo.model.names import KINDS
from relevo.signing.keyring import Key, Keyring, ended

#: What is signed. A body: job, send, request, event, callback (and timeout, its form for a deadline), report, copy (a
#: body signed anew by the owner of its queue). Else: end (of a job), schedule, flow (the plan of a workflow), late (a
#: member that joins one), template (of reports).
Kind = Literal[
    "job", "send", "request", "event", "callback", "timeout", "report", "copy",
    "end", "schedule", "flow", "late", "template",
]  # fmt: skip

VERSION = "v2"
_TAIL = re.compile(rb',"s":"([^"\\]*)"\}\Z')
_LABEL = b"relevo signature 2"

_NONE = "it bears no signature, and with the setting `signing_keys` only what is signed is believed"
_EARLIER = "it was signed by an earlier release of relevo, whose signatures did not say where it belongs"
_WRONG = "its signature is not right: it was changed, or it was signed for another queue, env or id"


class Signer:
    """Of one queue. Made once per queue, and only where there are keys."""

    def __init__(self, keyring: Keyring, place: str) -> None:
        self.keyring = keyring
        #: `prefix:env:` and the name of the queue on the bus
        self.place = place
        head, env, owner, *rest = place.split(":")
        #: Whose queue it is: a service, or an app.
        self.owner = unquote(owner)
        at = next((n for n, part in enumerate(rest) if part in KINDS), len(rest) - 1)
        self.queue_kind = rest[at] if rest else ""
        #: of a subscription: its pattern
        self.pattern = unquote(rest[at + 1]) if self.queue_kind == "notifications" and rest[at + 1 :] else ""
        self._site = f"{head}:{env}:"
        self._begun: dict[tuple[Key, Kind], hmac.HMAC] = {}

    def sign(self, kind: Kind, id: str, text: bytes, *, service: str | None = None, topic: str = "") -> str:
        """The signature of a text. `service`: who says so, if not the owner of the queue."""
        return self._signature(self.keyring.key_of(self.owner if service is None else service), kind, id, text, topic)

    def sign_as_any(self, kind: Kind, id: str, text: bytes) -> str:
        """A signature for what any process with a key may say."""
        return self._signature(self.keyring.any_key(), kind, id, text, "")

    def mark(self, kind: Kind, id: str, text: bytes, *, service: str | None = None, topic: str = "") -> bytes:
        """The last field of an object that is open: `text` is all of it up to here."""
        return b',"s":"' + self.sign(kind, id, text, service=service, topic=topic).encode() + b'"'

    def signed(self, kind: Kind, id: str, text: bytes) -> bytes:
        """An object with its signature."""
        return text[:-1] + self.mark(kind, id, text[:-1]) + b"}"

    def doubt(
        self, kind: Kind, id: str, text: bytes, signature: str, *, service: str | None = None, topic: str = ""
    ) -> str:
        """What is wrong with a signature; '': it is good. `service`: who must have said so, None: any with a key."""
        version, _, rest = signature.partition(".")
        said, _, rest = rest.partition(".")
        name, _, mac = rest.rpartition(".")
        if not signature:
            return _NONE
        if version != VERSION or not name:
            return _EARLIER
        if said != kind:
            return f"it is signed as {said!r:.40}, and stands where {kind!r} is expected"
        doubt = self.keyring.doubt(name, service)
        if doubt:
            return doubt
        right = self._mac(self.keyring[name], kind, id, text, topic)
        return "" if hmac.compare_digest(mac.encode(errors="replace"), right) else _WRONG

    def doubt_of_object(self, kind: Kind, id: str, text: bytes) -> str:
        """The same of an object with its signature, by the owner of the queue."""
        tail = _TAIL.search(text)
        signature = tail[1].decode(errors="replace") if tail else ""
        return self.doubt(kind, id, text[: tail.start()] if tail else b"", signature, service=self.owner)

    def is_by_first_key(self, text: bytes) -> bool:
        """Whether an object is signed by the key with which the owner of the queue signs now."""
        tail = _TAIL.search(text)
        return tail is not None and tail[1].split(b".")[2:3] == [self.keyring.key_of(self.owner).name.encode()]

    def _signature(self, key: Key, kind: Kind, id: str, text: bytes, topic: str) -> str:
        return f"{VERSION}.{kind}.{key.name}.{self._mac(key, kind, id, text, topic).decode()}"

    def _mac(self, key: Key, kind: Kind, id: str, text: bytes, topic: str) -> bytes:
        """`topic`: of an event, which belongs to all who subscribed, in place of the queue."""
        begun = None if topic else self._begun.get((key, kind))
        if begun is None:
            place = f"{self._site}{topic}" if topic else self.place
            begun = key.begun(b"\n".join((_LABEL, key.name.encode(), kind.encode(), place.encode(), b"")))
            if not topic:
                self._begun[key, kind] = begun
        mac = begun.copy()
        mac.update(f"{id}\n".encode(errors="replace"))
        mac.update(text)
        return ended(mac)


def kind_said(signature: str) -> str:
    """As what something is signed, by its own word."""
    parts = signature.split(".", 2)
    return parts[1] if len(parts) == 3 else ""


def unmarked(text: bytes, signature: str) -> bytes | None:
    """An object up to its signature, which is its last field; None: it is not."""
    tail = b',"s":"' + signature.encode(errors="replace") + b'"}'
    return text[: -len(tail)] if text.endswith(tail) else None
