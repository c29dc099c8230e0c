"""Decodes JSON to the arguments of one function, in one typed pass each.

Positional arguments are read as an array-like struct. Their count decides which keyword arguments may
follow, so these are read as a TypedDict of exactly those names: missing and duplicate arguments are
detected while parsing, and the hot path needs no `bind`. Where Pydantic reads one of them, the arguments
are split first and each is read by itself. Errors are raised as they come; the signature turns them into
a message that names the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter
from itertools import chain, repeat
from types import GenericAlias
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import astuple

from relevo.codec import forms
from relevo.codec.annotations import Slot, dict_of

Buffer = bytes | Raw
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
ReadValues = Callable[[Buffer], tuple[Any, ...]]
ReadNamed = Callable[[Buffer], dict[str, Any]]

_split_values = msgspec.json.Decoder(list[Raw]).decode
_split_named = msgspec.json.Decoder(dict[str, Raw]).decode


class ArgumentReader:
    """Reads the arguments of one function."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        self._positional = [slot for slot in slots if slot.kind in by_position]
        self._keyword_only = [slot for slot in slots if slot.kind is Parameter.KEYWORD_ONLY]
        self._extra = next((slot for slot in slots if slot.kind is Parameter.VAR_KEYWORD), None)
        rest = next((slot for slot in slots if slot.kind is Parameter.VAR_POSITIONAL), None)
        self._read_values = _values(self._positional, rest)
        self._read_named: dict[int, ReadNamed] = {}  # by the count of positional arguments, made on demand
        self._most = len(self._positional)
        self._enough = sum(slot.required for slot in self._positional)
        if any(slot.required for slot in self._keyword_only):
            self._enough = sys.maxsize  # positional arguments alone are never enough

    def read(self, args: Buffer | None, kwargs: Buffer | None) -> Arguments:
        """The arguments in these bytes, valid for a call of the function."""
        values, named = self.read_known(args, kwargs)
        # A TypedDict silently ignores unknown names.
        if kwargs is not None and self._extra is None and len(named) != len(_split_named(kwargs)):
            raise TypeError("arguments are unknown")
        return values, named

    def read_known(self, args: Buffer | None, kwargs: Buffer | None) -> Arguments:
        """The same without the check for unknown names, for callers that compare the result with the original."""
        values = () if args is None else self._read_values(args)
        count = len(values)
        if kwargs is None:
            if count < self._enough:
                raise TypeError("arguments are missing")
            return values, {}
        if count > self._most:
            count = self._most
        read_named = self._read_named.get(count)
        if read_named is None:
            read_named = self._read_named[count] = self._named_after(count)
        return values, read_named(kwargs)

    def _named_after(self, count: int) -> ReadNamed:
        """A reader of the keyword arguments that may follow `count` positional ones."""
        given, open_ = self._positional[:count], self._positional[count:]
        if any(slot.required and slot.kind is Parameter.POSITIONAL_ONLY for slot in open_):
            return _refuse_all
        names = [slot for slot in open_ if slot.kind is not Parameter.POSITIONAL_ONLY] + self._keyword_only
        if self._extra is None:
            return _closed_names(names)
        taken = {slot.name for slot in given if slot.kind is not Parameter.POSITIONAL_ONLY}
        return _open_names(names, self._extra, taken)


def _values(positional: Sequence[Slot], rest: Slot | None) -> ReadValues:
    if not _has_adapter(positional, rest):
        if rest is None:
            return _limited_values(positional)
        if all(slot.type == rest.type for slot in positional):
            return forms.decoder(GenericAlias(tuple, (rest.type, ...)))
    decoders = [slot.decoder() for slot in positional]
    others = _refuse_all if rest is None else rest.decoder()

    def read(raw: Buffer) -> tuple[Any, ...]:
        each = zip(chain(decoders, repeat(others)), _split_values(raw), strict=False)
        return tuple([decode(part) for decode, part in each])

    return read


def _has_adapter(slots: Iterable[Slot], other: Slot | None = None) -> bool:
    return any(slot.adapter for slot in slots) or (other is not None and other.adapter is not None)


def _limited_values(positional: Sequence[Slot]) -> ReadValues:
    fields = [(f"f{i}", slot.type, UNSET) for i, slot in enumerate(positional)]
    array = msgspec.defstruct("Positional", fields, array_like=True, forbid_unknown_fields=True)
    decode: Callable[[Buffer], msgspec.Struct] = forms.decoder(array)

    def read(raw: Buffer) -> tuple[Any, ...]:
        values = astuple(decode(raw))
        while values and values[-1] is UNSET:  # left to its default by the caller
            values = values[:-1]
        return values

    return read


def _closed_names(slots: Sequence[Slot]) -> ReadNamed:
    """A TypedDict decodes directly to the dict; with a struct the defaults would have to be removed."""
    if _has_adapter(slots):
        return _split_names(slots)
    required = {slot.name: slot.type for slot in slots if slot.required}
    optional = {slot.name: slot.type for slot in slots if not slot.required}
    return forms.decoder(dict_of(required, optional))


def _split_names(slots: Sequence[Slot]) -> ReadNamed:
    decoders = {slot.name: slot.decoder() for slot in slots}
    required = {slot.name for slot in slots if slot.required}

    def read(raw: Buffer) -> dict[str, Any]:
        found = {name: decoders[name](part) for name, part in _split_named(raw).items() if name in decoders}
        if not required <= found.keys():
            raise TypeError("arguments are missing")
        return found

    return read


def _open_names(slots: Sequence[Slot], extra: Slot, taken: set[str]) -> ReadNamed:
    decode_all: ReadNamed
    if all(slot.type == extra.type for slot in slots) and not _has_adapter(slots, extra):
        decode_all = forms.decoder(GenericAlias(dict, (str, extra.type)))
    else:
        decoders = {slot.name: slot.decoder() for slot in slots}
        others = extra.decoder()

        def decode_all(raw: Buffer) -> dict[str, Any]:
            return {name: decoders.get(name, others)(part) for name, part in _split_named(raw).items()}

    required = {slot.name for slot in slots if slot.required}
    if not required and not taken:
        return decode_all

    def read(raw: Buffer) -> dict[str, Any]:
        found = decode_all(raw)
        if not (required <= found.keys() and taken.isdisjoint(found)):
            raise TypeError("arguments are missing or given twice")
        return found

    return read


def _refuse_all(_: Buffer) -> Any:
    raise TypeError("arguments are missing or unknown")


def split(args: Buffer | None, kwargs: Buffer | None) -> tuple[Iterable[Raw], dict[str, Raw]]:
    """The same arguments, each as its own unread bytes."""
    return _split_values(args) if args is not None else [], _split_named(kwargs) if kwargs is not None else {}
