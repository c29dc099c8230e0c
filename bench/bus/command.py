"""`python -m bench bus`: its options, and its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from bench import options
from bench.bus import report
from bench.bus.run import Plan, run
from bench.progress import say
from bench.results import Results, machine
from bench.server import Server

EPILOG = """\
examples:
  python -m bench bus                                     two minutes
  python -m bench bus --rounds 2 --requests 2000          a quick look
  python -m bench bus --in-flight 1000 --json bus.json    many at once; numbers of every round to a file

exit codes: 0 all measured, 1 something failed, a request had no proper end, or relevo left keys behind, 2 wrong usage

BENCH_PIN=0 leaves the choice of cores to the system. docs/benchmarks.md says how to read the numbers."""


def perform(args: argparse.Namespace) -> int:
    """Measure, print, and say whether every request ended as it should."""
    results = Results(args.json)
    with Server(args.server) as server:
        results.machine = machine(server)
        run(server, Plan(args.rounds, args.requests, args.in_flight, args.keep_logs), results)
    print(results.as_json() if args.json == "-" else report.plain(results.machine, results.added))
    failed = report.failures(results.added)
    for failure in failed:
        say(f"FAILED: {failure}")
    return 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    """Its options."""
    found = options.parser(
        "python -m bench bus",
        "Measure request and reply: relevo's bus against a list for every answer, in turns on one server.",
        EPILOG,
    )
    add = found.add_argument
    add(
        "--rounds",
        type=_from_one_to(1000),
        default=5,
        metavar="N",
        help="turns of each side; medians count (default: 5)",
    )
    add("--requests", type=_from_one_to(1_000_000), default=10_000, metavar="N", help="of each turn (default: 10,000)")
    add("--in-flight", type=_from_one_to(1_500), default=100, metavar="N", help="requests at once (default: 100)")
    add("--json", metavar="FILE", help="add the results to a file; - prints them instead of tables")
    add("--keep-logs", action="store_true", help="keep what clients and responders wrote, and say where")
    return found


def _from_one_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        found = int(text)
        if not 1 <= found <= most:
            raise argparse.ArgumentTypeError(f"a whole number from 1 to {most:,} is needed, found {text}")
        return found

    return number
