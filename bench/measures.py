"""What is measured. Each measure is bounded and gives a number; none of them is a test."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.parts import Server, worker
from relevo import Task

from . import jobs

TEXT = "hello-world"


class Row:
    """One line of the table."""

    def __init__(self, name: str, value: float, unit: str, note: str = "") -> None:
        self.name = name
        self.value = value
        self.unit = unit
        self.note = note


def _drained(deadline: float = 120) -> None:
    queue = jobs.app.queue()
    until = time.monotonic() + deadline
    while queue.stats().living:
        if time.monotonic() > until:
            raise TimeoutError("the worker did not drain the queue")
        time.sleep(0.02)


def _fill(task: Task[..., Any], n: int) -> float:
    began = time.perf_counter()
    for start in range(0, n, 50_000):
        task.enqueue_many([((number, TEXT), {}) for number in range(start, min(n, start + 50_000))])
    return time.perf_counter() - began


def enqueue(server: Server, n: int) -> list[Row]:
    """Enqueue one by one, at once from many sides, and in bulk."""
    rows = []
    for number in range(100):
        jobs.noop.enqueue(number, TEXT)
    server.flush()
    jobs.app._listed.clear()
    began = time.perf_counter()
    for number in range(n):
        jobs.noop.enqueue(number, TEXT)
    rows.append(Row("enqueue one by one, blocking", n / (time.perf_counter() - began), "jobs/s"))

    def produce() -> None:
        for number in range(n // 16):
            jobs.noop.enqueue(number, TEXT)

    threads = [threading.Thread(target=produce) for _ in range(16)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows.append(Row("enqueue, 16 threads", n / (time.perf_counter() - began), "jobs/s"))

    async def one_by_one() -> float:
        for number in range(100):
            await jobs.noop.aenqueue(number, TEXT)
        began = time.perf_counter()
        for number in range(n):
            await jobs.noop.aenqueue(number, TEXT)
        return time.perf_counter() - began

    async def at_once() -> float:
        async def produce() -> None:
            for number in range(n // 25):
                await jobs.noop.aenqueue(number, TEXT)

        began = time.perf_counter()
        await asyncio.gather(*(produce() for _ in range(100)))
        took = time.perf_counter() - began
        await jobs.app.aclose()
        return took

    rows.append(Row("enqueue one by one, async", n / _run(one_by_one), "jobs/s"))
    rows.append(Row("enqueue, 100 tasks", 4 * n / _run(at_once), "jobs/s"))
    server.flush()
    jobs.app._listed.clear()
    took = _fill(jobs.noop, n * 5)
    rows.append(Row("enqueue in bulk", n * 5 / took, "jobs/s"))
    before = server.memory()
    _fill(jobs.noop, n * 5)
    rows.append(Row("memory per queued job", (server.memory() - before) / (n * 5), "bytes"))
    server.flush()
    jobs.app._listed.clear()
    return rows


def _run(measure: Callable[[], Awaitable[float]]) -> float:
    async def main() -> float:
        return await measure()

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    result: float = uvloop.run(main())
    return result


def drain(server: Server, n: int) -> list[Row]:
    """How fast one worker process empties a queue, from the first start until all is settled."""
    rows = []
    for task, name in (
        (jobs.noop, "drain"),
        (jobs.noop_kept, "drain with results"),
        (jobs.noop_plain, "drain, threads"),
    ):
        server.flush()
        jobs.app._listed.clear()
        with worker() as process:
            _warm_up()
            queue = jobs.app.queue()
            queue.pause()
            _fill(task, n)
            commands, cpu, worker_cpu = server.commands(), server.cpu(), process.cpu()
            began = time.perf_counter()
            queue.resume()
            _drained()
            took = time.perf_counter() - began
            per_job = (
                (server.commands() - commands) / n,
                (server.cpu() - cpu) / n * 1e6,
                (process.cpu() - worker_cpu) / n * 1e6,
            )
        note = f"{per_job[0]:.2f} commands, {per_job[1]:.1f} µs server, {per_job[2]:.1f} µs worker a job"
        rows.append(Row(name, n / took, "jobs/s", note))
    return rows


def _warm_up() -> None:
    for _ in range(20):
        jobs.clock.enqueue().result(20)


def latency(server: Server, samples: int) -> list[Row]:
    """An idle worker: from the enqueue call to the start of the job, and to its result."""
    server.flush()
    jobs.app._listed.clear()
    starts, trips = [], []

    async def measure() -> float:
        for _ in range(samples):
            called = time.time()
            began = time.perf_counter()
            job = await jobs.clock.aenqueue()
            started = await job.aresult(10)
            trips.append((time.perf_counter() - began) * 1000)
            starts.append((started - called) * 1000)
            await asyncio.sleep(0.005)
        await jobs.app.aclose()
        return 0.0

    with worker():
        _warm_up()
        _run(measure)
        time.sleep(2)
        commands = server.commands()
        time.sleep(15)
        idle = (server.commands() - commands) / 15
    rows = []
    for name, found in (("idle start", starts), ("enqueue to result", trips)):
        cuts = statistics.quantiles(found, n=100)
        rows.append(Row(f"{name}, p50", cuts[49], "ms", f"p99 {cuts[98]:.2f} ms"))
    rows.append(Row("idle worker", idle, "commands/s"))
    return rows


def backlog(server: Server, small: int, large: int) -> list[Row]:
    """Whether a long queue makes jobs dearer: jobs a second in the first seconds of a short and a long one."""
    rows = []
    for n in (small, large):
        server.flush()
        jobs.app._listed.clear()
        with worker():
            _warm_up()
            queue = jobs.app.queue()
            queue.pause()
            _fill(jobs.noop, n)
            began = time.perf_counter()
            queue.resume()
            while queue.stats().living > max(0, n - 3 * small):
                time.sleep(0.01)
            took = time.perf_counter() - began
            queue.pause()
            queue.clear()
            done = min(n, 3 * small)
        rows.append(Row(f"drain with {n:,} queued", done / took, "jobs/s"))
    return rows
