"""Turns a function's annotations into the types by which its JSON values are decoded.

No annotation raises an error here: one that cannot be resolved or decoded from JSON becomes `Any`, with
the reason. Plain JSON values are then still accepted, and the reason is part of the error message for
all other values.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from functools import partial
from inspect import _ParameterKind
from types import FunctionType, SimpleNamespace
from typing import Any

import msgspec
from msgspec import inspect as kinds

from relevo.errors import TargetError

# Called with the user's annotations, which no type checker can follow.
_NotRequired: Any = typing.NotRequired
_TypedDict: Any = typing.TypedDict


class Slot(msgspec.Struct, frozen=True):
    """One parameter, or the result."""

    name: str
    kind: _ParameterKind | None
    """None for the result."""
    required: bool
    type: Any
    """The type to which the bytes are decoded."""
    annotation: str
    """As written, for messages; empty if there is none."""
    trouble: str
    """Why `type` is `Any` in spite of an annotation; else empty."""


def read_signature(func: Callable[..., Any]) -> tuple[inspect.Signature, tuple[Slot, ...], Slot]:
    """The signature of `func`, a slot for each parameter, and the slot of its result."""
    if not callable(func):
        raise TargetError(f"a task is a function, found {func!r}")
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError) as exc:
        raise TargetError(f"{func!r} has no signature to type its arguments by: wrap it in a function") from exc
    names = _names_around(origin_of(func))
    empty = inspect.Parameter.empty
    parameters = tuple(
        _slot(p.name, p.kind, p.default is empty, p.annotation, names) for p in signature.parameters.values()
    )
    return signature, parameters, _slot("return", None, False, signature.return_annotation, names)


def dict_of(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    """The type of a dict with these keys, each with the type of its value."""
    return _TypedDict("Named", required | {name: _NotRequired[hint] for name, hint in optional.items()})


def origin_of(func: Any) -> Any:
    """The original function, without decorators and partial applications."""
    func = inspect.unwrap(func)
    return origin_of(func.func) if isinstance(func, partial) else func


def _names_around(origin: Any) -> dict[str, Any]:
    """The names that an annotation given as text may use."""
    if isinstance(origin, FunctionType):
        return origin.__globals__
    module = sys.modules.get(getattr(origin, "__module__", None) or "")
    return {} if module is None else vars(module)


def _slot(name: str, kind: _ParameterKind | None, required: bool, annotation: Any, names: dict[str, Any]) -> Slot:
    if annotation is inspect.Parameter.empty:
        return Slot(name, kind, required, Any, "", "")
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hint = typing.get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - evaluating an annotation runs any code
        return Slot(name, kind, required, Any, written, "cannot be resolved when the task is defined")
    if not _is_readable(hint):
        return Slot(name, kind, required, Any, written, "is not something JSON can be read back to")
    return Slot(name, kind, required, hint, written, "")


def _is_readable(hint: Any) -> bool:
    try:
        # In the two ways in which the reader uses it, so that it cannot fail there.
        msgspec.json.Decoder(msgspec.defstruct("Positional", [("it", hint, msgspec.UNSET)]))
        msgspec.json.Decoder(dict_of({}, {"it": hint}))
        return not _has_foreign_class(kinds.type_info(hint))
    except Exception:  # noqa: BLE001 - the user's classes may raise anything
        return False


def _has_foreign_class(info: kinds.Type) -> bool:
    """Whether the type contains a class unknown to msgspec.

    Fields of dataclasses and the like are not checked: such a class may be optional there, so that
    the whole value still decodes to an equal one.
    """
    match info:
        case kinds.CustomType(cls):
            return cls is not object
        case kinds.Metadata(type=inner):
            return _has_foreign_class(inner)
        case kinds.UnionType(types=parts) | kinds.TupleType(item_types=parts):
            return any(map(_has_foreign_class, parts))
        case kinds.CollectionType(item_type=item):
            return _has_foreign_class(item)
        case kinds.DictType(key_type=key, value_type=value):
            return _has_foreign_class(key) or _has_foreign_class(value)
        case _:
            return False
