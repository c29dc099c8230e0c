"""Messages on their way to the server, through the app's middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from relevo.bus.naming import context_of, parts_of, queue_of
from relevo.engine.enqueuing import athrough, inherited, through
from relevo.middleware.middleware import Call

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

R = TypeVar("R")


def through_message(engine: Engine, type: str, data: Any, about: Mapping[str, Any], send: Callable[..., R]) -> R:
    """What `send` gives, with the middleware around it."""
    call = _call_of(type, data, about)
    return through(engine, [call], lambda: [send(_data_of(call), **about, _carried=call.headers)])[0]


async def athrough_message(
    engine: Engine, type: str, data: Any, about: Mapping[str, Any], send: Callable[..., Awaitable[R]]
) -> R:
    """`through_message` for async code."""
    call = _call_of(type, data, about)

    async def act() -> list[R]:
        return [await send(_data_of(call), **about, _carried=call.headers)]

    return (await athrough(engine, [call], act))[0]


def _call_of(type: str, data: Any, about: Mapping[str, Any]) -> Call:
    service, _ = parts_of(type)
    is_dict = data is None or isinstance(data, dict)
    return Call(
        target=type,
        queue=queue_of(service, context_of(about.get("at")), "actions"),
        args=() if is_dict else (data,),
        kwargs=dict(data or {}) if is_dict else {},
        headers=inherited(),
    )


def _data_of(call: Call) -> Any:
    return call.args[0] if call.args else call.kwargs or None
