"""Limits that the code gives its tasks: `@app.task(concurrency=5, rate="10/s")`.

They are defaults. Workers declare them when they start; a limit that an operator sets is in force instead, until the
operator removes it, and a changed default replaces only the default.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from relevo.engine.duty import Duty, Host
from relevo.engine.engine import Engine
from relevo.engine.options import OF_LIMITS
from relevo.limits.limit import NO_TERMS, TASK, Limit, limit_of
from relevo.limits.store import declare, declared
from relevo.store.plan import Call


class CodeLimits:
    """The limits in the code of an app; a part of its engine."""

    def __init__(self, _: Engine) -> None:
        #: queue -> task -> its limit; None: it has none
        self.of_queue: dict[str, dict[str, Limit | None]] = {}

    def add(self, queue: str, target: str, limit: Limit | None) -> None:
        """Know a task, and the limit that its decorator names."""
        self.of_queue.setdefault(queue, {})[target] = limit


def taken(options: dict[str, Any]) -> Limit | None:
    """Take the limit out of the options of a decorator."""
    given = {name: options.pop(name) for name in OF_LIMITS & options.keys()}
    given = {name: value for name, value in given.items() if value is not None}
    return limit_of(**given) if given else None


def declaring(engine: Engine, *, only_lost: bool) -> Generator[Call[Any], Any, None]:
    """Make the limits of the code the defaults on the server; with `only_lost`, those that the server has not."""
    for queue, limits in engine.part(CodeLimits).of_queue.items():
        keys = engine.keys_of(queue)
        wanted = {TASK + target: limit.terms for target, limit in limits.items() if limit is not None}
        names = [*wanted] if only_lost else [TASK + target for target in limits]
        if not names:
            continue
        known: list[str | None] = yield declared(keys, names)
        for name, terms in zip(names, known, strict=True):
            if terms == wanted.get(name) or (only_lost and terms is not None):
                continue
            if name in wanted:
                yield from engine.list_queue(queue)
            yield from declare(keys, name, wanted.get(name, NO_TERMS))


class CodeLimitsDuty(Duty[None]):
    """Declares them before the first claim, and later those that the server lost."""

    name = "limits of the code"
    interval = 120.0
    is_registration = True

    def __init__(self, worker: Host) -> None:
        self._engine = worker.engine
        self._is_first = True

    async def run_once(self) -> None:
        """Declare all of them once, so that workers of two versions do not take turns with theirs."""
        await self._engine.client.arun(declaring(self._engine, only_lost=not self._is_first), patience=0)
        self._is_first = False


def duties(worker: Host) -> list[Duty[Any]]:
    """What this feature gives every worker to do."""
    return [CodeLimitsDuty(worker)]
