"""Steps: calls whose results are stored, so that a retried job does not repeat them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from relevo.checkpoints.keeping import Keeping, signature_of
from relevo.codec import Signature
from relevo.errors import ConfigurationError, OptionError, PayloadError, PayloadTooLarge


class Step:
    """One call of `step` or `astep`."""

    def __init__(self, keeping: Keeping, name: str, func: Callable[..., Any]) -> None:
        if not callable(func):
            raise OptionError(
                f"step {name!r:.80}: a function is needed, found {func!r:.80}; "
                "write step(name, fn, argument), not step(name, fn(argument))"
            )
        keeping.take("s", name)
        self._keeping = keeping
        self._name = name
        self._func = func
        self._signature: Signature = signature_of(func)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result, stored by an earlier run or by this one."""
        try:
            if inspect.iscoroutinefunction(self._func):
                raise self._is_async()
            raw = self._keeping.read("s", self._name)
            if raw is not None:
                return self._known(raw)
            result = self._func(*args, **kwargs)
            if inspect.iscoroutine(result):
                result.close()
                raise self._is_async()
            raw = self._encoded(result)
            self._keeping.write("s", self._name, raw)
        except BaseException:
            self._keeping.free("s", self._name)
            raise
        return self._signature.decode_result(raw)

    async def arun(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`run` for async code; the function may be a coroutine function."""
        try:
            raw = await self._keeping.aread("s", self._name)
            if raw is not None:
                return self._known(raw)
            result = self._func(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            raw = self._encoded(result)
            await self._keeping.awrite("s", self._name, raw)
        except BaseException:
            self._keeping.free("s", self._name)
            raise
        # Decoded again, so that the first run gets the same value as later runs.
        return self._signature.decode_result(raw)

    def _encoded(self, result: Any) -> bytes:
        try:
            return self._signature.encode_result(result, limit=self._keeping.home.most)
        except PayloadTooLarge:
            raise
        except PayloadError as refused:
            raise PayloadError(f"step {self._name!r}: its result cannot be kept for later runs: {refused}") from refused

    def _known(self, raw: bytes) -> Any:
        try:
            return self._signature.decode_result(raw)
        except PayloadError as misfit:
            raise PayloadError(
                f"step {self._name!r}: what an earlier run kept does not fit the function as it is now: {misfit}. "
                "Was it another version? Give the step another name to run it again."
            ) from misfit

    def _is_async(self) -> ConfigurationError:
        return ConfigurationError(
            f"step {self._name!r}: {self._signature.name} is a coroutine function; use `await job.astep(…)`"
        )
