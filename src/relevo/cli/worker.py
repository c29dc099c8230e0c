"""`relevo worker`: run an app's jobs."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Literal

from relevo.cli.options import Subparsers, add_module, command
from relevo.settings import load


def add(commands: Subparsers) -> None:
    """Describe the command."""
    parser = command(
        commands,
        "worker",
        "run an app's jobs",
        about="""
        Runs an app's jobs until stopped. SIGTERM or Ctrl-C: finish what runs, hand the rest back; a second time: hand
        back at once.
        """,
        examples="""
        relevo worker shop.jobs:app
        relevo worker shop.jobs:app -Q default,mail:20 -c 50 -p 2
        """,
    )
    add_module(parser)
    parser.add_argument(
        "-Q",
        "--queues",
        action="append",
        default=[],
        help="queues to serve, with commas or again; mail:20 gives it 20 slots (default: all of the app)",
    )
    parser.add_argument("-c", "--concurrency", type=int, help="jobs at once in one process (default: 100)")
    parser.add_argument("-t", "--threads", type=int, help="threads for plain functions in one process (default: 32)")
    parser.add_argument("-p", "--processes", type=int, default=1, help="worker processes (default: 1)")
    parser.add_argument("--burst", action="store_true", help="stop when nothing is left to do")
    parser.add_argument("--max-jobs", type=int, help="start a process anew after so many jobs")
    parser.add_argument("--max-memory", type=int, metavar="MIB", help="start a process anew above so much memory")
    parser.add_argument(
        "--metrics-port", type=int, metavar="PORT", help="serve metrics for Prometheus at this port, under /metrics"
    )
    parser.add_argument("--metrics-host", metavar="HOST", help="address to serve them at (default: 127.0.0.1)")
    parser.add_argument(
        "--alive-file",
        metavar="PATH",
        help="touch this file while all is well; for probes: python -m relevo.alive PATH",
    )
    parser.add_argument(
        "--log-jobs",
        action=argparse.BooleanOptionalAction,
        help="log each job that starts and that is done, and tracebacks of dead ones; on a terminal the default, with "
        "up to 100 lines per second",
    )
    parser.add_argument(
        "--reload", action="store_true", help="for development: start anew when a file of the project changes"
    )
    parser.add_argument("--log-level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"])


def run(args: argparse.Namespace) -> int:
    """Supervise worker processes: the exit code."""
    import os
    import sys

    from relevo.errors import OptionError
    from relevo.text.slots import MOST_SLOTS, queues_with_slots
    from relevo.worker.child import Order
    from relevo.worker.division import checked_concurrency
    from relevo.worker.reload import needs_extra
    from relevo.worker.supervisor import Supervisor

    app = args.app or os.environ.get("RELEVO_APP")
    if not app:
        print("relevo worker: say which app, such as shop.jobs:app, or set RELEVO_APP", file=sys.stderr)
        return 2
    for option in ("concurrency", "threads", "processes", "max_jobs", "max_memory"):
        value = getattr(args, option)
        if value is not None and not 1 <= value <= 100_000:
            print(f"relevo worker: --{option.replace('_', '-')} is a number from 1 to 100000", file=sys.stderr)
            return 2
    if args.metrics_port is not None and not 0 <= args.metrics_port <= 65_535:
        print("relevo worker: --metrics-port is a number from 1 to 65535 (0: any that is free)", file=sys.stderr)
        return 2
    if args.metrics_host is not None and args.metrics_port is None:
        print("relevo worker: --metrics-host says where, and --metrics-port is missing", file=sys.stderr)
        return 2
    queues = tuple(name.strip() for name in ",".join(args.queues).split(",") if name.strip())
    try:
        checked_concurrency(queues_with_slots("-Q", queues), args.concurrency, MOST_SLOTS)
    except OptionError as error:
        print(f"relevo worker: {error}", file=sys.stderr)
        return 2
    if args.reload:
        if args.burst:
            print("relevo worker: --reload goes on until it is stopped: leave out --burst", file=sys.stderr)
            return 2
        needs_extra()
    alive_file = Path(args.alive_file) if args.alive_file else None
    if alive_file is not None:
        try:
            alive_file.touch()
            alive_file.unlink()  # a file left by an earlier worker must not count for this one
        except OSError as error:
            print(f"relevo worker: --alive-file {alive_file} cannot be written: {error.strerror}", file=sys.stderr)
            return 2
    logging.basicConfig(
        level=args.log_level, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    order = Order(
        app=app,
        queues=queues,
        concurrency=args.concurrency,
        threads=args.threads,
        burst=args.burst,
        max_jobs=args.max_jobs,
        max_memory=args.max_memory,
        log_level=args.log_level,
        reload=args.reload,
        log_jobs=_log_jobs(args.log_jobs, is_terminal=sys.stderr.isatty()),
    )
    settings = load()
    supervisor = Supervisor(order, args.processes, settings, alive_file=alive_file)
    if args.metrics_port is None:
        return supervisor.run()

    from relevo.metrics.endpoint import Scraped

    with Scraped(args.metrics_host or "127.0.0.1", args.metrics_port) as scraped:
        supervisor.on_contact = scraped.know
        return supervisor.run()


def _log_jobs(given: bool | None, *, is_terminal: bool) -> Literal["none", "some", "all"]:
    if given is None:
        return "some" if is_terminal else "none"
    return "all" if given else "none"
