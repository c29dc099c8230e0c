"""`python -m bench failing`: jobs that fail in masses, beside as many that go well, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench import options, report
from bench.progress import say
from bench.results import machine
from bench.server import Server
from relevo import Relevo
from relevo.worker.worker import Worker

EPILOG = """\
examples:
  python -m bench failing                   20,000 jobs of each kind, three times in turns
  python -m bench failing --jobs 5000       fewer

exit codes: 0 measured, 2 wrong usage"""
KINDS = ("go well", "are tried again", "become dead letters")
_AT_ONCE = 1000


class Drain(NamedTuple):
    """One drain of jobs that all end alike."""

    jobs_per_s: float
    #: microseconds per job: of the worker's process, of the server's
    worker_us: float
    server_us: float


def perform(args: argparse.Namespace) -> int:
    """Drain jobs of each kind in turns; print rates, ratios, and where the time goes."""
    logging.getLogger("relevo.worker").addHandler(logging.NullHandler())
    with Server(args.server) as server:
        about = machine(server)
        found: dict[str, list[Drain]] = {kind: [] for kind in KINDS}
        for turn in range(args.repeat):
            for kind in KINDS:
                found[kind].append(asyncio.run(_drain(server, kind, args.jobs)))
                say(f"  {turn + 1} of {args.repeat}: jobs that {kind}: {found[kind][-1].jobs_per_s:,.0f}/s")
    middle = {kind: Drain(*map(statistics.median, zip(*runs, strict=True))) for kind, runs in found.items()}
    well = middle[KINDS[0]]
    told = {kind: {**one._asdict(), "ratio": one.jobs_per_s / well.jobs_per_s} for kind, one in middle.items()}
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": about, "jobs": args.jobs, "kinds": told}, indent=1) + "\n")
    print(f"{report.plain(about, {})}\n\n{_table(told)}")
    return 0


async def _drain(server: Server, kind: str, n: int) -> Drain:
    app = Relevo("failing", url=server.url, env="bench")

    @app.task(name="job", retries=3 if kind == KINDS[1] else 0, backoff=3600)
    async def job(n: int) -> None:
        if kind != KINDS[0]:
            raise ValueError(f"number {n} fails")

    for first in range(0, n, _AT_ONCE):
        await job.aenqueue_many(((number,), {}) for number in range(first, min(n, first + _AT_ONCE)))
    before, spent = server.counters(), time.process_time()
    await Worker(app, concurrency=100, burst=True).run()
    spent, added = time.process_time() - spent, server.counters().since(before)
    await app.aclose()
    server.flush()
    return Drain(n / added.at, spent / n * 1e6, added.cpu / n * 1e6)


def _table(told: dict[str, dict[str, Any]]) -> str:
    rows = []
    for kind, one in told.items():
        spent = [f"{one['worker_us']:.0f}", f"{one['server_us']:.0f}"]
        rows.append([f"jobs that {kind}", f"{one['jobs_per_s']:,.0f}", f"{one['ratio']:.2f}", *spent])
    return report.columns(["", "per second", "ratio", "worker, µs per job", "server, µs per job"], rows)


def parser() -> argparse.ArgumentParser:
    """Its options."""
    what = "Measure jobs that fail in masses beside jobs that go well."
    found = options.parser("python -m bench failing", what, EPILOG)
    add = found.add_argument
    add("--jobs", type=int, default=20_000, metavar="N", help="jobs of each kind (default: 20000)")
    add("--repeat", type=int, default=3, metavar="N", help="how often, in turns; medians are shown (default: 3)")
    add("--json", metavar="FILE", help="write the numbers to a file")
    return found
