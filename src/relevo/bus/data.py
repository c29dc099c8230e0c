"""The data of a message as JSON: an object, checked before it leaves.

The sender does not know the handler's signature; the handler decodes the data by it. So any value that JSON can hold is
accepted, and a struct, a Pydantic model or a date is encoded in the form that the receiver reads back. As for jobs,
only values that JSON would change without an error are refused; models are validated.
"""

from __future__ import annotations

from typing import Any

import msgspec

from relevo.codec import forms
from relevo.codec.depth import MAX_DEPTH, is_too_deep
from relevo.errors import PayloadError, PayloadTooLarge

_SIMPLE = frozenset({str, int, bool, type(None)})
_encode = forms.encode
_decode = msgspec.json.Decoder().decode


def encoded_object(data: Any, *, what: str, limit: int) -> bytes:
    """The data of a message: a dict with names for keys, one structure (a Pydantic model, …), or None for no data."""
    if data is None:
        return b"{}"
    if not isinstance(data, dict) and (isinstance(data, type) or not forms.is_structure(type(data))):
        raise PayloadError(
            f"{what}: the data of a message is a dict of the action's arguments by name (or one struct or model), "
            f"found {data!r:.80}"
        )
    if isinstance(data, dict) and not all(isinstance(key, str) for key in data):
        wrong = next(key for key in data if not isinstance(key, str))
        raise PayloadError(f"{what}: arguments are named by text, found {wrong!r:.80}")
    if isinstance(data, dict) and all(type(value) in _SIMPLE for value in data.values()):
        raw = _encode(data) if _is_text(data) else b""  # nothing in it could be changed on the way
        if raw and len(raw) <= limit:
            return raw
    raw = encoded(data, what=what, limit=limit)
    if raw[:1] != b"{":
        raise PayloadError(f"{what}: the data of a message must be a JSON object, found {raw[:80]!r}")
    return raw


def _is_text(data: dict[str, Any]) -> bool:
    """No lone surrogates, which cannot be written, and no numbers that other readers would round."""
    return all(
        value.isascii() if type(value) is str else type(value) is not int or abs(value) < 2**53
        for value in data.values()
    ) and all(key.isascii() for key in data)


def encoded(value: Any, *, what: str, limit: int) -> bytes:
    """Any value as JSON that decodes to the same value."""
    try:
        raw = _encode(value)
        if len(raw) > limit:
            raise PayloadTooLarge(what, len(raw), limit)
        if is_too_deep(raw, MAX_DEPTH):
            raise PayloadError(f"{what}: nested more than {MAX_DEPTH} deep")
        if _decode(raw) != _plain(value):
            raise PayloadError(f"{what}: would not arrive as it is: is there a NaN or an infinity in it?")
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise PayloadError(f"{what}: {error}") from error
    return raw


def _plain(value: Any) -> Any:
    """The value as its JSON decodes."""
    return _listed(msgspec.to_builtins(value, enc_hook=forms.to_plain))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        named = {str(key): _listed(one) for key, one in value.items()}
        if len(named) < len(value):
            raise ValueError(f"two keys of {list(value)!r:.80} are the same name")
        return named
    if isinstance(value, list | tuple | set | frozenset):
        return [_listed(one) for one in value]
    return value
