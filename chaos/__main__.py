"""`./dev chaos`: one row of figures per fault, then the long forms of the random stories.

    ./dev chaos                                  three runs per fault, then the stories
    ./dev chaos --cells kill --runs 20 --no-stories
    ./dev chaos --stories-only -k schedules

Faults run with the product's default settings. A ledger outside the server keeps every start and end of a job, and says
what was lost or ran twice. Nothing here is part of the tests: a promise in seconds is shown, not asserted, because a
machine may stand still. A row is marked where a job was lost, ran twice without a reason, or left a key behind, and
where a worker logged a traceback or ended.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct, field, to_builtins
from tests.leaks import leaks
from tests.process.harness import Site
from tests.servers import Server
from tests.topologies import Cluster

from chaos.cells import CELLS, OTHERS, Cell

#: The product's own defaults, which the tests replace by longer ones.
DEFAULTS = {"lease": "12s", "call_timeout": "5s", "connect_timeout": "3s"}
DURABLE = {"appendonly": "yes", "appendfsync": "always"}
#: Tests that have a long form: those that ask for RELEVO_CHAOS.
STORIES = (
    "tests/machine",
    "tests/process/test_schedules.py",
    "tests/store/test_cleanup.py",
    "tests/system/test_bench.py",
    "tests/system/test_bus_load.py",
    "tests/system/test_purge_traffic.py",
    "tests/system/test_web_document.py",
)
HEADS = (
    *("fault", "runs", "jobs", "acknowledged", "lost", "doubled", "commits twice"),
    *("recovery p50", "max", "promise", "leaked", "exits", "tracebacks", ""),
)


class Row(Struct):
    """What became of all runs of one fault."""

    fault: str
    promise: float
    runs: int = 0
    #: that somebody tried to enqueue
    jobs: int = 0
    acknowledged: int = 0
    lost: int = 0
    #: starts beyond the first; where a worker died or could not be reached: ends beyond the first
    doubled: int = 0
    #: outcomes that the server took beyond one per job
    #: whether that was more than the fault explains, in any run
    is_beyond_bound: bool = False
    commits_twice: int = 0
    leaked: int = 0
    exits: int = 0
    #: in the logs of the workers: a fault of the server is told in a line
    tracebacks: int = 0
    recovery: list[float] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not (
            self.lost or self.is_beyond_bound or self.commits_twice or self.leaked or self.exits or self.tracebacks
        )


def main() -> int:
    parser = argparse.ArgumentParser("dev chaos", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cells", default="", help="only faults whose name contains this text")
    parser.add_argument("--runs", type=int, default=3, help="runs per fault (default: 3)")
    parser.add_argument("--parallel", type=int, default=4, help="faults at a time; most of them only wait (default: 4)")
    parser.add_argument("--seed", type=int, default=None, help="(default: random, printed)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the rows there as well")
    parser.add_argument("--no-stories", action="store_true", help="only the faults")
    parser.add_argument("--stories-only", action="store_true", help="only the stories; further arguments go to pytest")
    args, pytest_args = parser.parse_known_args()
    cells = [cell for cell in CELLS if args.cells in cell.name]
    if not cells:
        parser.error(f"--cells: no fault contains {args.cells!r}; there are: {', '.join(cell.name for cell in CELLS)}")
    code = 0
    if not args.stories_only:
        code = _faults(cells, args)
    if not args.no_stories:
        code = _stories(pytest_args) or code
    return code


def _faults(cells: list[Cell], args: argparse.Namespace) -> int:
    seed = random.randrange(1_000_000) if args.seed is None else args.seed
    print(f"seed {seed}; settings {', '.join(f'{name} {value}' for name, value in DEFAULTS.items())}")
    print(_line(HEADS), flush=True)
    with ThreadPoolExecutor(args.parallel) as pool:
        rows = list(pool.map(lambda cell: _row(cell, args.runs, random.Random(f"{seed} {cell.name}")), cells))
    if args.json is not None:
        args.json.write_text(json.dumps({"seed": seed, "rows": [to_builtins(row) for row in rows]}, indent=2) + "\n")
    return int(not all(row.is_clean for row in rows))


def _row(cell: Cell, runs: int, chance: random.Random) -> Row:
    """All runs of one fault; prints its row."""
    row = Row(cell.name, cell.promise)
    for run in range(runs):
        _progress(f"{cell.name}: run {run + 1} of {runs}")
        _run(cell, row, chance)
    _progress("")
    print(_line(_shown(row)), flush=True)
    return row


def _run(cell: Cell, row: Row, chance: random.Random) -> None:
    """One run on a server of its own, with other jobs around the one that is watched."""
    with (
        tempfile.TemporaryDirectory(prefix="relevo-chaos-") as place,
        _server_of(cell, Path(place) / "server") as server,
        Site(server, Path(place), **DEFAULTS) as site,
    ):
        site.enqueue_many("nap", range(1000, 1000 + OTHERS), 0.01)
        row.recovery.append(cell.harm(site, server, chance))
        if not any(worker.is_running for worker in site.workers):
            site.start()
        _wait_quiet(site)
        ended = Counter(effect.n for effect in site.effects("end"))
        started = Counter(effect.n for effect in site.effects("start"))
        row.runs += 1
        totals = site.queue.stats().totals
        asked = site.unsure | set(site.acknowledged)
        row.jobs += len(asked)
        row.acknowledged += len(site.acknowledged)
        row.commits_twice += max(0, totals.get("done", 0) + totals.get("dead", 0) - len(asked))
        row.lost += sum(not ended[n] for n in site.acknowledged)
        doubled = sum(times - 1 for times in (started if cell.repeats is None else ended).values() if times > 1)
        row.doubled += doubled
        row.is_beyond_bound |= doubled > (cell.repeats or 0)
        row.leaked += len(leaks(server, site.name))
        row.exits += sum(not worker.was_ended and not worker.is_running for worker in site.workers)
        found = [trace for worker in site.workers for trace in worker.tracebacks]
        row.tracebacks += len(found)
        if found:
            print(f"{cell.name}: the log of a worker has\n{found[0]}", file=sys.stderr)


def _server_of(cell: Cell, directory: Path) -> Server | Cluster:
    if cell.server is Cluster:
        directory.mkdir()
        return Cluster(directory)
    return Server(directory=directory, config=DURABLE)


def _wait_quiet(site: Site) -> None:
    until = time.monotonic() + 120
    while site.queue.stats().living and time.monotonic() < until:
        time.sleep(0.1)


def _shown(row: Row) -> tuple[str, ...]:
    return (
        row.fault,
        *map(str, (row.runs, row.jobs, row.acknowledged, row.lost, row.doubled, row.commits_twice)),
        f"{statistics.median(row.recovery):.2f} s",
        f"{max(row.recovery):.2f} s",
        f"{row.promise:g} s",
        *map(str, (row.leaked, row.exits, row.tracebacks)),
        ("" if max(row.recovery) <= row.promise else "later than documented") if row.is_clean else "FAULT",
    )


def _line(cells: tuple[str, ...]) -> str:
    widths = (28, 5, 6, 13, 5, 8, 14, 13, 9, 8, 7, 6, 11, 0)
    return "".join(
        cell.ljust(width) if place == 0 else cell.rjust(width) if width else f"  {cell}"
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _stories(pytest_args: list[str]) -> int:
    """The tests with a long form, in that form."""
    workers = str((os.cpu_count() or 2) + 1)
    command = [sys.executable, "-m", "pytest", "-n", workers, "--dist", "worksteal", "-q", "--durations=10", *STORIES]
    print("random stories and storms, in their long form", flush=True)
    return subprocess.run([*command, *pytest_args], env={**os.environ, "RELEVO_CHAOS": "1"}).returncode


if __name__ == "__main__":
    sys.exit(main())
