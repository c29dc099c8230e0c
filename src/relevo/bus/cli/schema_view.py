"""JSON Schema as Python annotations: what an action takes and returns, on one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.message import Fault, Reply

#: Nesting depth; what is deeper is not shown.
DEEPEST = 6
#: Structures shown with one action, and characters of a default.
STRUCTURES, DEFAULT = 20, 20
_PLAIN = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None", "object": "dict"}
_FORMATS = {
    "date-time": "datetime",
    "date": "date",
    "time": "time",
    "duration": "timedelta",
    "uuid": "UUID",
    "decimal": "Decimal",
}
_REF = "#/$defs/"
_ANYTHING = "Any"
_WORDS = {None: "None", True: "True", False: "False"}
#: Structures of every bus, which are not repeated with each callback.
_OURS = ({*Reply.__struct_fields__}, {*Fault.__struct_fields__})


class Shape(Struct, frozen=True):
    """Something with fields: an action with its arguments, or a structure."""

    name: str
    fields: tuple[str, ...]
    #: What follows its name and fields.
    ending: str = ""

    def lines(self, width: int) -> list[str]:
        """One line if it fits, else a line for each field."""
        whole = f"{self.name}({', '.join(self.fields)}){self.ending}"
        if len(whole) <= width or not self.fields:
            return [whole]
        return [f"{self.name}(", *(f"    {field}," for field in self.fields), f"){self.ending}"]


def signature(name: str, takes: Any, gives: Any) -> Shape:
    """An action as a Python signature: `generate_batch(texts: list[str]) -> list[list[float]]`."""
    return Shape(name, tuple(_fields(takes, {})), f" -> {words(gives)}")


def structures(takes: Any, gives: Any) -> list[Shape]:
    """The structures in these schemas, each with its fields: `Page(number: int, text: str = "")`."""
    named: dict[str, Any] = {}
    for schema in (takes, gives):
        _gather(schema, {}, named, DEEPEST)
    if isinstance(takes, dict):
        named.pop(_reference(takes), None)  # its fields are the arguments
    shown = [(schema, known) for schema, known in named.values() if _names(schema) and _names(schema) not in _OURS]
    return [Shape(_title(schema), tuple(_fields(schema, known))) for schema, known in shown[:STRUCTURES]]


def words(schema: Any, known: Mapping[str, Any] | None = None, depth: int = DEEPEST) -> str:
    """A type. `known`: the structures that it may refer to."""
    if not isinstance(schema, dict):
        return _ANYTHING
    if depth <= 0:
        return "…"
    known = _within(schema, known or {})
    match schema:
        case {"$ref": ref}:
            name = str(ref).removeprefix(_REF)
            named = known.get(name)
            if isinstance(named, dict) and "enum" in named:
                return words(named, known, depth - 1)
            return _title(named, name)
        case {"enum": [*values]}:
            return " | ".join(_compact(value) for value in values) or _ANYTHING
        case {"anyOf": [*some]} | {"oneOf": [*some]}:
            return " | ".join(dict.fromkeys(words(one, known, depth - 1) for one in some)) or _ANYTHING
        case {"prefixItems": [*some]}:
            return f"tuple[{', '.join(words(one, known, depth - 1) for one in some)}]"
        case {"type": "array"}:
            kind = "set" if schema.get("uniqueItems") else "list"
            return f"{kind}[{words(schema['items'], known, depth - 1)}]" if "items" in schema else kind
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"dict[str, {words(values, known, depth - 1)}]"
        case {"type": "object", "properties": dict(), "title": str(title)}:
            return title
        case {"type": "string", "contentEncoding": "base64"}:
            return "bytes"
        case {"type": "string", "format": str(form)}:
            return _FORMATS.get(form, "str")
        case {"type": str(kind)}:
            return _PLAIN.get(kind, kind)
    return _ANYTHING


def _fields(schema: Any, known: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an object, or the arguments of an action: `texts: list[str]`, `model: str = "small"`."""
    if not isinstance(schema, dict):
        return
    known = _within(schema, known)
    if "$ref" in schema:
        inside = known.get(str(schema["$ref"]).removeprefix(_REF))
        if isinstance(inside, dict) and "$ref" not in inside:
            yield from _fields(inside, known)
        return
    fields, required = schema.get("properties"), schema.get("required")
    for name, one in fields.items() if isinstance(fields, dict) else ():
        text = f"{name}: {words(one, known)}"
        if isinstance(one, dict) and "default" in one:
            text += f" = {_compact(one['default'])}"
        elif not isinstance(required, list) or name not in required:
            text += " = …"
        yield text


def _gather(schema: Any, known: Mapping[str, Any], found: dict[str, Any], depth: int) -> None:
    """Collect the structures that a schema refers to, in order, each with the structures that it may refer to."""
    if isinstance(schema, list):
        for one in schema:
            _gather(one, known, found, depth)
    if not isinstance(schema, dict) or depth <= 0:
        return
    known = _within(schema, known)
    ref = _reference(schema)
    named = known.get(ref.removeprefix(_REF)) if "$ref" in schema else schema
    if ref and isinstance(named, dict):
        if ref in found:
            return
        found[ref], depth = (named, known), depth - (named is not schema)
        schema = named
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            _gather([*value.values()], known, found, depth - 1)
        elif key in ("items", "prefixItems", "anyOf", "oneOf", "additionalProperties"):
            _gather(value, known, found, depth - 1)


def _reference(schema: Mapping[str, Any]) -> str:
    """By what a structure is known: the reference to it, or if it stands here, as models of Pydantic do, its title."""
    title = schema.get("title", "") if schema.get("type") == "object" and "properties" in schema else ""
    return str(schema.get("$ref", title))


def _within(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    inside = schema.get("$defs")
    return {**known, **inside} if isinstance(inside, dict) else known


def _names(schema: Mapping[str, Any]) -> set[str]:
    fields = schema.get("properties")
    return set(fields) if isinstance(fields, dict) else set()


def _title(schema: Any, name: str = _ANYTHING) -> str:
    return str(schema.get("title", name)) if isinstance(schema, dict) else name


def _compact(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= DEFAULT else text[: DEFAULT - 1] + "…"
