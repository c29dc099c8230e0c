"""Histograms of the wait and run times of tasks, as a worker gathers and reads them.

A count is stored under its bound, not under the bound's index, so sums of a version with other bounds stay readable:
they count for the next higher known bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec import Struct

#: Seconds. Most steps are between one millisecond, in which a job starts, and ten seconds, in which replies are needed;
#: from 10 ms on each is at most 2.5 times the one before. Above are common limits: 30 s, 1, 5 and 10 minutes (the
#: default time limit), an hour. A target equal to a bound is measured exactly.
BOUNDS = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    600.0,
    3600.0,
)
#: The task name for the counts of tasks without their own: too many tasks, or too long a name.
OTHER = "other"
NAME_MOST = 200

# The places of a task's sums in one flat list: counts of runs, then of waits, then the rest.
WAITS = len(BOUNDS) + 1
RAN = 2 * WAITS
WAITED = RAN + 1
FAILED = RAN + 2
SIZE = RAN + 3

_MS = tuple(str(round(bound * 1000)) for bound in BOUNDS)
#: The store's name of each place; sums are whole microseconds there.
SLOTS = (
    *(f"r{bound}" for bound in (*_MS, "inf")),
    *(f"w{bound}" for bound in (*_MS, "inf")),
    "rs",
    "ws",
    "f",
)
Sums = list[float]


def no_sums() -> Sums:
    """Sums of a task that has not run."""
    return [0] * SIZE


def add(to: Sums, more: Sequence[float]) -> None:
    """Add sums to others."""
    for place, count in enumerate(more):
        to[place] += count


def written(sums: Sequence[float]) -> str:
    """Non-zero sums as `slot n slot n …`; whole numbers, which the server adds exactly."""
    parts = []
    for place, count in enumerate(sums):
        if count:
            whole = round(count * 1_000_000) if place in (RAN, WAITED) else int(count)
            parts.append(f"{SLOTS[place]} {whole}")
    return " ".join(parts)


class Histogram(Struct, frozen=True):
    """Counts by bound, not cumulative; the last is for values above all bounds."""

    counts: tuple[int, ...] = (0,) * WAITS
    #: Sum of all values, in seconds.
    total: float = 0.0

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


class TaskTimings(Struct, frozen=True):
    """Timings of a task's attempts."""

    #: From creation or due time until the function was called; only first attempts of jobs without dependencies.
    waited: Histogram
    #: From the call of the function until it returned or raised.
    ran: Histogram
    #: Attempts that raised or timed out.
    failed: int
    #: End of the last attempt.
    at_ms: int = 0


def read(slots: Mapping[str, int]) -> TaskTimings:
    """The timings of a task, from its stored sums."""
    counts = {"r": [0] * WAITS, "w": [0] * WAITS}
    for slot, count in slots.items():
        kind, bound = slot[:1], slot[1:]
        if kind in counts and (bound == "inf" or bound.isdecimal()):
            counts[kind][len(BOUNDS) if bound == "inf" else bisect_left(BOUNDS, int(bound) / 1000)] += count
    return TaskTimings(
        Histogram(tuple(counts["w"]), slots.get("ws", 0) / 1_000_000),
        Histogram(tuple(counts["r"]), slots.get("rs", 0) / 1_000_000),
        slots.get("f", 0),
        slots.get("at", 0),
    )
