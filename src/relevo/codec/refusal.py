"""Finds why a value does not decode to an equal one, and which part of it is at fault.

Runs only after the fast comparison has failed, so it may take its time.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from relevo.codec import forms
from relevo.codec.annotations import Slot
from relevo.codec.depth import MAX_DEPTH, is_too_deep
from relevo.codec.pydantic_types import Misfit

TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH} levels, or a value that holds itself"

SUPPORTED = (
    "None, bool, int, float, str, list, dict; and, where the annotation says so, bytes, datetime, date, time, "
    "timedelta, Decimal, UUID, Enum, tuple, set, frozenset, dataclass, attrs class, msgspec.Struct, TypedDict, "
    "NamedTuple, Pydantic model; others after app.codec.register(type, encode, decode)"
)
_EXAMPLES: dict[type, str] = {
    tuple: "tuple[int, ...]",
    set: "set[str]",
    frozenset: "frozenset[str]",
    dict: "dict[int, str]",
}
_PLACED = re.compile(r"^(?P<why>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`$", re.DOTALL)

Fault = tuple[str, str]
"""The path to the part at fault, and what is wrong with it."""


def find_fault(value: Any, slot: Slot) -> Fault | None:
    """Why `value` does not decode to an equal value for `slot`; None if it does."""
    if fault := _part_without_json(value):
        return fault
    try:
        raw = forms.encode(value)
    except Exception as exc:  # noqa: BLE001 - any error is the reason to report
        return _part_not_encodable(value, slot, exc)
    if is_too_deep(raw, MAX_DEPTH):
        return "", TOO_DEEP
    return find_misfit(raw, slot) or _part_changed(value, slot.decoder()(raw), slot)


def find_misfit(raw: bytes | msgspec.Raw, slot: Slot) -> Fault | None:
    """Where these bytes do not fit the type of `slot`; None if they do."""
    try:
        slot.decoder()(raw)
    except Misfit as misfit:
        return misfit.path, misfit.why
    except Exception as exc:  # noqa: BLE001 - the user's dataclass may raise anything
        why = str(exc) or type(exc).__name__
        path = ""
        if placed := _PLACED.match(why):
            why, path = placed["why"], placed["path"]
        why = why[:1].lower() + why[1:]
        return path, f"a key does not fit: {why}" if placed and placed["key"] else why
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    match value:
        case dict():
            yield from ((f"[{_show(key)}]", part) for key, part in value.items())
        case list() | tuple():
            yield from ((f"[{i}]", part) for i, part in enumerate(value))
        case set() | frozenset():
            yield from (("[...]", part) for part in value)
        case msgspec.Struct():
            yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            yield from ((f".{name}", getattr(value, name, None)) for name in names)
        case _ if attributes := getattr(type(value), "__attrs_attrs__", ()):
            yield from ((f".{one.name}", getattr(value, one.name, None)) for one in attributes)
        case _ if fields := getattr(type(value), "__pydantic_fields__", None):
            yield from ((f".{name}", getattr(value, name, None)) for name in fields)


def _part_without_json(value: Any) -> Fault | None:
    """The first part without a JSON form: NaN, invalid text, or endless nesting."""
    waiting = [("", value, 0)]  # an explicit stack: the value may be nested deeper than Python's stack
    while waiting:
        path, part, depth = waiting.pop()
        if depth > MAX_DEPTH:
            return "", TOO_DEEP
        if isinstance(part, float) and not math.isfinite(part):
            return path, f"{part!r} has no JSON form; pass None or text instead"
        if isinstance(part, str) and (why := _broken_text(part)):
            return path, why
        if isinstance(part, dict):
            for key in part:
                if isinstance(key, str) and (why := _broken_text(key)):
                    return path, f"a key {why}"
        deeper = [(path + step, inner, depth + 1) for step, inner in _parts(part)]
        waiting.extend(reversed(deeper))
    return None


def _broken_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        found = f"U+{ord(text[exc.start]):04X} at index {exc.start}"
        return f"holds a lone surrogate ({found}), which UTF-8 cannot carry; pass bytes, or repair the text"
    return ""


def _part_not_encodable(value: Any, slot: Slot, error: Exception) -> Fault:
    path = ""
    while found := next(((step, part, exc) for step, part in _parts(value) if (exc := _encode_error(part))), None):
        step, value, error = found
        path += step
    if isinstance(error, RecursionError):
        return "", TOO_DEEP
    for numpys in filter(forms.is_numpy, value if isinstance(value, dict) else [value]):
        return path, forms.numpy_advice(numpys)
    if isinstance(error, TypeError) and not isinstance(value, dict):
        return path, f"{_a(value)} cannot be sent as JSON. {_trouble(slot)}Supported: {SUPPORTED}"
    return path, f"cannot be sent as JSON: {error}"


def _encode_error(value: Any) -> Exception | None:
    try:
        forms.encode(value)
    except Exception as exc:  # noqa: BLE001 - see find_fault
        return exc
    return None


def _part_changed(value: Any, back: Any, slot: Slot) -> Fault | None:
    if _is_equal(value, back):
        return None
    path = ""
    while step := _first_difference(value, back):
        at, value, back = step
        path += at
    return path, _say_change(value, back, slot)


def _first_difference(value: Any, back: Any) -> tuple[str, Any, Any] | None:
    """One step towards the part that changed, if both sides are built alike."""
    if isinstance(value, dict) and isinstance(back, dict):
        alike = value.keys() == back.keys()
    else:
        alike = type(value) is type(back) and not isinstance(value, set | frozenset)
    if not alike:
        return None
    pairs = zip(
        _parts(value), _parts({key: back[key] for key in value} if isinstance(value, dict) else back), strict=False
    )
    return next(((at, one, other) for (at, one), (_, other) in pairs if not _is_equal(one, other)), None)


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - a comparison that raises does not count as equal
        return False


def _say_change(value: Any, back: Any, slot: Slot) -> str:
    place = "return type" if slot.kind is None else "parameter"
    example = _EXAMPLES.get(type(value), type(value).__name__)
    if isinstance(value, dict) and isinstance(back, dict):
        key = next((key for key in value if key not in back), None)
        change = f"the key {_show(key)} would not come back as {_a(key)}"
        instead = "use text as keys"
    elif type(value) is type(back):
        return f"{_show(value)} would come back as {_show(back)}, which does not compare equal (==) to it"
    else:
        change = f"{_a(value)} would come back as {_a(back)}"
        instead = f"pass {_a(back)}"
    if slot.trouble:
        return f"{change}. {_trouble(slot)}Supported: {SUPPORTED}"
    if slot.annotation:
        return f"{change}; the {place} is annotated `{slot.annotation}`: make that precise or {instead}"
    return f"{change}; annotate the {place} ({example}) or {instead}"


def _trouble(slot: Slot) -> str:
    return f"The annotation `{slot.annotation}` {slot.trouble}. " if slot.trouble else ""


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # noqa: BLE001 - a repr is the user's code, and fails for very long integers too
        return _a(value)


def _a(value: Any) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    if name == "bytes":
        return name
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
