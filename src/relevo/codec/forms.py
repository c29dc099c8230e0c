"""How values are written and read whose types msgspec does not know: types that were registered, and Pydantic's.

Called by msgspec for those types alone, so values of all others cost nothing more.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw
from msgspec import inspect as kinds

from relevo.codec import pydantic_types
from relevo.errors import ConfigurationError, OptionError

T = TypeVar("T")


class Form(NamedTuple):
    """The JSON form of a registered type."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_forms: dict[type, Form] = {}


class Codec:
    """The types that tasks and actions of this process take, beside those that relevo knows: `app.codec`."""

    def register(self, type: type[T], encode: Callable[[T], Any], decode: Callable[[Any], T]) -> None:
        """Accept values of a class, and of its subclasses, where an annotation names it.

        `encode` gives what JSON can hold, `decode` makes an equal value of it. It counts for all apps of the process;
        do it before the tasks that use the type are defined, in a module that workers import too.

        >>> app.codec.register(PurePosixPath, str, PurePosixPath)                       # doctest: +SKIP
        """
        _check(type, encode, decode)
        before = _forms.get(type)
        if before is not None and tuple(map(_name, before)) != (_name(encode), _name(decode)):
            raise ConfigurationError(f"{_name(type)} is registered already, with {_name(before.encode)}")
        _forms[type] = Form(encode, decode)


def _check(type_: Any, encode: Any, decode: Any) -> None:
    if not isinstance(type_, type):
        raise OptionError(f"codec.register: a class is needed, found {type_!r:.80}")
    if not (callable(encode) and callable(decode)):
        raise OptionError(f"codec.register({type_.__name__}): encode and decode are functions of one argument")
    if pydantic_types.is_class(type_) or not _is_custom(type_):
        raise OptionError(
            f"codec.register: {type_.__name__} is supported already; a field of it may be of another type"
        )


def _is_custom(cls: type) -> bool:
    try:
        return isinstance(kinds.type_info(cls), kinds.CustomType)
    except Exception:  # noqa: BLE001 - a type that msgspec cannot describe is not its own
        return True


def _name(what: Any) -> str:
    return f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', repr(what))}"


def is_known(cls: Any) -> bool:
    """Whether there is a form for a class that msgspec does not know."""
    return (typing.get_origin(cls) or cls) in _forms or pydantic_types.is_class(cls)


def is_structure(cls: type) -> bool:
    """Whether values of a class have fields of their own, and so are JSON objects."""
    is_struct = issubclass(cls, msgspec.Struct) or dataclasses.is_dataclass(cls)
    return is_struct or hasattr(cls, "__attrs_attrs__") or pydantic_types.is_model(cls)


def to_json(value: Any) -> Any:
    """For msgspec's encoders: what to write for a value that msgspec does not know."""
    form = _form_of(type(value))
    if form is not None:
        return form.encode(value)
    if pydantic_types.is_class(type(value)):
        return Raw(pydantic_types.write(value))
    raise TypeError(_unsupported(value))


def to_plain(value: Any) -> Any:
    """The same as plain values, for `msgspec.to_builtins`; only if what is written is read back equal."""
    written = to_json(value)
    if not isinstance(written, Raw):
        return written
    if pydantic_types.adapter_of(type(value)).read(written) != value:
        raise ValueError(
            f"a {type(value).__name__} would not come back equal: does it hold excluded or private fields?"
        )
    return msgspec.json.decode(written)


def from_json(cls: Any, found: Any) -> Any:
    """For msgspec's decoders: a value of a class that msgspec does not know, from plain values."""
    plain = typing.get_origin(cls) or cls
    form = _forms.get(plain)
    if form is not None:
        return form.decode(found)
    if pydantic_types.is_class(cls):
        return pydantic_types.adapter_of(cls).read(msgspec.json.encode(found))
    if isinstance(found, plain):
        return found
    raise TypeError(f"{cls!r} is not something JSON can be read back to")


def _form_of(cls: type) -> Form | None:
    return next((form for one in cls.__mro__ if (form := _forms.get(one)) is not None), None)


def is_numpy(value: Any) -> bool:
    """Whether a value is one of numpy's scalars or arrays."""
    return any(cls.__module__.partition(".")[0] == "numpy" for cls in type(value).__mro__)


def numpy_advice(value: Any) -> str:
    """What to do with a value of numpy's."""
    name = f"numpy.{type(value).__name__}"
    call = "tolist" if getattr(value, "ndim", 0) else "item"
    return f"a {name} cannot be sent as JSON: pass .{call}(), or register it with app.codec.register({name}, …)"


def _unsupported(value: Any) -> str:
    if is_numpy(value):
        return numpy_advice(value)
    return f"Encoding objects of type {_name(type(value)).removeprefix('builtins.')} is unsupported"


encode = msgspec.json.Encoder(enc_hook=to_json).encode
"""Any value as JSON."""


def decoder(hint: Any) -> Callable[[Any], Any]:
    """A function that reads JSON as a type that msgspec reads, with the registered types and models inside."""
    made: msgspec.json.Decoder[Any] = msgspec.json.Decoder(hint, dec_hook=from_json)
    return made.decode
