"""Signatures: a message is believed only if it was written by somebody who shares a key.

The signature stands behind the message's type and covers its id and everything else in its body but the deadline, which
the server puts at the end; of data that travels beside the message, it covers the digest. Keys have names, so that a
new one can be put in front while messages of the old one are still under way.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from relevo.model.job import write

#: What the server appends.
_END = re.compile(rb'(,"x":\d+)?\}$')


class Signer:
    """Signs with the first key and believes all of them; with none, it signs nothing and believes everything."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = {name: secret.encode() for name, _, secret in (key.partition(":") for key in keys)}
        self._first = next(iter(self._keys), "")

    @property
    def is_on(self) -> bool:
        """Whether messages are signed, and unsigned ones are not believed."""
        return self._first != ""

    def signed(self, id: str, target: str, body: bytes, beside: bytes = b"") -> bytes:
        """A body that lacks its closing brace, with a signature."""
        if not self.is_on:
            return body
        head = _head(target)
        rest = body.removeprefix(head)
        mac = self._mac(self._first, id, head, rest, beside)
        return head + b',"s":"' + f"{self._first}.{mac}".encode() + b'"' + rest

    def is_good(self, id: str, target: str, signature: str, body: bytes, beside: bytes = b"") -> bool:
        """Whether a body as it was stored bears the signature of a key that we know."""
        if not self.is_on:
            return True
        name, _, mac = signature.partition(".")
        head = _head(target)
        mark = head + b',"s":"' + signature.encode() + b'"'
        if name not in self._keys or not body.startswith(mark):
            return False
        rest = _END.sub(b"", body[len(mark) :])
        return hmac.compare_digest(mac.encode(errors="replace"), self._mac(name, id, head, rest, beside).encode())

    def sign_end(self, id: str, told: bytes) -> str:
        """A signature of what became of a message."""
        return f"{self._first}.{self._mac(self._first, id, b'', told, b'')}" if self.is_on else ""

    def is_good_end(self, id: str, told: bytes, signature: str) -> bool:
        """Whether somebody whose key we know said what became of a message."""
        if not self.is_on:
            return True
        name, _, mac = signature.partition(".")
        if name not in self._keys:
            return False
        return hmac.compare_digest(mac.encode(errors="replace"), self._mac(name, id, b"", told, b"").encode())

    def _mac(self, name: str, id: str, head: bytes, rest: bytes, beside: bytes) -> str:
        digest = hashlib.sha256(beside).digest() if beside else b""
        return hmac.new(self._keys[name], b"\n".join((id.encode(), head, rest, digest)), "sha256").hexdigest()


def _head(target: str) -> bytes:
    return b'{"t":' + write(target)
