"""Turns a function's annotations into the types by which its JSON values are decoded.

No annotation raises an error here: one that cannot be resolved or decoded from JSON becomes `Any`, with
the reason. A task with such a type is refused when it is registered (`Signature.check`). A name that does
not exist yet is looked for again at the first use; if it is missing then too, plain JSON values are accepted.
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

from relevo.codec import forms, pydantic_types
from relevo.codec.pydantic_types import Adapter, Unresolved
from relevo.dependencies.depends import needs_of
from relevo.errors import TargetError

# Called with the user's annotations, which no type checker can follow.
_NotRequired: Any = typing.NotRequired
_TypedDict: Any = typing.TypedDict

_NOTHING = (typing.NoReturn, typing.Never)


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
    trouble: str = ""
    """Why `type` is `Any` in spite of an annotation; else empty."""
    adapter: Adapter | None = None
    """Reads the bytes instead of msgspec, for Pydantic's types."""
    is_pending: bool = False
    """Whether the annotation has a name that does not exist yet."""

    def decoder(self) -> Callable[[Any], Any]:
        """A function that reads the value from JSON."""
        return forms.decoder(self.type) if self.adapter is None else self.adapter.read

    def schema(self) -> Any:
        """JSON Schema, with the definitions it refers to inside; `{}` (anything) where there is none."""
        try:
            if self.adapter is not None:
                return self.adapter.schema()
            (schema,), parts = msgspec.json.schema_components(
                [self.type], schema_hook=_schema_of_class, ref_template="#/$defs/{name}"
            )
        except Exception:  # noqa: BLE001 - a type that cannot be described
            return {}
        return {**schema, "$defs": parts} if parts else schema


def _schema_of_class(cls: Any) -> dict[str, Any]:
    return pydantic_types.adapter_of(cls).schema() if pydantic_types.is_class(cls) else {}


def read_signature(func: Callable[..., Any]) -> tuple[inspect.Signature, tuple[Slot, ...], Slot]:
    """The signature of `func` without dependencies, a slot for each parameter, and the slot of its result."""
    if not callable(func):
        raise TargetError(f"a task is a function, found {func!r}")
    try:
        signature = inspect.signature(func)
    except (TypeError, ValueError) as exc:
        raise TargetError(f"{func!r} has no signature to type its arguments by: wrap it in a function") from exc
    if needs := needs_of(func, signature):  # which the worker fills in: they are no part of a call
        left = [one for one in signature.parameters.values() if one.name not in needs]
        signature = signature.replace(parameters=left)
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
        return Slot(name, kind, required, Any, "")
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        hint = typing.get_type_hints(holder, globalns=names, include_extras=True)["it"]
        if kind is None and hint in _NOTHING:
            hint = None
        adapter = _adapter(hint)
        if adapter is None:
            _check_readable(hint)
    except (NameError, Unresolved):
        return Slot(
            name, kind, required, Any, written, "cannot be resolved: a name in it is not defined", is_pending=True
        )
    except Exception as error:  # noqa: BLE001 - evaluating an annotation runs any code
        return Slot(name, kind, required, Any, written, f"is not something JSON can be read back to{_because(error)}")
    return Slot(name, kind, required, hint, written, "", adapter)


def _because(error: Exception) -> str:
    text = str(error).partition("\n")[0].rstrip(".")
    return f" ({text:.200})" if text else ""


def _adapter(hint: Any) -> Adapter | None:
    """What reads an annotation that belongs to Pydantic; None if msgspec does, with models as fields of its structs."""
    if not pydantic_types.is_needed(hint):
        return None
    if _takes_a_class(hint):  # Pydantic validates classes, but has no JSON for them
        raise TypeError("a class is no value")
    try:
        return Adapter(hint)
    except Unresolved:
        raise
    except Exception as reason:
        if _is_readable(hint):
            return None
        raise reason from None


def _takes_a_class(hint: Any) -> bool:
    return typing.get_origin(hint) is type or any(_takes_a_class(one) for one in typing.get_args(hint))


def _is_readable(hint: Any) -> bool:
    try:
        _check_readable(hint)
    except Exception:  # noqa: BLE001 - the user's classes may raise anything
        return False
    return True


def _check_readable(hint: Any) -> None:
    # In the two ways in which the reader uses it, so that it cannot fail there.
    msgspec.json.Decoder(msgspec.defstruct("Positional", [("it", hint, msgspec.UNSET)]), dec_hook=forms.from_json)
    msgspec.json.Decoder(dict_of({}, {"it": hint}), dec_hook=forms.from_json)
    if foreign := _foreign_class(kinds.type_info(hint)):
        raise TypeError(f"relevo does not know {foreign}")


def _foreign_class(info: kinds.Type) -> str:
    """The name of a class in the type that is unknown to msgspec and to relevo; '' if there is none.

    Fields of dataclasses and the like are not checked: such a class may be optional there, so that
    the whole value still decodes to an equal one.
    """
    match info:
        case kinds.CustomType(cls) if cls is not object and not forms.is_known(cls):
            return getattr(cls, "__name__", repr(cls))
        case kinds.Metadata(type=inner):
            return _foreign_class(inner)
        case kinds.UnionType(types=parts) | kinds.TupleType(item_types=parts):
            return next(filter(None, map(_foreign_class, parts)), "")
        case kinds.CollectionType(item_type=item):
            return _foreign_class(item)
        case kinds.DictType(key_type=key, value_type=value):
            return _foreign_class(key) or _foreign_class(value)
        case _:
            return ""


def slot_of(name: str, hint: Any) -> Slot:
    """The slot of a type that is given by itself."""
    return _slot(name, None, True, hint, {})
