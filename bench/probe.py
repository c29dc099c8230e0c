"""Shared memory in which every job notes that it ran.

One file, mapped by the harness, by the driver and by every worker. Job `i` writes the monotonic clock, which all
processes of a machine share, into place `i`, and counts its runs beside it. So start times, missing jobs and repeated
ones are known exactly and in the same way for every product, for a fraction of a microsecond a job.
"""

from __future__ import annotations

import mmap
import os
import time
from array import array

_CELL = 9  # bytes a job: 8 of time, 1 of runs


class Probe:
    """The notes of all jobs. Give `slots` to make the file, leave them out to open it."""

    def __init__(self, path: str, slots: int = 0) -> None:
        self.path = path
        if slots:
            with open(path, "wb") as file:
                file.truncate(slots * _CELL)
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.slots = len(self._map) // _CELL
        self._times = memoryview(self._map)[: self.slots * 8].cast("q")
        self._runs = memoryview(self._map)[self.slots * 8 :]

    def hit(self, i: int) -> None:
        """Job `i` starts now."""
        runs = self._runs[i]
        if not runs:
            self._times[i] = time.monotonic_ns()
        self._runs[i] = runs + 1 if runs < 255 else 255

    def reset(self) -> None:
        """Forget everything."""
        self._map[:] = bytes(len(self._map))

    def started(self, i: int) -> int:
        """When job `i` started, in monotonic nanoseconds; 0 if it has not."""
        return self._times[i]

    def times(self, first: int, n: int) -> list[int]:
        """The same for `n` jobs from `first` on."""
        return list(self._times[first : first + n])

    def any_ran(self, n: int) -> bool:
        """Whether one of the first `n` jobs has started."""
        return bytes(self._runs[:n]).find(1) >= 0

    def ran(self, n: int) -> int:
        """How many of the first `n` jobs have started."""
        return n - bytes(self._runs[:n]).count(0)

    def twice(self, n: int) -> int:
        """How many of the first `n` jobs started more than once."""
        runs = bytes(self._runs[:n])
        return n - runs.count(0) - runs.count(1)

    def starts(self, n: int) -> list[int]:
        """The start times of the first `n` jobs, in order of time, without those that did not run."""
        times = array("q", self._times[:n])
        return sorted(filter(None, times))


class _Opened:
    probe: Probe | None = None


def hit(i: int) -> None:
    """What every job calls. The file is opened by the first job of a process: importing an adapter changes nothing."""
    probe = _Opened.probe
    if probe is None:
        probe = _Opened.probe = Probe(os.environ["BENCH_PROBE"])
    probe.hit(i)
