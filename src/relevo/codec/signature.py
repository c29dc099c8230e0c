"""The signature of a task, by which its arguments and its result are encoded and decoded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Any

from relevo.codec import forms
from relevo.codec.annotations import Slot, origin_of, read_signature
from relevo.codec.depth import MAX_DEPTH, SHALLOW_SIZE, is_too_deep
from relevo.codec.digest import digest_of
from relevo.codec.reader import ArgumentReader, Arguments, Buffer, split
from relevo.codec.refusal import SUPPORTED, TOO_DEEP, Fault, find_fault, find_misfit
from relevo.errors import PayloadError, PayloadTooLarge, TargetError

ReadArguments = Callable[[Buffer | None, Buffer | None], Arguments]

_encode = forms.encode
_MAX_DEPTH_OF_ARGUMENTS = MAX_DEPTH + 1  # the list or object that holds them is a level too


class Signature:
    """Turns the arguments and the result of one function into bytes and back; made once per task.

    `decode` returns values equal to those that `encode` accepted, typed by the annotations. All others
    are refused with a `PayloadError` that names the function, the argument and the part of it.

        signature = Signature(charge)
        signature.encode((7,), {"cents": 990}, limit=1_000_000)    # b'"a":[7],"k":{"cents":990}'
        signature.decode(b"[7]", b'{"cents":990}')                 # ((7,), {"cents": 990})
    """

    __slots__ = (
        "_pending",
        "_read",
        "_read_known",
        "_read_result",
        "_rest",
        "_signature",
        "_slots",
        "_taking",
        "name",
        "result",
    )

    _read: ReadArguments
    _read_known: ReadArguments
    _read_result: Callable[[Buffer], Any]

    def __init__(self, func: Callable[..., Any]) -> None:
        origin = origin_of(func)
        self.name: str = getattr(origin, "__name__", type(origin).__name__)
        self._describe(*read_signature(func))
        self._pending: Callable[..., Any] | None = None
        if self.result.is_pending or self.unresolved is not None:
            self._postpone(func)

    @property
    def parameters(self) -> list[Slot]:
        """The slots of the parameters."""
        return list(self._slots.values())

    @property
    def unresolved(self) -> Slot | None:
        """The first parameter whose annotation has a name that is not defined."""
        return next((slot for slot in self._slots.values() if slot.is_pending), None)

    def check(self) -> None:
        """Refuse a function with an annotation that relevo cannot read from JSON. Names may still be missing."""
        if why := _unsupported([*self.parameters, self.result]):
            raise TargetError(f"{self.name}(): {why}")

    def _postpone(self, func: Callable[..., Any]) -> None:
        """Look again for the names that are missing in annotations when the signature is first used."""
        self._pending = func
        self._read = lambda args, kwargs: self.resolved()._read(args, kwargs)
        self._read_known = lambda args, kwargs: self.resolved()._read_known(args, kwargs)
        self._read_result = lambda raw: self.resolved()._read_result(raw)

    def resolved(self) -> Signature:
        """Itself, after the names that were missing in annotations were looked for once more."""
        if self._pending is not None:
            signature, parameters, result = read_signature(self._pending)
            if why := _unsupported([*parameters, result]):
                raise TargetError(f"{self.name}(): {why}")
            self._describe(signature, parameters, result)
            self._pending = None
        return self

    def _describe(self, signature: inspect.Signature, parameters: Sequence[Slot], result: Slot) -> None:
        self._signature = signature
        self._slots = {slot.name: slot for slot in parameters}
        self.result = result
        self._taking = ""
        self._rest: Signature | None = None  # made on demand: few tasks are steps
        reader = ArgumentReader(parameters)
        self._read, self._read_known = reader.read, reader.read_known
        self._read_result = result.decoder()

    @property
    def digest(self) -> str:
        """The digest of the parameters; equal for two versions that take the same arguments."""
        return digest_of(self.resolved()._slots.values())

    @property
    def first(self) -> Slot | None:
        """The slot of the first positional argument; None if there is none."""
        slot = next(iter(self._slots.values()), None)
        return None if slot is None or slot.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD) else slot

    @property
    def places(self) -> list[str]:
        """Names of the positional parameters; that of `*rest` comes last."""
        named = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
        return [slot.name for slot in self._slots.values() if slot.kind not in named]

    def unknown(self, names: Iterable[str]) -> list[str]:
        """Those of these names that no argument can have."""
        if any(slot.kind is Parameter.VAR_KEYWORD for slot in self._slots.values()):
            return []
        return [name for name in names if name not in self._slots]

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int) -> bytes:
        """The arguments as members of a JSON object, `"a":[...],"k":{...}`; b"" if there are none."""
        cause = None
        try:
            values = _encode(args) if args else None
            named = _encode(kwargs) if kwargs else None
            if named is None:
                fragment = b'"a":' + values if values is not None else b""
            else:
                fragment = b'"a":%b,"k":%b' % (values, named) if values is not None else b'"k":' + named
            size = len(fragment)
            if size > limit:
                raise PayloadTooLarge(f"{self.name}(): arguments", size, limit)
            if size > SHALLOW_SIZE:
                _check_depth(fragment, _MAX_DEPTH_OF_ARGUMENTS)
            args_back, kwargs_back = self._read_known(values, named)
            if args_back == args and kwargs_back == kwargs:
                return fragment
        except (PayloadError, TargetError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001 - encoding and comparing run the user's code
            cause = exc
        raise self._refuse_arguments(args, kwargs) from cause

    def encode_rest(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int, first: bytes = b"") -> bytes:
        """The same for all arguments but the first, which is inserted later, or is `first` (JSON) if given.

        add.encode_rest((2,), {}, limit=1_000_000)                  # b'"a":[2]', for add(x, y)
        add.encode_rest((2,), {}, limit=1_000_000, first=b"1")      # b'"a":[1,2]'
        """
        rest = self._rest or self._without_first()
        slot = self.first
        if slot and slot.kind is Parameter.POSITIONAL_OR_KEYWORD and slot.name in kwargs:
            twice = f"argument {slot.name!r} is given, and is the result of what comes before, too"
            raise PayloadError(f"{self.name}(): {twice}; leave it out, or use .si(…) for a call that takes nothing")
        fragment = rest.encode(args, kwargs, limit=limit)
        if not first:
            return fragment
        if slot and (fault := find_misfit(first, slot)):
            raise self._refusal(f"argument {slot.name!r}", fault)
        if args:
            return b'"a":[%b,' % first + fragment.removeprefix(b'"a":[')
        return b'"a":[%b]' % first + (b"," + fragment if fragment else b"")

    def _without_first(self) -> Signature:
        """The signature without the first parameter."""
        first = self.resolved().first
        if first is None:
            raise PayloadError(
                f"{self.name}() takes no argument for the result of what comes before; "
                f"use .si(…) for a call that only waits. It takes {self._signature}"
            )
        taken = 0 if first.kind is Parameter.VAR_POSITIONAL else 1
        others = list(self._signature.parameters.values())[taken:]
        rest = Signature.__new__(Signature)
        rest.name, rest._pending = self.name, None
        rest._describe(self._signature.replace(parameters=others), list(self._slots.values())[taken:], self.result)
        rest._taking = f"{self._signature}, the first of which is the result of what comes before (.si(…) takes none)"
        self._rest = rest
        return rest

    def decode(self, args: Buffer | None, kwargs: Buffer | None) -> Arguments:
        """The decoded arguments; they fit the function's current signature."""
        try:
            if args is not None and len(args) > SHALLOW_SIZE:
                _check_depth(args, _MAX_DEPTH_OF_ARGUMENTS)
            if kwargs is not None and len(kwargs) > SHALLOW_SIZE:
                _check_depth(kwargs, _MAX_DEPTH_OF_ARGUMENTS)
            return self._read(args, kwargs)
        except (PayloadError, TargetError, MemoryError):
            raise  # out of memory is not a fault of the payload: another worker may be able to read it
        except Exception as exc:  # bytes from outside, decoded to the user's classes
            raise self._refuse_payload(args, kwargs, exc) from exc

    def decode_given(self, args: Buffer | None, kwargs: Buffer | None) -> Arguments:
        """The arguments of a call that is no job yet: as `decode`, but a refusal speaks of no stored arguments."""
        try:
            return self.decode(args, kwargs)
        except PayloadError as error:
            cause = error.__cause__
            assert isinstance(cause, Exception)
            raise self._refuse_payload(args, kwargs, cause, is_stored=False) from cause

    def encode_result(self, value: Any, *, limit: int) -> bytes:
        """The result as JSON, under the same rule as the arguments."""
        cause = None
        try:
            raw = _encode(value)
            if len(raw) > limit:
                raise PayloadTooLarge(f"{self.name}(): result", len(raw), limit)
            _check_depth(raw, MAX_DEPTH)
            if self._read_result(raw) == value:
                return raw
        except (PayloadError, TargetError, MemoryError):
            raise
        except Exception as exc:  # noqa: BLE001 - as for arguments
            cause = exc
        raise self._refuse_result(find_fault(value, self.result)) from cause

    def decode_result(self, raw: Buffer) -> Any:
        """The result in these bytes."""
        try:
            _check_depth(raw, MAX_DEPTH)
            return self._read_result(raw)
        except (PayloadError, TargetError, MemoryError):
            raise
        except RecursionError as exc:
            raise self._refuse_result(("", TOO_DEEP)) from exc
        except Exception as exc:
            raise self._refuse_result(find_misfit(raw, self.result)) from exc

    def _refuse_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PayloadError:
        if why := self._misbound(args, kwargs):
            return self._refuse_binding(why)
        for label, slot, value in self._places(args, kwargs):
            if fault := find_fault(value, slot):
                return self._refusal(label, fault)
        return self._refusal("arguments", ("", "would not come back equal; is another thread changing a value?"))

    def _refuse_payload(
        self, args: Buffer | None, kwargs: Buffer | None, cause: Exception, *, is_stored: bool = True
    ) -> PayloadError:
        what = "stored arguments" if is_stored else "arguments"
        if isinstance(cause, RecursionError):
            return self._refusal(what, ("", TOO_DEEP))
        try:
            values, named = split(args, kwargs)
        except Exception as exc:  # noqa: BLE001 - not even JSON
            return self._refusal(what, ("", f"not readable: {exc}"))
        if why := self._misbound(values, named):
            if not is_stored:
                return self._refuse_binding(why)
            now = f"the function now takes {self._signature}. Was the job enqueued for another version of it?"
            return PayloadError(f"{self.name}(): the stored arguments do not fit: {why}; {now}")
        for label, slot, raw in self._places(values, named):
            if fault := find_misfit(raw, slot):
                return self._refusal(label, fault)
        return self._refusal(what, ("", f"not readable: {cause}"))

    def _refuse_binding(self, why: str) -> PayloadError:
        named = re.search("'([^']+)'", why)
        message = f"{self.name}(): {why}; it takes {self._taking or self._signature}"
        return PayloadError(message, argument=named[1] if named else "")

    def _refuse_result(self, fault: Fault | None) -> PayloadError:
        return self._refusal("result", fault or ("", "would not come back equal"))

    def _refusal(self, label: str, fault: Fault) -> PayloadError:
        path, why = fault
        named = re.fullmatch("argument '(.+?)'(.*)", label)
        argument = f"{named[1]}{named[2]}{path}" if named else ""
        return PayloadError(f"{self.name}(): {label}{path}: {why}", argument=argument)

    def _misbound(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            return str(exc)
        for name, parameter in self._signature.parameters.items():
            # Python 3.13.0 does not detect this if **kwargs takes an argument of the same name.
            needed = parameter.kind is Parameter.POSITIONAL_ONLY and parameter.default is Parameter.empty
            if needed and name not in bound.arguments:
                return f"missing a required positional-only argument: {name!r}"
        return ""

    def _places(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Slot, Any]]:
        """Each argument with its label and its slot; only for arguments that fit the signature."""
        slots = iter(self._slots.values())
        slot = None
        for i, value in enumerate(args):
            if slot is None or slot.kind is not Parameter.VAR_POSITIONAL:
                slot, first = next(slots), i
            if slot.kind is Parameter.VAR_POSITIONAL:
                yield f"argument '*{slot.name}'[{i - first}]", slot, value
            else:
                yield f"argument {slot.name!r}", slot, value
        extra = next((slot for slot in self._slots.values() if slot.kind is Parameter.VAR_KEYWORD), None)
        by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        for name, value in kwargs.items():
            named = self._slots.get(name)
            slot = named if named is not None and named.kind in by_name else extra
            assert slot is not None, "bound before"
            yield f"argument {name!r}", slot, value


def _check_depth(raw: Buffer, levels: int) -> None:
    if len(raw) > SHALLOW_SIZE and is_too_deep(bytes(raw), levels):
        raise RecursionError


def _unsupported(slots: Iterable[Slot]) -> str:
    """What is wrong with the first annotation that cannot be read from JSON; '' if there is none."""
    for slot in slots:
        if slot.trouble and not slot.is_pending:
            place = "the result" if slot.kind is None else f"argument {slot.name!r}"
            return f"{place} is annotated `{slot.annotation}`, which {slot.trouble}. Supported: {SUPPORTED}"
    return ""
