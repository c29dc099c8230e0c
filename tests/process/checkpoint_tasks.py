"""Long jobs with checkpoints, for worker processes to import: each item and each step leaves its mark in a file."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from relevo import Relevo, current_job
from tests.process.jobs import APP, CLOCK, effect

#: Seconds that an item takes.
ITEM = 0.02


def work(n: int, total: int, every: float) -> int:
    """In a thread, or in a child process."""
    effect("start", n)
    job = current_job()
    began = job.step("begin", _begin, n)
    for item in job.iterate(range(total), every=every):
        time.sleep(ITEM)
        effect("item", item)
    effect("end", n)
    return began


async def nap(n: int, total: int, every: float) -> int:
    """On the event loop, from a source that goes on by itself."""
    effect("start", n)
    job = current_job()
    began = await job.astep("begin", _begin, n)

    async def rest(after: int | None) -> AsyncIterator[int]:
        for item in range(0 if after is None else after + 1, total):
            yield item

    async for item in job.iterate(rest, key=lambda item: item, every=every):
        await asyncio.sleep(ITEM)
        effect("item", item)
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
