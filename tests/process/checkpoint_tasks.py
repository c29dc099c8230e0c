"""Long jobs with checkpoints, for worker processes to import: each item and each step is a line in a file.

Item 20 of job 1 is written as 1020. An item whose number was given as a gate waits for `site.open(1020)`.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from relevo import Relevo, current_job
from tests.process.jobs import APP, CLOCK, effect, is_open

#: Seconds that an item takes.
ITEM = 0.005


def number(n: int, item: int) -> int:
    """The number by which an item of a job is known."""
    return n * 1000 + item


def work(n: int, total: int, every: float, gates: list[int]) -> int:
    """In a thread, or in a child process."""
    effect("start", n)
    job = current_job()
    began = job.step("begin", _begin, n)
    for item in job.iterate(range(total), every=every):
        effect("item", number(n, item))
        time.sleep(ITEM)
        while item in gates and not is_open(number(n, item)):
            time.sleep(0.01)
    effect("end", n)
    return began


async def nap(n: int, total: int, every: float, gates: list[int]) -> int:
    """On the event loop, from a source that goes on by itself."""
    effect("start", n)
    job = current_job()
    began = await job.astep("begin", _begin, n)

    async def rest(after: int | None) -> AsyncIterator[int]:
        for item in range(0 if after is None else after + 1, total):
            yield item

    async for item in job.iterate(rest, key=lambda item: item, every=every):
        effect("item", number(n, item))
        await asyncio.sleep(ITEM)
        while item in gates and not is_open(number(n, item)):
            await asyncio.sleep(0.01)
    effect("end", n)
    return began


def _begin(n: int) -> int:
    effect("begin", n)
    return os.getpid()


_TASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nap": (nap, {"retries": 0}),
    "work": (work, {"retries": 0}),
    "work_apart": (work, {"retries": 0, "executor": "process"}),
}


def build(name: str, **settings: Any) -> Relevo:
    """An app with all of them."""
    made = Relevo(name, **settings)
    for target, (func, options) in _TASKS.items():
        made.task(name=target, **options)(func)
    return made


app = build(os.environ.get(APP, "checkpoint-tests"), _clock_key=os.environ.get(CLOCK, ""))
