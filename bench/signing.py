"""`python -m bench signing`: what signing jobs and results costs, against the same without keys, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import options, report
from bench.progress import say
from bench.results import machine
from bench.server import Server
from relevo import Relevo, Task
from relevo.worker.worker import Worker

EPILOG = """\
examples:
  python -m bench signing                   20,000 jobs without keys and with one, five times in turns
  python -m bench signing --jobs 5000       fewer

exit codes: 0 measured, 2 wrong usage"""
KEY = "k1:0123456789abcdef0123456789abcdef"
_AT_ONCE = 1000


class Figures(NamedTuple):
    """What was found with one setting of `signing_keys`."""

    one: float
    bulk: float
    drain: float
    drain_results: float
    requests: float
    bytes_per_job: float


TITLES = {
    "one": "enqueue one by one, jobs/s",
    "bulk": "enqueue in bulk, jobs/s",
    "drain": "drain, jobs/s",
    "drain_results": "drain with results, jobs/s",
    "requests": "requests, 100 at once, 1/s",
    "bytes_per_job": "memory per queued job, bytes",
}


def perform(args: argparse.Namespace) -> int:
    """Measure without keys and with one in turns; print both and the ratio."""
    with Server(args.server) as server:
        about = machine(server)
        found: dict[bool, list[Figures]] = {False: [], True: []}
        for turn in range(args.repeat):
            for signed in (False, True) if turn % 2 == 0 else (True, False):
                found[signed].append(asyncio.run(_take(server, signed, args.jobs)))
                rate = found[signed][-1].drain
                say(f"  {turn + 1} of {args.repeat}: {'signed' if signed else 'unsigned'}: drain {rate:,.0f}/s")
    plain, signed_ = (Figures(*map(statistics.median, zip(*found[kind], strict=True))) for kind in (False, True))
    told = {
        name: {"plain": a, "signed": b, "ratio": b / a}
        for name, a, b in zip(Figures._fields, plain, signed_, strict=True)
    }
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": about, "jobs": args.jobs, "figures": told}, indent=1) + "\n")
    print(f"{report.plain(about, {})}\n\n{_table(told)}")
    return 0


async def _take(server: Server, signed: bool, n: int) -> Figures:
    app = Relevo("signing", url=server.url, env="bench", signing_keys=[KEY] if signed else [])

    @app.task(name="job", result_ttl=0)
    async def job(i: int, s: str) -> int:
        return i

    @app.task(name="kept", result_ttl="10m")
    async def kept(i: int, s: str) -> int:
        return i

    await job.aenqueue(0, "")
    server.flush()
    app.engine.forget_lists()
    alone = max(100, n // 10)
    began = time.monotonic()
    for number in range(alone):
        await job.aenqueue(number, "x" * 20)
    one = alone / (time.monotonic() - began)
    before = server.memory()
    bulk = await _filled(job, n)
    size = (server.memory() - before) / n
    drain = (n + alone) / await _drained(app)
    await _filled(kept, n)
    drain_results = n / await _drained(app)
    requests = await _asked(app, alone)
    await app.aclose()
    server.flush()
    return Figures(one, bulk, drain, drain_results, requests, size)


async def _filled(task: Task[..., Any], n: int) -> float:
    """Jobs a second."""
    began = time.monotonic()
    for first in range(0, n, _AT_ONCE):
        await task.aenqueue_many(((number, "x" * 20), {}) for number in range(first, min(n, first + _AT_ONCE)))
    return n / (time.monotonic() - began)


async def _drained(app: Relevo) -> float:
    """Seconds until the queue was empty."""
    began = time.monotonic()
    await Worker(app, concurrency=100, burst=True).run()
    return time.monotonic() - began


async def _asked(app: Relevo, n: int) -> float:
    """Answers a second."""

    @app.service("back").action("echo")
    async def echo(i: int) -> int:
        return i

    worker, front, numbers = Worker(app, concurrency=100), app.service("front"), iter(range(n))
    working = asyncio.create_task(worker.run())
    await front.arequest("back.echo", {"i": 0}, wait=True)

    async def ask() -> None:
        for number in numbers:
            await front.arequest("back.echo", {"i": number})

    began = time.monotonic()
    await asyncio.gather(*(ask() for _ in range(100)))
    spent = time.monotonic() - began
    worker.stop()
    await working
    return n / spent


def _table(told: dict[str, dict[str, float]]) -> str:
    rows = [
        [TITLES[name], f"{one['plain']:,.0f}", f"{one['signed']:,.0f}", f"{one['ratio']:.2f}"]
        for name, one in told.items()
    ]
    return report.columns(["", "without keys", "with a key", "ratio"], rows)


def parser() -> argparse.ArgumentParser:
    """Its options."""
    what = "Measure what signing jobs, messages and results costs, against the same without keys."
    found = options.parser("python -m bench signing", what, EPILOG)
    add = found.add_argument
    add("--jobs", type=int, default=20_000, metavar="N", help="jobs of each drain (default: 20000)")
    add("--repeat", type=int, default=5, metavar="N", help="how often, in turns; medians are shown (default: 5)")
    add("--json", metavar="FILE", help="write the numbers to a file")
    return found
