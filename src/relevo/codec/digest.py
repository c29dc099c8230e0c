"""The digest of a function's parameters: versions with the same digest accept and refuse the same arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from relevo.codec.annotations import Slot

#: Hexadecimal digits; `engine/lua/include/takers.lua` relies on it.
LENGTH = 10


def digest_of(slots: Iterable[Slot]) -> str:
    """The digest of a function's parameters, including nested types."""
    parts = [(slot.name, str(slot.kind), slot.required, _described(slot)) for slot in slots]
    return short(repr(parts).encode())


def short(text: bytes) -> str:
    """The digest of a text."""
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:LENGTH]


def _described(slot: Slot) -> str:
    try:
        schema = slot.schema() if slot.adapter else msgspec.json.schema_components([slot.type])
        return msgspec.json.encode(schema, order="sorted").decode()
    except Exception:  # noqa: BLE001 - a type that msgspec cannot describe
        return repr(slot.type)
