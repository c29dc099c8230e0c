"""Flows on their way to the server, through the app's middleware: each step is a call of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from relevo.engine.enqueuing import athrough, call_of, through
from relevo.workflows.steps import MAX_LEVELS, Chain, Flow, Group, Step

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.middleware.middleware import Call

R = TypeVar("R")
F = TypeVar("F", bound=Flow[Any, Any])


def through_flow(engine: Engine, flow: F, store: Callable[[F], R]) -> R:
    """What `store` gives, with the middleware around it; each step's call gets the same."""
    calls = calls_of([flow])

    def act() -> list[R]:
        return [store(*changed([flow], calls))] * len(calls)

    return through(engine, calls, act)[0]


async def athrough_flow(engine: Engine, flow: F, store: Callable[[F], Awaitable[R]]) -> R:
    """`through_flow` for async code."""
    calls = calls_of([flow])

    async def act() -> list[R]:
        return [await store(*changed([flow], calls))] * len(calls)

    return (await athrough(engine, calls, act))[0]


def calls_of(flows: Sequence[Flow[Any, Any]]) -> list[Call]:
    """The calls of all steps, in order."""
    calls: list[Call] = []

    def note(step: Step[Any, Any]) -> Step[Any, Any]:
        calls.append(call_of(step.task, step.args, step.kwargs))
        return step

    for flow in flows:
        _each(flow, note, 0)
    return calls


def changed(flows: Sequence[F], calls: Sequence[Call]) -> list[F]:
    """The same flows with these calls."""
    left = iter(calls)

    def change(step: Step[Any, Any]) -> Step[Any, Any]:
        call = next(left)
        return replace(step, args=tuple(call.args), kwargs=call.kwargs, headers=call.headers)

    return [_each(flow, change, 0) for flow in flows]


def _each(flow: F, visit: Callable[[Step[Any, Any]], Step[Any, Any]], level: int) -> F:
    """The same flow with what `visit` makes of its steps."""
    if level > MAX_LEVELS:  # it will be refused
        return flow
    made: Any = flow
    match flow:
        case Step():
            made = visit(flow)
        case Chain(parts=parts, callbacks=callbacks):
            found = tuple(_each(part, visit, level + 1) for part in parts)
            made = replace(flow, parts=found, callbacks=tuple((kind, visit(step)) for kind, step in callbacks))
        case Group(members=members, callbacks=callbacks):
            found = tuple(_each(member, visit, level + 1) for member in members)
            made = replace(flow, members=found, callbacks=tuple((kind, visit(step)) for kind, step in callbacks))
    result: F = made
    return result
