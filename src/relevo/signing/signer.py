"""Signs the objects stored in one queue, and verifies the signatures of those found there.

    {"t":"shop.pay","a":[7],"s":"v2.job.k1.<43 characters>"}

The signature is the last field of an object. It covers a version, the key's name, the kind, the place (prefix, env and
queue), the id, and everything before the signature. The kind is written out so that an error can name it; which kind
is accepted is the reader's decision.
"""

from __future__ import annotations

import hmac
import re
from typing import Literal
from urllib.parse import unquote

from relevo.signing.keyring import LENGTH, Key, Keyring
from relevo.text.names import KINDS

#: What is signed. A body: job, send, request, event, callback (and timeout, its form for a deadline), report, copy (a
#: body signed anew by the owner of its queue). Else: end (of a job), checkpoint, schedule, flow (the plan of a
#: workflow), late (a member that joins one), template (of reports).
Kind = Literal[
    "job", "send", "request", "event", "callback", "timeout", "report", "copy",
    "end", "checkpoint", "schedule", "flow", "late", "template",
]  # fmt: skip

VERSION = "v2"
_TAIL = re.compile(rb',"s":"([^"\\]*)"\}\Z')
_LABEL = "relevo signature 2"
_OPENS = b',"s":"'

_UNSIGNED = "it bears no signature, which the setting `signing_keys` requires"
_EARLIER = "it was signed by an earlier release of relevo, whose signatures did not cover its place"
_WRONG = "its signature is wrong: it was changed, or it was signed for another queue, env or id"


class Signer:
    """Of one queue. Made once per queue, and only where there are keys."""

    def __init__(self, keyring: Keyring, place: str) -> None:
        self.keyring = keyring
        #: `prefix:env:` and the name of the queue on the bus
        self.place = place
        head, env, owner, *rest = place.split(":")
        #: the service or app that the queue belongs to
        self.owner = unquote(owner)
        at = next((n for n, part in enumerate(rest) if part in KINDS), len(rest) - 1)
        self.queue_kind = rest[at] if rest else ""
        #: of a subscription: its pattern
        self.pattern = unquote(rest[at + 1]) if self.queue_kind == "notifications" and rest[at + 1 :] else ""
        self._site = f"{head}:{env}:"
        self._lines: dict[tuple[Key, Kind], _Line] = {}
        self._own: dict[Kind, _Line] = {}

    def sign(self, kind: Kind, id: str, text: bytes, *, service: str | None = None, topic: str = "") -> str:
        """The signature of a text. `service`: the signing service, if that is not the owner of the queue."""
        return self.signature_field(kind, id, text, service=service, topic=topic)[len(_OPENS) : -1].decode()

    def sign_as_any(self, kind: Kind, id: str, text: bytes) -> str:
        """The signature of a statement that any process with a key may make."""
        line = self._line(self.keyring.any_key(), kind, "")
        return line.field(id, text)[len(_OPENS) : -1].decode()

    def signature_field(
        self, kind: Kind, id: str, text: bytes, *, service: str | None = None, topic: str = ""
    ) -> bytes:
        """The signature as the last field of an object, of which `text` is everything before that field."""
        key = self.keyring.key_of(self.owner if service is None else service)
        return self._line(key, kind, topic).field(id, text)

    def signed(self, kind: Kind, id: str, text: bytes) -> bytes:
        """An object with its signature."""
        opened = text[:-1]
        return opened + self._own_line(kind).field(id, opened) + b"}"

    def is_own_signature(self, kind: Kind, id: str, text: bytes) -> bool:
        """Whether the current key of the queue's owner signed this object: faster than `verify`, and less general."""
        if self.keyring.found(self.owner) is None:
            return False
        line = self._own_line(kind)
        at = len(text) - line.size - 1
        return at > 0 and hmac.compare_digest(text[at:], line.field(id, text[:at]) + b"}")

    def verify(
        self, kind: Kind, id: str, text: bytes, signature: str, *, service: str | None = None, topic: str = ""
    ) -> str:
        """What is wrong with a signature; '': it is good. `service`: the one that must have signed; None: any."""
        version, _, rest = signature.partition(".")
        written, _, rest = rest.partition(".")
        name, _, mac = rest.rpartition(".")
        if not signature:
            return _UNSIGNED
        if version != VERSION or not name:
            return _EARLIER
        if written != kind:
            return f"it is signed as {written!r:.40}, where {kind!r} is expected"
        if objection := self.keyring.objection(name, service):
            return objection
        right = self._line(self.keyring[name], kind, topic).mac(id, text)
        return "" if hmac.compare_digest(mac.encode(errors="replace"), right) else _WRONG

    def verify_object(self, kind: Kind, id: str, text: bytes) -> str:
        """`verify` for an object with its signature, by the owner of the queue."""
        tail = _TAIL.search(text)
        signature = tail[1].decode(errors="replace") if tail else ""
        return self.verify(kind, id, text[: tail.start()] if tail else b"", signature, service=self.owner)

    def is_by_first_key(self, text: bytes) -> bool:
        """Whether the current key of the queue's owner is named in the signature of an object."""
        tail = _TAIL.search(text)
        key = self.keyring.found(self.owner)
        return tail is not None and key is not None and tail[1].split(b".")[2:3] == [key.name.encode()]

    def _own_line(self, kind: Kind) -> _Line:
        line = self._own.get(kind)
        if line is None:
            line = self._own[kind] = self._line(self.keyring.key_of(self.owner), kind, "")
        return line

    def _line(self, key: Key, kind: Kind, topic: str) -> _Line:
        """`topic`: of an event, which belongs to all who subscribed, in place of the queue."""
        line = None if topic else self._lines.get((key, kind))
        if line is None:
            line = _Line(key, kind, f"{self._site}{topic}" if topic else self.place)
            if not topic:
                self._lines[key, kind] = line
        return line


class _Line:
    """Signs with one key, as one kind, for one place."""

    __slots__ = ("_head", "_mac", "size")

    def __init__(self, key: Key, kind: Kind, place: str) -> None:
        self._head = _OPENS + f"{VERSION}.{kind}.{key.name}.".encode()
        self._mac = key.mac(f"{_LABEL}\n{key.name}\n{kind}\n{place}\n".encode())
        #: bytes of the field
        self.size = len(self._head) + LENGTH + 1

    def field(self, id: str, text: bytes) -> bytes:
        """The field of a signature."""
        return self._head + self.mac(id, text) + b'"'

    def mac(self, id: str, text: bytes) -> bytes:
        """The signature alone."""
        return self._mac.of(id.encode(errors="replace") + b"\n" + text)


def kind_of_signature(signature: str) -> str:
    """The kind that is written in a signature; '': none."""
    parts = signature.split(".", 2)
    return parts[1] if len(parts) == 3 else ""


def without_signature(text: bytes, signature: str) -> bytes | None:
    """The object up to its signature; None: the signature is not its last field."""
    tail = _OPENS + signature.encode(errors="replace") + b'"}'
    return text[: -len(tail)] if text.endswith(tail) else None
