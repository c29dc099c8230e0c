"""How long the server leaves a PING unanswered: watched by a process of its own, which nothing else can hold up.

`python -m bench.stall PORT` asks every two milliseconds until standard input ends, then prints the longest wait.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import Process
from bench.resp import Connection
from bench.rig import Rig

EVERY = 0.002  # seconds


class Longest:
    """The longest wait, known after the `with`."""

    ms = 0.0


@contextmanager
def watched(rig: Rig) -> Iterator[Longest]:
    """Watch the server inside `with`."""
    found = Longest()
    command = [sys.executable, "-m", "bench.stall", str(rig.server.port)]
    watcher = Process(command, log=rig.log, on=os.sched_getaffinity(0), env=rig.environment(), talks=True)
    try:
        yield found
        found.ms = float(watcher.finish(within=30))
    finally:
        watcher.stop(0)


def main(port: int) -> None:
    """Ask until standard input ends."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -15)
    except PermissionError:
        pass  # then, where all cores are busy, it also sees how long it waits for one itself
    ask, longest = Connection(port), 0.0
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        began = time.perf_counter()
        ask("PING")
        longest = max(longest, time.perf_counter() - began)
    print(round(longest * 1e3, 3))


if __name__ == "__main__":
    main(int(sys.argv[1]))
