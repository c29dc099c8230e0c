"""Steps of workflows over two queues, for worker processes that are killed while they work on them.

As in `jobs`, every run is a line in the file of effects.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from relevo import Relevo
from relevo.engine.push import CHUNK
from relevo.workflows.joining import join
from relevo.workflows.steps import Flow, group
from relevo.workflows.storing import Rows, stored
from tests.process.dying import carry_out, fork_each
from tests.process.jobs import APP, CLOCK, effect, ran_before

#: Members of a group that takes two calls in each of two queues.
CROWD = CHUNK * 5 // 2


async def step(before: Any, n: int, seconds: float = 0.0) -> int:
    effect("start", n)
    await asyncio.sleep(seconds)
    effect("end", n)
    return n


async def total(numbers: list[int], n: int) -> int:
    effect("start", n)
    effect("end", n)
    return sum(numbers)


async def echo(before: int, n: int) -> int:
    effect("start", n)
    effect("end", n)
    return before


async def call(n: int) -> None:
    effect("start", n)
    effect("end", n)


def growing(made: Relevo) -> Callable[[Any, int, int], Awaitable[int]]:
    async def grow(before: Any, n: int, calls: int) -> int:
        """Add two members; the first time, die after so many calls."""
        again = ran_before(n)
        effect("start", n)
        flow = await made.aworkflow()
        steps = [made.tasks["right"].s(None, n + 1), made.tasks["right"].s(None, n + 2)]
        if again:
            await flow.aadd(*steps)
        else:
            await asyncio.to_thread(carry_out, made, join(made.engine, flow.id, steps), calls)
        effect("end", n)
        return n

    return grow


def build(name: str, **settings: Any) -> Relevo:
    """An app with all steps."""
    made = Relevo(name, **settings)
    made.task(name="left", queue="left", result_ttl=0)(step)
    made.task(name="right", queue="right")(step)
    made.task(name="total", queue="right", result_ttl=0)(total)
    made.task(name="echo", queue="left", result_ttl=0)(echo)
    made.task(name="call", queue="left")(call)
    made.task(name="grow", queue="left")(growing(made))
    return made


app = build(os.environ.get(APP, "flow-tests"), _clock_key=os.environ.get(CLOCK, ""))


def relay_race(made: Relevo, seconds: float = 0.0) -> Flow[Any, int]:
    """A chain, a group, what takes its list, and callbacks. Numbers tell the stage: 1, 2, 10 to 19, 30, 31, 40."""
    left, right, total = (made.tasks[name] for name in ("left", "right", "total"))
    members = [(left, right)[n % 2].s(n, seconds) for n in range(10, 20)]
    flow = left.s(None, 1) | right.s(2) | group(members) | total.s(30) | made.tasks["echo"].s(31)
    call = made.tasks["call"]
    return flow.on_success(call.s(40)).on_complete(call.s(41)).on_failure(call.s(42))


def crowd(made: Relevo) -> Flow[Any, int]:
    """So many that they are stored in four calls."""
    members = [made.tasks[("left", "right")[n % 2]].s(None, n) for n in range(CROWD)]
    return (group(members) | made.tasks["total"].s(9000)).on_complete(made.tasks["call"].s(9001))


def die_making_crowds(*calls: int) -> None:
    """Store large flows, each in a process of its own that dies after so many calls."""
    fork_each(partial(carry_out, app, stored(Rows(app.engine, crowd(app))), count) for count in calls)
