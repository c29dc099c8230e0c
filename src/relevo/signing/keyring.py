"""The keys of the setting `signing_keys`: which one signs for a service, and which ones are accepted from it."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from hashlib import sha256

from relevo.errors import ConfigurationError

#: Characters of a signature.
LENGTH = 43
_BLOCK = 64


class Key:
    """One key: `id:secret`, which all share, or `service:id:secret`, of one service."""

    __slots__ = ("_secret", "name", "service")

    def __init__(self, text: str) -> None:
        self.name, _, secret = text.rpartition(":")
        self.service = self.name.rpartition(":")[0]
        self._secret = secret.encode()

    def mac(self, prefix: bytes) -> Mac:
        """The MAC of this key for texts with that prefix."""
        return Mac(self._secret, prefix)


class Mac:
    """HMAC-SHA256 of texts with one prefix, which is hashed once: half the time of `hmac` for a short text."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes, prefix: bytes) -> None:
        padded = (secret if len(secret) <= _BLOCK else sha256(secret).digest()).ljust(_BLOCK, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded) + prefix)
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))

    def of(self, text: bytes) -> bytes:
        """The MAC of prefix and text, in 43 characters of base64."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)[:LENGTH]


class Keyring:
    """A service with keys of its own signs with these only; all other services share the keys without a service."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = {key.name: key for key in map(Key, keys)}
        self._signing: dict[str, Key] = {}
        for key in self._keys.values():
            self._signing.setdefault(key.service, key)  # the first of each service signs

    def __bool__(self) -> bool:
        return bool(self._keys)

    def found(self, service: str) -> Key | None:
        """The key that signs for a service, if there is one."""
        return self._signing.get(service) or self._signing.get("")

    def key_of(self, service: str) -> Key:
        """The key that signs for a service."""
        key = self.found(service)
        if key is None:
            raise ConfigurationError(
                f"signing_keys: none signs for {service!r:.80}; found keys of {', '.join(sorted(self._signing))}. "
                "Add one of its own (service:id:secret), or one that all share (id:secret)"
            )
        return key

    def any_key(self) -> Key:
        """The first key, for statements that any process with a key may make."""
        return next(iter(self._keys.values()))

    def objection(self, name: str, service: str | None) -> str:
        """Why a key may not sign for a service (None: for any); '': it may."""
        key = self._keys.get(name)
        if key is None:
            return f"it is signed with the key {name!r:.60}, which the setting `signing_keys` does not name here"
        if service is None or key.service == (service if service in self._signing else ""):
            return ""
        owner = f"of {key.service!r:.60}" if key.service else "that all share"
        return f"it is signed with a key {owner}, and must be signed by {service!r:.60}"

    def __getitem__(self, name: str) -> Key:
        return self._keys[name]
