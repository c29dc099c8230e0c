"""Whether a long queue makes its jobs dearer than a short one."""

from __future__ import annotations

import time
from statistics import median
from typing import NamedTuple

from bench.measures.measure import Measure, Result
from bench.rig import Rig

SHORT, LONG, LONGEST = 10_000, 300_000, 1_000_000
#: Seconds a worker is watched at most.
WATCHED = 3.0
#: Seconds for filling. A slow product has a shorter queue; its length is told.
FILLING = 20.0
#: So often is a product measured that is done with its short queue in an instant; a slow one, until the time is over.
ROUNDS, LASTING = 5, 20.0


def backlog(rig: Rig) -> Result:
    return _compare(rig, round(LONG * min(1.0, rig.scale)))


def backlog_1m(rig: Rig) -> Result:
    return _compare(rig, LONGEST)


class Run(NamedTuple):
    """A worker's first seconds with a queue."""

    length: int
    #: Start times in nanoseconds, in order.
    starts: list[int]
    server_us_per_job: float

    def ns_per_job(self, jobs: int) -> float:
        """What each of the first jobs took."""
        return (self.starts[jobs] - self.starts[0]) / jobs


def _compare(rig: Rig, length: int) -> Result:
    short_length = round(SHORT * min(1.0, rig.scale))
    shorts, longs = [], []
    until = time.monotonic() + LASTING
    for _ in range(ROUNDS):
        shorts.append(_first_seconds(rig, short_length))
        longs.append(_first_seconds(rig, max(short_length, length)))
        if time.monotonic() > until:
            break
    pairs = [*zip(shorts, longs, strict=True)]
    whole = [(short.ns_per_job(len(short.starts) - 1), long.ns_per_job(len(long.starts) - 1)) for short, long in pairs]
    first = []
    for short, long in pairs:  # the same number of jobs, so that the beginning weighs the same in both
        jobs = min(len(short.starts), len(long.starts)) - 1
        first.append(long.ns_per_job(jobs) / short.ns_per_job(jobs))
    return {
        "short": short_length,
        "long": min(run.length for run in longs),
        "short_jobs_per_s": round(1e9 / median(short for short, _ in whole)),
        "long_jobs_per_s": round(1e9 / median(long for _, long in whole)),
        "cost": round(median(long / short for short, long in whole), 3),
        "cost_of_first_jobs": round(median(first), 3),
        "short_server_us_per_job": round(median(run.server_us_per_job for run in shorts), 2),
        "long_server_us_per_job": round(median(run.server_us_per_job for run in longs), 2),
        "runs": len(pairs),
    }


def _first_seconds(rig: Rig, length: int) -> Run:
    rig.reset()
    n = rig.driver()("fill", n=length, seconds=FILLING)["n"]
    before = rig.server.counters()
    with rig.worker(gently=False) as worker:
        rig.wait_until(lambda: rig.probe.any_ran(n), worker, within=30, what="the first job")
        until = time.monotonic() + WATCHED * min(1.0, rig.scale)
        while time.monotonic() < until and not rig.probe.started(n - 1):
            time.sleep(0.005)
        spent = rig.server.counters().since(before)
        starts = rig.probe.starts(n)
    return Run(n, starts, spent.cpu / len(starts) * 1e6)


MEASURES = (
    Measure("backlog", f"what a job costs with {LONG:,} queued, against {SHORT:,}", backlog),
    Measure("backlog_1m", f"the same with {LONGEST:,} queued", backlog_1m, only_asked=True),
)
