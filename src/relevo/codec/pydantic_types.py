"""Pydantic models, dataclasses and constrained types: read, written and described by Pydantic itself.

Pydantic is imported only for an annotation that belongs to it. A model is written with its aliases and without computed
fields, in the form that its validation reads back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

_MODULES = ("pydantic", "pydantic_core", "annotated_types")


class Misfit(ValueError):
    """Data that does not fit a type: the path to the part at fault, and what is wrong with it."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path.removeprefix('.')}: {why}" if path else why)
        self.path = path
        self.why = why


class Unresolved(Exception):
    """A class that the annotation needs does not exist yet."""


def is_class(cls: Any) -> bool:
    """Whether a class is read and written by Pydantic."""
    return hasattr(cls, "__get_pydantic_core_schema__") or hasattr(cls, "__pydantic_validator__")


def is_model(cls: Any) -> bool:
    """Whether a class is one with fields of its own, a model or a dataclass."""
    return hasattr(cls, "__pydantic_validator__")


def is_needed(hint: Any) -> bool:
    """Whether some part of an annotation belongs to Pydantic."""
    if isinstance(hint, str):
        return False
    if is_class(hint) or type(hint).__module__.partition(".")[0] in _MODULES:
        return True
    parts = (*getattr(hint, "__args__", ()), *getattr(hint, "__metadata__", ()))
    return any(map(is_needed, parts))


def write(value: Any) -> bytes:
    """A value of a class of Pydantic as JSON."""
    from pydantic_core import to_json

    serializer = getattr(type(value), "__pydantic_serializer__", None)
    if serializer is None:  # a URL, a secret, …
        return to_json(value)
    raw: bytes = serializer.to_json(value, by_alias=True, round_trip=True, warnings="none")
    return raw


class Adapter:
    """Reads JSON as one annotation; raises Unresolved, or any other error for an annotation that it cannot read."""

    def __init__(self, hint: Any) -> None:
        try:
            from pydantic import TypeAdapter, ValidationError
        except ImportError as error:
            raise TypeError("needs Pydantic 2.10 or later: pip install 'relevo[pydantic]'") from error
        try:
            self._adapter = TypeAdapter(hint)
        except NameError as error:
            raise Unresolved(str(error)) from error
        if not self._adapter.pydantic_complete:
            raise Unresolved(str(hint))
        self._validate: Callable[[bytes], Any] = self._adapter.validate_json
        self._invalid = ValidationError

    def read(self, raw: Any) -> Any:
        """The value in these bytes (bytes or msgspec.Raw)."""
        try:
            return self._validate(bytes(raw))
        except self._invalid as error:
            raise _misfit(error.errors(include_url=False, include_context=False, include_input=False)) from error

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of what is read, with the definitions it refers to inside."""
        return self._adapter.json_schema(ref_template="#/$defs/{model}")


def _misfit(errors: list[Any]) -> Misfit:
    first = errors[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    why = first["msg"][:1].lower() + first["msg"][1:]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Misfit(path, why + more)


def adapter_of(cls: Any) -> Adapter:
    """The adapter of a class that is a field of something else, or that comes without an annotation."""
    return _made(cls)


@lru_cache(maxsize=1024)
def _made(cls: Any) -> Adapter:
    return Adapter(cls)
