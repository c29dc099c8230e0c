"""What only relevo is asked for: jobs that do something, at a pace, with priorities, of many tenants."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from typing import Any

from bench.adapters.contract import TEXT
from bench.adapters.relevo_tasks import app, noop
from bench.probe import Probe
from relevo import Priority, Task, group

clock = time.perf_counter
Answer = dict[str, Any]

#: Jobs per bulk call.
BULK = 10_000
#: Calls under way at once while a queue is filled by many small calls.
LANES = 50


class Work:
    """For the driver's `ask`. All of it is async; each job gets its number and one value."""

    def __init__(self) -> None:
        #: When each job of the last `pace` or `rush` was enqueued, in monotonic nanoseconds, from the job `_first` on.
        self._called = array("q")
        self._first = 0

    async def put(self, task: str, value: Any, n: int, first: int = 0) -> Answer:
        """Put jobs on the queue in bulk."""
        began = clock()
        for start in range(first, first + n, BULK):
            await _put(app.tasks[task], value, range(start, min(start + BULK, first + n)))
        return {"n": n, "seconds": clock() - began}

    async def put_group(self, n: int) -> Answer:
        """Seconds for `enqueue_many`, and for a group of the same calls."""
        began = clock()
        await noop.aenqueue_many([((i, TEXT), {}) for i in range(n)])
        stored = clock()
        await group(noop.s(i, TEXT) for i in range(n)).aenqueue()
        return {"many": stored - began, "group": clock() - stored}

    async def put_one_by_one(self, task: str, value: Any, seconds: float) -> Answer:
        """Put jobs on the queue, each when the one before is stored."""
        enqueue, done, began = app.tasks[task].aenqueue, 0, clock()
        while clock() < began + seconds:
            await enqueue(done, value)
            done += 1
        return {"n": done, "seconds": clock() - began}

    async def put_shared(self, n: int, calls: int, tenants: bool) -> Answer:
        """Put jobs on the queue in so many calls: each for a tenant of its own, or all without one."""
        each, waiting = n // calls, iter(range(calls))
        began = clock()

        async def lane() -> None:
            for number in waiting:
                task = noop.using(tenant=f"tenant-{number}") if tenants else noop
                await _put(task, TEXT, range(number * each, (number + 1) * each))

        await asyncio.gather(*(lane() for _ in range(LANES)))
        return {"n": each * calls, "each": each, "seconds": clock() - began}

    async def pace(self, task: str, value: Any, first: int, n: int, per_s: float) -> Answer:
        """Enqueue so many jobs a second, whatever becomes of them."""
        enqueue, calls = app.tasks[task].aenqueue, []
        self._first, self._called = first, array("q")
        done, began = 0, clock()
        while done < n:
            due = min(n, int((clock() - began) * per_s) + 1)
            for i in range(done, due):
                self._called.append(time.monotonic_ns())
                calls.append(asyncio.ensure_future(enqueue(first + i, value)))
            done = due
            # Never less than a loop's timers can tell apart: else it would not sleep, and take the worker's core.
            await asyncio.sleep(max(0.001, began + done / per_s - clock()))
        await asyncio.gather(*calls)
        return {"n": n, "seconds": clock() - began}

    async def rush(self, first: int, most: int, seconds: float, lanes: int, urgent_every: int) -> Answer:
        """Enqueue at full speed, one by one from each of some tasks; some of the jobs are urgent."""
        normal, urgent = noop.aenqueue, noop.using(priority=Priority.CRITICAL).aenqueue
        self._first, self._called = first, array("q")
        took, numbers = array("d"), iter(range(most))
        began = clock()

        async def lane() -> None:
            for i in numbers:
                self._called.append(time.monotonic_ns())
                called = clock()
                await (normal if i % urgent_every else urgent)(first + i, TEXT)
                took.append(clock() - called)
                if clock() > began + seconds:
                    return

        await asyncio.gather(*(lane() for _ in range(lanes)))
        return {"n": len(self._called), "seconds": clock() - began, "call_ms": sorted(took)[len(took) // 2] * 1e3}

    async def waits(self) -> Answer:
        """Milliseconds from the call to the start, of each job of the last `pace` or `rush`; all have started."""
        starts = Probe(os.environ["BENCH_PROBE"]).times(self._first, len(self._called))
        return {"ms": [round((start - called) / 1e6, 3) for start, called in zip(starts, self._called, strict=True)]}

    async def totals(self) -> Answer:
        """The queue's own counters, and how many workers wait."""
        stats = await app.queue().astats()
        return {**stats.totals, "idle_workers": stats.idle_workers}

    async def hold(self, held: bool) -> Answer:
        """Let workers start nothing, or go on."""
        await (app.queue().apause() if held else app.queue().aresume())
        return {}


async def _put(task: Task[..., Any], value: Any, numbers: range) -> None:
    await task.aenqueue_many([((i, value), {}) for i in numbers])
