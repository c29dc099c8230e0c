"""Which parameters of a function are filled in, and by what."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import Parameter
from types import FunctionType
from typing import Annotated, Any, TypeAlias, get_args, get_origin

from msgspec import Struct

from relevo.errors import TargetError

Provider: TypeAlias = Callable[..., Any]


class Dependency(Struct, frozen=True):
    """A value that is made for each attempt."""

    provider: Provider
    use_cache: bool = True


#: What a function needs, by the names of its parameters.
Needs: TypeAlias = Mapping[str, Dependency]


def Depends(provider: Provider, *, use_cache: bool = True) -> Any:  # noqa: N802 - as in FastAPI
    """A parameter that the worker fills in, given in its annotation or as its default.

    `provider` is called once per attempt, also if several need its value (`use_cache=False`: for each of them). It may
    have dependencies of its own. What stands behind the `yield` of a generator runs when the attempt has ended.

    >>> def get_db() -> Iterator[Session]:                                 # doctest: +SKIP
    ...     with Session(engine) as session:
    ...         yield session
    >>> @app.task                                                          # doctest: +SKIP
    ... def charge(order: int, db: Annotated[Session, Depends(get_db)]) -> None: ...
    """
    if not callable(provider):
        raise TargetError(f"Depends needs a function that gives the value, found {provider!r:.80}")
    try:
        hash(provider)
    except TypeError:
        raise TargetError(f"Depends needs a function that can be hashed, found {provider!r:.80}") from None
    return Dependency(provider, use_cache)


def needs_of(func: Callable[..., Any], signature: inspect.Signature) -> Needs:
    """What a function needs."""
    parameters = signature.parameters.values()
    return {one.name: found for one in parameters if (found := _of(one, func)) is not None}


def _of(parameter: Parameter, func: Callable[..., Any]) -> Dependency | None:
    if isinstance(parameter.default, Dependency):
        return parameter.default
    hint = parameter.annotation
    if isinstance(hint, str):
        hint = _evaluated(hint, func)
    if get_origin(hint) is Annotated:
        return next((one for one in get_args(hint)[1:] if isinstance(one, Dependency)), None)
    return None


class _Unknown:
    """Stands for a name that is there only for type checkers, such as that of the value's class."""


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        try:
            return getattr(sys.modules["builtins"], name)
        except AttributeError:
            return _Unknown


def _evaluated(hint: str, func: Callable[..., Any]) -> Any:
    origin: Any = inspect.unwrap(func)
    while isinstance(origin, partial):
        origin = inspect.unwrap(origin.func)
    if isinstance(origin, FunctionType):
        names = origin.__globals__
    else:
        names = vars(sys.modules.get(getattr(origin, "__module__", None) or "", object))
    try:
        return eval(hint, {}, _Names(names))  # noqa: S307 - an annotation of the app's own code
    except Exception:  # noqa: BLE001 - whatever it is, it names no dependency
        return None


def walk(needs: Needs, above: tuple[Provider, ...] = ()) -> Iterator[Provider]:
    """All functions that are called for these; TargetError: one cannot be."""
    for dependency in needs.values():
        provider = dependency.provider
        if provider in above:
            raise TargetError(f"{name_of(provider)}() depends on itself")
        yield provider
        yield from walk(needs_of_provider(provider), (*above, provider))


def needs_of_provider(provider: Provider) -> Needs:
    """What a function needs that gives a value; TargetError: it takes something else."""
    try:
        signature = inspect.signature(provider)
    except (TypeError, ValueError):  # of a class in C: it is called without arguments
        return {}
    needs = needs_of(provider, signature)
    for one in signature.parameters.values():
        is_needed = one.default is Parameter.empty and one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        if one.name not in needs and is_needed:
            raise TargetError(
                f"{name_of(provider)}() takes {one.name!r}, which is no dependency: give it a default, or "
                "Annotated[…, Depends(…)]"
            )
        if one.name in needs and one.kind is Parameter.POSITIONAL_ONLY:
            raise TargetError(f"{name_of(provider)}(): {one.name!r} is filled in by its name: put it behind the `/`")
    return needs


def name_of(provider: Provider) -> str:
    """Its name, for messages."""
    return getattr(provider, "__qualname__", None) or type(provider).__qualname__


def awaits(provider: Provider) -> bool:
    """Whether it can be called by async code only."""
    return _is(provider, inspect.iscoroutinefunction) or _is(provider, inspect.isasyncgenfunction)


def yields(provider: Provider) -> bool:
    """Whether it goes on after the attempt."""
    return _is(provider, inspect.isgeneratorfunction) or _is(provider, inspect.isasyncgenfunction)


def _is(provider: Provider, kind: Callable[[Any], bool]) -> bool:
    return kind(provider) or (not inspect.isclass(provider) and kind(getattr(provider, "__call__", None)))  # noqa: B004
