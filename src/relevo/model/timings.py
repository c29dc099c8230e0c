"""How long tasks wait and run: counts by bounds, as a worker gathers them and as they are read back.

A count stands under the name of its bound, not its number, so that sums written by a version with other bounds are
still read right: they count for the next higher bound that is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from msgspec import Struct

#: Seconds. A job starts within a millisecond or two, answers are wanted within ten seconds: that is where most steps
#: are, each at most 2.5 times the one before from 10 ms on. Above stand the limits that people set: 30 s, 1, 5 and 10
#: minutes (the default time limit), an hour. A target that is one of these is measured exactly.
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
#: Where counts of tasks go that are not told apart: too many of them, or a name too long to be one.
OTHER = "other"
NAME_MOST = 200

# The places of a task's sums in one flat list: counts of runs, then of waits, then the rest.
WAITS = len(BOUNDS) + 1
RAN = 2 * WAITS
WAITED = RAN + 1
FAILED = RAN + 2
SIZE = RAN + 3

_MS = tuple(str(round(bound * 1000)) for bound in BOUNDS)
#: What each place is called in the store; sums are whole microseconds there.
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
    """What is not zero, as `slot n slot n …`; whole numbers, for the server adds those exactly."""
    parts = []
    for place, count in enumerate(sums):
        if count:
            whole = round(count * 1_000_000) if place in (RAN, WAITED) else int(count)
            parts.append(f"{SLOTS[place]} {whole}")
    return " ".join(parts)


class Histogram(Struct, frozen=True):
    """Counts by bound, each without those below; the last is for what is above all bounds."""

    counts: tuple[int, ...] = (0,) * WAITS
    #: Seconds, of all together.
    total: float = 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts)


class TaskTimings(Struct, frozen=True):
    """What is known of a task's attempts."""

    #: From when the job was made, or was due, until its function was called; of first deliveries of jobs that depend on
    #: no others.
    waited: Histogram
    #: From the call of the function until it ended, well or not.
    ran: Histogram
    #: Attempts that raised or ran out of time.
    failed: int
    #: When one last ended.
    at_ms: int = 0


def read(slots: Mapping[str, int]) -> TaskTimings:
    """The timings of a task, from what the store holds of it."""
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
