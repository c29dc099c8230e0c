"""Fills the dependencies of a task in: made before an attempt, closed after it, with its error if there was one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from inspect import Parameter
from typing import Any

from relevo.dependencies.depends import (
    Dependency,
    Needs,
    Provider,
    awaits,
    name_of,
    needs_of,
    needs_of_provider,
    walk,
    yields,
)
from relevo.errors import ConfigurationError, TargetError


class Dependencies:
    """The dependencies of one app: which functions take the place of which in tests."""

    def __init__(self, _engine: object = None) -> None:
        self.overrides: dict[Provider, Provider] = {}
        self._needs: dict[Provider, Needs] = {}

    def check(self, func: Callable[..., Any], target: str, *, is_async: bool) -> None:
        """Refuse a function whose dependencies cannot be filled in."""
        self.filled(func, target, is_async=is_async)

    def filled(self, func: Callable[..., Any], target: str, *, is_async: bool) -> Callable[..., Any]:
        """A function that makes what `func` needs and calls it; `func` itself if it needs nothing."""
        signature = inspect.signature(func)
        needs = needs_of(func, signature)
        if not needs:
            return func
        for provider in walk(needs):
            if awaits(provider) and not is_async:
                raise TargetError(
                    f"{name_of(provider)}() awaits, which the plain function {target} cannot: write {target} as "
                    "`async def`, or the dependency without"
                )
        placed = _placing(func, signature, needs, target)
        return self._async(placed, needs) if is_async else self._plain(placed, needs, target)

    def _plain(self, func: Callable[..., Any], needs: Needs, target: str) -> Callable[..., Any]:
        def attempt(*args: Any, **kwargs: Any) -> Any:
            failure: BaseException | None = None
            try:
                with ExitStack() as stack:
                    try:
                        return refuse_coroutine(func(self._made(needs, stack, {}), args, kwargs), target)
                    except BaseException as error:
                        failure = error
                        raise
                assert failure is not None
                raise failure  # a dependency caught it, which changes nothing
            finally:
                del failure  # it refers to this frame

        return attempt

    def _async(self, func: Callable[..., Any], needs: Needs) -> Callable[..., Any]:
        async def attempt(*args: Any, **kwargs: Any) -> Any:
            failure: BaseException | None = None
            try:
                async with AsyncExitStack() as stack:
                    try:
                        return await func(await self._amade(needs, stack, {}), args, kwargs)
                    except BaseException as error:
                        failure = error
                        raise
                assert failure is not None
                raise failure
            finally:
                del failure

        return attempt

    def _made(self, needs: Needs, stack: ExitStack, known: dict[Provider, Any]) -> dict[str, Any]:
        return {name: self._value(one, stack, known) for name, one in needs.items()}

    def _value(self, dependency: Dependency, stack: ExitStack, known: dict[Provider, Any]) -> Any:
        provider = self.overrides.get(dependency.provider, dependency.provider)
        if dependency.use_cache and provider in known:
            return known[provider]
        if awaits(provider):
            raise ConfigurationError(
                f"{name_of(provider)}() awaits, which a plain function cannot: override it so, too"
            )
        given = self._made(self._needs_of(provider), stack, known)
        value = stack.enter_context(contextmanager(provider)(**given)) if yields(provider) else provider(**given)
        return known.setdefault(provider, value) if dependency.use_cache else value

    async def _amade(self, needs: Needs, stack: AsyncExitStack, known: dict[Provider, Any]) -> dict[str, Any]:
        return {name: await self._avalue(one, stack, known) for name, one in needs.items()}

    async def _avalue(self, dependency: Dependency, stack: AsyncExitStack, known: dict[Provider, Any]) -> Any:
        provider = self.overrides.get(dependency.provider, dependency.provider)
        if dependency.use_cache and provider in known:
            return known[provider]
        given = await self._amade(self._needs_of(provider), stack, known)
        match awaits(provider), yields(provider):
            case True, True:
                value = await stack.enter_async_context(asynccontextmanager(provider)(**given))
            case True, False:
                value = await provider(**given)
            case False, True:
                value = stack.enter_context(contextmanager(provider)(**given))
            case _:
                value = provider(**given)
        return known.setdefault(provider, value) if dependency.use_cache else value

    def _needs_of(self, provider: Provider) -> Needs:
        found = self._needs.get(provider)
        if found is None:
            found = self._needs[provider] = needs_of_provider(provider)
        return found


def refuse_coroutine(result: Any, target: str) -> Any:
    """The result of a plain function; a coroutine would run after what is around the call has ended."""
    if inspect.iscoroutine(result):
        result.close()
        raise TargetError(f"{target} is async behind a plain decorator: write the decorator's wrapper as `async def`")
    return result


_Placed = Callable[[dict[str, Any], tuple[Any, ...], dict[str, Any]], Any]


def _placing(func: Callable[..., Any], signature: inspect.Signature, needs: Needs, target: str) -> _Placed:
    """Calls `func` with the dependencies by their names, and with the arguments of the job."""
    parameters = signature.parameters.values()
    kinds = {one.kind for one in parameters}
    filled = [one for one in parameters if one.name in needs]
    if any(one.kind is Parameter.POSITIONAL_ONLY for one in filled):
        raise TargetError(f"{target}: a dependency is filled in by its name: put {filled[0].name!r} behind the `/`")
    if not any(one.kind is Parameter.POSITIONAL_OR_KEYWORD for one in filled):
        return lambda made, args, kwargs: func(*args, **kwargs, **made)
    if Parameter.VAR_POSITIONAL in kinds:
        raise TargetError(f"{target}: put the dependency {filled[0].name!r} behind the `*` argument")
    first = sum(one.kind is Parameter.POSITIONAL_ONLY for one in parameters)
    others = [one.name for one in parameters if one.kind is Parameter.POSITIONAL_OR_KEYWORD and one.name not in needs]

    def call(made: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*args[:first], **dict(zip(others, args[first:], strict=False)), **kwargs, **made)

    return call
