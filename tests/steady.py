"""Runs the suite under bad conditions, to find tests that depend on the speed of the machine.

    ./dev steady                                 six runs: two quiet, two busy, two stalled
    ./dev steady --runs stalled,stalled tests/process -k kill
    ./dev steady --runs busy --burners 12

`busy`: other processes keep all cores occupied. `stalled`: all processes of the run are stopped at random for up to two
seconds, a fifth of the time; now and then only the tests themselves, while their servers and workers go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args
from uuid import uuid4

Mode = Literal["quiet", "busy", "stalled"]
DEFAULT_RUNS = "quiet,quiet,busy,busy,stalled,stalled"
LONGEST_STALL = 2.0
#: Share of the time in which the processes are stopped.
STALLED_SHARE = 0.2
#: Inherited by every process of a run. Tests drop variables that begin with RELEVO_, so this does not.
MARK = "STEADY_RUN"


class Result(NamedTuple):
    """One run of the suite."""

    mode: str
    code: int
    seconds: float
    summary: str
    failed: list[str]


def main() -> int:
    """Run the suite once per mode; 1 if any run failed."""
    parser = argparse.ArgumentParser("dev steady", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", default=DEFAULT_RUNS, help=f"modes, separated by commas (default: {DEFAULT_RUNS})")
    parser.add_argument("--burners", type=int, default=6, help="busy processes beside a busy run (default: 6)")
    parser.add_argument("--seed", type=int, default=None, help="for the stalls (default: random, printed)")
    parser.add_argument("--log", type=Path, default=Path("steady.log"), help="output of all runs (default: steady.log)")
    args, pytest_args = parser.parse_known_args()
    runs = args.runs.split(",")
    for mode in runs:
        if mode not in get_args(Mode):
            parser.error(f"--runs: one of {', '.join(get_args(Mode))} is needed, found {mode!r}")
    seed = random.randrange(1_000_000) if args.seed is None else args.seed
    print(f"seed {seed}; the output of pytest is in {args.log}", flush=True)
    args.log.write_text("")
    results = []
    for mode in runs:
        results.append(run(mode, pytest_args, args.log, burners=args.burners, chance=random.Random(seed)))
        print(row(results[-1]), flush=True)
    failed = sum(result.code != 0 for result in results)
    print(f"{len(results) - failed} of {len(results)} runs green", flush=True)
    return int(failed > 0)


def row(result: Result) -> str:
    """One line per run, and one per failed test."""
    minutes, seconds = divmod(round(result.seconds), 60)
    lines = [f"{result.mode:8} {minutes:2}:{seconds:02}  {'green' if result.code == 0 else 'RED  '}  {result.summary}"]
    return "\n".join([*lines, *(f"    {test}" for test in result.failed)])


def run(mode: str, pytest_args: list[str], log: Path, *, burners: int, chance: random.Random) -> Result:
    """The suite once."""
    token = uuid4().hex
    workers = (os.cpu_count() or 2) + 1
    command = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "worksteal", "-q", *pytest_args]
    began = time.monotonic()
    with log.open("a") as output, contextlib.ExitStack() as around:
        output.write(f"===== {mode}\n")
        output.flush()
        start = output.tell()
        if mode == "busy":
            around.enter_context(_burning(burners))
        tests = subprocess.Popen(command, env={**os.environ, MARK: token}, stdout=output, stderr=subprocess.STDOUT)
        if mode == "stalled":
            around.enter_context(_stalling(token, chance))
        code = tests.wait()
    text = log.read_text(errors="replace")[start:]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, flags=re.MULTILINE)
    summaries = re.findall(r"^=* ?((?:\d+ failed, )?\d+ passed.*?)(?: =*)?$", text, flags=re.MULTILINE)
    return Result(mode, code, time.monotonic() - began, summaries[-1] if summaries else f"exit {code}", failed)


@contextlib.contextmanager
def _burning(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _stalling(token: str, chance: random.Random) -> Iterator[None]:
    over = threading.Event()

    def stall() -> None:
        while not over.is_set():
            seconds = chance.uniform(0.05, LONGEST_STALL)
            only_tests = chance.random() < 0.25
            with _stopped(token, only_tests=only_tests):
                over.wait(seconds)
            over.wait(seconds * (1 - STALLED_SHARE) / STALLED_SHARE)

    thread = threading.Thread(target=stall, name="stalls")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def _stopped(token: str, *, only_tests: bool) -> Iterator[None]:
    """Stop the processes of a run, and let those go on that were not stopped before.

    The tests are stopped first and go on last: a test that stops a process itself must not do so in between, because
    ours would wake it up again.
    """
    tests: list[int] = []
    others: list[int] = []
    for pid in _processes(token):
        (tests if _is_test(pid) else others).append(pid)
    stopped = [pid for pid in tests if _stop(pid)]
    stopped += [pid for pid in ([] if only_tests else others) if _stop(pid)]
    try:
        yield
    finally:
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _processes(token: str) -> list[int]:
    mark = f"{MARK}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def _is_test(pid: int) -> bool:
    """Whether it runs tests: pytest, or one of the plain interpreters that xdist feeds through a pipe."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"-m\0pytest" in command or b"import sys;exec(eval(" in command


def _stop(pid: int) -> bool:
    """Whether it was running and is stopped now."""
    try:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TtZX":
            return False
        os.kill(pid, signal.SIGSTOP)
    except (OSError, ProcessLookupError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
