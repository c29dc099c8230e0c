"""The client process of a product: enqueues and times what the harness asks for.

`python -m bench.driver module:Class` runs in the product's interpreter. It reads one request per line from standard
input and answers each with one line of JSON. A blocking product is driven without an event loop: its operations are the
same coroutines, which then never have to wait for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import itertools
import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

from bench.adapters.contract import TEXT, Adapter
from bench.probe import Probe

clock = time.perf_counter
Answer = dict[str, Any]

TASKS = 100
THREADS = 16
#: Beside the product itself, these decide how fast it is.
COMPANIONS = ("redis", "hiredis", "uvloop", "kombu", "taskiq-redis", "coredis", "msgspec")


class Driver:
    """The operations. Their times are seconds, and each ends when its `seconds` are over, however few jobs it made."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._probe = Probe(os.environ["BENCH_PROBE"])

    async def about(self) -> Answer:
        """What the harness must know of the product."""
        adapter = self._adapter
        versions = {}
        for name in (adapter.distribution, *COMPANIONS):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        return {
            "versions": versions,
            "settings": adapter.settings,
            "reliability": adapter.reliability,
            "is_async": adapter.is_async,
            "recovers": adapter.recovers,
            "cleans_up": adapter.cleans_up,
            "bulk": adapter.bulk,
            "has_delayed": adapter.has_delayed,
            "worker": adapter.worker(),
        }

    async def one(self, seconds: float, n: int = sys.maxsize) -> Answer:
        """Enqueue one by one, each when the one before is stored."""
        enqueue, is_async, done = self._adapter.enqueue, self._adapter.is_async, 0
        began = clock()
        until = began + seconds
        while done < n and clock() < until:
            if is_async:
                await enqueue(done, TEXT)
            else:
                enqueue(done, TEXT)
            done += 1
        return {"n": done, "seconds": clock() - began}

    async def bulk(self, seconds: float, n: int = sys.maxsize) -> Answer:
        """Enqueue with the product's bulk call."""
        adapter, done = self._adapter, 0
        began = clock()
        while done < n and clock() < began + seconds:
            size = min(adapter.bulk, n - done)
            await self._wait(adapter.enqueue_bulk([(done + i, TEXT) for i in range(size)]))
            done += size
        return {"n": done, "seconds": clock() - began}

    async def concurrent(self, seconds: float) -> Answer:
        """Many tasks or threads of one process enqueue one by one, as in a busy web server."""
        return await self._abreast(TASKS if self._adapter.is_async else THREADS, seconds, self._adapter.enqueue)

    async def fill(self, n: int, seconds: float) -> Answer:
        """Put `n` jobs on the queue in the fastest way the product has."""
        if self._adapter.bulk:
            return await self.bulk(seconds, n)
        if self._adapter.is_async:
            return await self._abreast(self._adapter.fill_lanes, seconds, self._adapter.enqueue, n)
        return await self.one(seconds, n)

    async def fill_at(self, n: int, seconds: float, when: float) -> Answer:
        """The same for jobs that are due at one instant."""
        adapter = self._adapter
        if adapter.is_async and not adapter.bulk_at:
            return await self._abreast(adapter.fill_lanes, seconds, lambda i, s: adapter.enqueue_at(i, s, when), n)
        done, began = 0, clock()
        while done < n and clock() < began + seconds:
            size = min(adapter.bulk_at or 1, n - done)
            if adapter.bulk_at:
                await self._wait(adapter.enqueue_at_bulk([(done + i, TEXT) for i in range(size)], when))
            else:
                adapter.enqueue_at(done, TEXT, when)
            done += size
        return {"n": done, "seconds": clock() - began}

    async def starts(self, first: int, n: int, gap: tuple[float, float], timeout: float = 10) -> Answer:
        """One job at a time into an idle worker: milliseconds from the call to the start of the job."""
        found: list[float] = []
        for i in range(first, first + n):
            await self._pause(random.uniform(*gap))
            called = time.monotonic_ns()
            await self._wait(self._adapter.enqueue(i, TEXT))
            until = clock() + timeout
            # The job notes its start itself. Looking more often would take the processor from the worker.
            while not self._probe.started(i) and clock() < until:
                await self._pause(0.005)
            if self._probe.started(i):
                found.append((self._probe.started(i) - called) / 1e6)
        return {"ms": found, "lost": n - len(found)}

    async def results(self, first: int, n: int, gap: tuple[float, float]) -> Answer:
        """One job at a time: milliseconds from the call until its result is here."""
        found: list[float] = []
        for i in range(first, first + n):
            await self._pause(random.uniform(*gap))
            began = clock()
            result = await self._wait(self._adapter.call(i, TEXT))
            found.append((clock() - began) * 1e3)
            if result != i:
                raise RuntimeError(f"job {i} gave {result!r}: its result must be its number")
        return {"ms": found}

    async def unfinished(self) -> Answer:
        """How many jobs are not acknowledged yet."""
        return {"n": await self._wait(self._adapter.unfinished())}

    async def ask(self, method: str, **arguments: Any) -> Answer:
        """A method that only some adapters have, for measures of their own."""
        answer: Answer = await self._wait(getattr(self._adapter, method)(**arguments))
        return answer

    async def _abreast(
        self, lanes: int, seconds: float, enqueue: Callable[[int, str], Any], n: int = sys.maxsize
    ) -> Answer:
        numbers = iter(range(n)) if n < sys.maxsize else itertools.count()
        began = clock()
        until = began + seconds

        async def tasks_lane() -> int:
            done = 0
            for i in numbers:
                await enqueue(i, TEXT)
                done += 1
                if clock() > until:
                    break
            return done

        def thread_lane(_: int) -> int:
            done = 0
            for i in numbers:
                enqueue(i, TEXT)
                done += 1
                if clock() > until:
                    break
            return done

        if self._adapter.is_async:
            done = sum(await asyncio.gather(*(tasks_lane() for _ in range(lanes))))
        else:
            with ThreadPoolExecutor(lanes) as threads:
                done = sum(threads.map(thread_lane, range(lanes)))
        return {"n": done, "seconds": clock() - began, "lanes": lanes}

    async def _wait(self, value: Any) -> Any:
        return await value if self._adapter.is_async and asyncio.iscoroutine(value) else value

    async def _pause(self, seconds: float) -> None:
        if self._adapter.is_async:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - there is no loop here


async def answer(driver: Driver, line: str) -> str:
    """Carry out one request; an error is an answer, too."""
    request = json.loads(line)
    try:
        found = await getattr(driver, request.pop("op"))(**request)
    except Exception as error:
        traceback.print_exc()
        found = {"error": f"{type(error).__name__}: {error}"}
    return json.dumps(found) + "\n"


def finished(operation: Coroutine[Any, Any, Any]) -> Any:
    """The value of a coroutine that waits for nothing."""
    try:
        operation.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a blocking adapter waited for an event loop")


def serve_blocking(adapter: Adapter, out: TextIO) -> None:
    """Answer requests without an event loop."""
    driver = Driver(adapter)
    adapter.open()
    for line in sys.stdin:
        out.write(finished(answer(driver, line)))
        out.flush()
    adapter.close()


async def serve_async(adapter: Adapter, out: TextIO) -> None:
    """Answer requests on an event loop, which goes on while none comes."""
    driver = Driver(adapter)
    opened = adapter.open()
    if asyncio.iscoroutine(opened):
        await opened
    while line := await asyncio.to_thread(sys.stdin.readline):
        out.write(await answer(driver, line))
        out.flush()
    closed = adapter.close()
    if asyncio.iscoroutine(closed):
        await closed


def main() -> None:
    """Serve until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    module, _, name = sys.argv[1].partition(":")
    adapter: Adapter = getattr(importlib.import_module(module), name)()
    if not adapter.is_async:
        serve_blocking(adapter, out)
        return
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve_async(adapter, out))
    else:
        uvloop.run(serve_async(adapter, out))


if __name__ == "__main__":
    main()
