"""Actions: functions that handle messages, and how they are described to others."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from typing import Annotated, Any, Union, get_args, get_origin

from relevo.codec import Signature
from relevo.codec.annotations import Slot
from relevo.codec.digest import short
from relevo.codec.forms import is_structure
from relevo.codec.reader import Arguments, Buffer
from relevo.engine.message import Reply
from relevo.errors import PayloadError


class ActionSignature(Signature):
    """The signature of an action: a message's data are its arguments by name, or its one argument, a structure."""

    __slots__ = ("_missing", "_takes_whole")

    def _describe(self, signature: inspect.Signature, parameters: Sequence[Slot], result: Slot) -> None:
        super()._describe(signature, parameters, result)
        self._takes_whole = _whole_of(parameters) is not None
        self._missing = self.unresolved

    def decode(self, args: Buffer | None, kwargs: Buffer | None) -> Arguments:
        """The arguments to call the function with."""
        self.resolved()
        if self._takes_whole and kwargs is not None and (args is None or bytes(args) == b"[]"):
            return super().decode(b"[" + bytes(kwargs) + b"]", None)
        values, named = super().decode(args, kwargs)
        if (slot := self._missing) is not None and (values or slot.name in named):
            raise PayloadError(
                f"{self.name}(): argument {slot.name!r} is annotated `{slot.annotation}`, which {slot.trouble}; "
                "import it where the function is defined, and not only for type checkers"
            )
        return values, named

    @property
    def digest(self) -> str:
        """Equal for two versions of an action that take the same data."""
        digest = super().digest
        return digest if not self._takes_whole else short(b"whole " + digest.encode())

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of these names that no argument can have; a structure may have any."""
        return [] if self._takes_whole else super().unknown(names)

    def described(self) -> dict[str, Any]:
        """What the action takes and gives, as JSON Schema."""
        self.resolved()
        return {"takes": _taken(self.parameters), "gives": self.result.schema()}


def _whole_of(slots: Sequence[Slot]) -> Slot | None:
    """The one argument that takes a message's data as a whole; None: the data are arguments by name."""
    if len(slots) != 1 or slots[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        return None
    return slots[0] if _is_structure(slots[0].type) else None


def _is_structure(hint: Any) -> bool:
    """Whether values of a type are JSON objects with fields."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _is_structure(get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return all(map(_is_structure, get_args(hint)))
    return isinstance(hint, type) and hint is not Reply and is_structure(hint)


def _taken(slots: Sequence[Slot]) -> Any:
    whole = _whole_of(slots)
    if whole is not None:
        return whole.schema()
    named = [slot for slot in slots if slot.kind not in (Parameter.VAR_KEYWORD, Parameter.VAR_POSITIONAL)]
    required = [slot.name for slot in named if slot.required]
    fields = {slot.name: slot.schema() for slot in named}
    return {"type": "object", "properties": fields, **({"required": required} if required else {})}


def described(func: Callable[..., Any], signature: ActionSignature | None = None) -> dict[str, Any]:
    """The public description of an action: what it does, takes and returns, as JSON Schema."""
    text = inspect.getdoc(func)
    about = {"about": text.splitlines()[0][:200]} if text else {}
    return about | (signature or ActionSignature(func)).described()
