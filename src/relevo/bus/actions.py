"""Actions: functions that handle messages, and how they are described to others."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from inspect import Parameter
from typing import Any, get_type_hints

import msgspec

from relevo.codec import Signature
from relevo.codec.digest import short
from relevo.codec.reader import Arguments, Buffer
from relevo.engine.message import Reply


class ActionSignature(Signature):
    """The signature of an action: a message's data are its arguments by name, or its one argument, a struct."""

    __slots__ = ("_takes_whole",)

    def __init__(self, func: Callable[..., Any]) -> None:
        super().__init__(func)
        self._takes_whole = _whole_of(func) is not None

    def decode(self, args: Buffer | None, kwargs: Buffer | None) -> Arguments:
        """The arguments to call the function with."""
        if self._takes_whole and kwargs is not None and (args is None or bytes(args) == b"[]"):
            return super().decode(b"[" + bytes(kwargs) + b"]", None)
        return super().decode(args, kwargs)

    @property
    def digest(self) -> str:
        """Equal for two versions of an action that take the same data."""
        return super().digest if not self._takes_whole else short(b"whole " + super().digest.encode())

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of these names that no argument can have; a struct may have any."""
        return [] if self._takes_whole else super().unknown(names)


def _whole_of(func: Callable[..., Any]) -> Any:
    """The type of the one argument that takes a message's data as a whole; None: the data are arguments by name."""
    parameters = list(inspect.signature(func).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return None
    found = _hints(func).get(parameters[0].name)
    if not isinstance(found, type) or found is Reply:
        return None
    return found if issubclass(found, msgspec.Struct) or dataclasses.is_dataclass(found) else None


def described(func: Callable[..., Any]) -> dict[str, Any]:
    """The public description of an action: what it does, takes and returns, as JSON Schema."""
    hints = _hints(func)
    about: dict[str, Any] = {}
    text = inspect.getdoc(func)
    if text:
        about["about"] = text.splitlines()[0][:200]
    whole = _whole_of(func)
    if whole is not None:
        about["takes"] = _schema(whole)
    else:
        fields: dict[str, Any] = {}
        required: list[str] = []
        for parameter in inspect.signature(func).parameters.values():
            if parameter.kind in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL):
                continue
            fields[parameter.name] = _schema(hints.get(parameter.name, Any))
            if parameter.default is Parameter.empty:
                required.append(parameter.name)
        about["takes"] = {"type": "object", "properties": fields, **({"required": required} if required else {})}
    about["gives"] = _schema(hints.get("return", Any))
    return about


def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(inspect.unwrap(func))
    except Exception:  # noqa: BLE001 - annotations are the user's code; without them nothing is known, anything is accepted
        return {}


def _schema(kind: Any) -> Any:
    """JSON Schema, with the definitions it refers to inside; `{}` (anything) where there is none."""
    try:
        (schema,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    except Exception:  # noqa: BLE001 - a type that msgspec does not know
        return {}
    return {**schema, "$defs": parts} if parts else schema
