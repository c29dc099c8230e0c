"""How fast one worker empties a full queue, what a job costs meanwhile, and whether each ran exactly once."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from bench.measures.measure import Measure, Result
from bench.processes import Process, ProductFailed
from bench.rig import SLOTS, Rig

SECONDS = 4.0
LEAST = 500  # jobs
#: A product that has not finished by then is told as incomplete.
LONGEST = 60.0


class Delivery(NamedTuple):
    """Which of `n` jobs ran, and when the last of them was acknowledged."""

    n: int
    ran: int
    twice: int
    first: float
    end: float

    def told(self) -> Result:
        """For the results. Jobs that did not run make the measure a failure."""
        return {"n": self.n, "ran": self.ran, "twice": self.twice, "lost": self.n - self.ran}


def drain(rig: Rig) -> Result:
    return _drains(rig, results=False)


def drain_results(rig: Rig) -> Result:
    return _drains(rig, results=True)


def rate_of(rig: Rig, *, results: bool = False) -> float:
    """About how many jobs a second a worker of this product does."""
    if results not in rig.drain_rate:
        n, size, rate = 0, LEAST, 0.0
        for _ in range(3):  # a short drain is mostly its beginning, so the next is longer
            if size <= n:
                break
            n = size
            rate = max(rate, drain_once(rig, n, results=results)["jobs_per_s"])
            size = size_of(rate, 0.5 * rig.scale)
        rig.drain_rate[results] = rate
    return rig.drain_rate[results]


def _drains(rig: Rig, *, results: bool) -> Result:
    n = size_of(rate_of(rig, results=results), SECONDS * rig.scale)
    runs = [drain_once(rig, n, results=results) for _ in range(rig.repeat)]
    middle = statistics.median_low([run["jobs_per_s"] for run in runs])
    found = next(run for run in runs if run["jobs_per_s"] == middle)
    delivered = {name: sum(run[name] for run in runs) for name in ("n", "ran", "twice", "lost")}
    return {**found, **delivered, "runs": [run["jobs_per_s"] for run in runs]}


def size_of(rate: float, seconds: float) -> int:
    """How many jobs make a drain of about so many seconds."""
    return max(LEAST, min(round(rate * seconds), SLOTS))


def drain_once(rig: Rig, n: int, *, results: bool) -> Result:
    """Fill the queue, start a worker, and wait until all is acknowledged."""
    rig.reset()
    return emptied(rig, rig.driver(results=results)("fill", n=n, seconds=20)["n"], results=results)


def emptied(rig: Rig, n: int, *, results: bool = False) -> Result:
    """Start a worker on a queue that holds `n` jobs, and wait until all is acknowledged."""
    before = rig.server.counters()
    with rig.worker(results=results, gently=False) as worker:
        rig.wait_until(lambda: rig.probe.any_ran(n), worker, within=30, what="the first job")
        busy, seen = worker.cpu(), rig.probe.ran(n)
        found = wait_delivered(rig, worker, n, results=results)
        busy, since = worker.cpu() - busy, found.ran - seen
        spent = rig.server.counters().since(before)
    jobs = max(1, found.ran)
    return {
        "jobs_per_s": round(found.ran / (found.end - found.first)),
        **found.told(),
        "seconds": round(found.end - found.first, 3),
        "commands_per_job": round(sum(spent.calls.values()) / jobs, 3),
        "reads_per_job": round(spent.reads / jobs, 4),
        "server_us_per_job": round(spent.cpu / jobs * 1e6, 2),
        "worker_us_per_job": round(busy / max(1, since) * 1e6, 1),
        "bytes_in_per_job": round(spent.bytes_in / jobs),
        "bytes_out_per_job": round(spent.bytes_out / jobs),
        "commands": {name: round(calls / jobs, 4) for name, calls in spent.calls.items() if calls / jobs >= 0.001},
    }


def wait_delivered(rig: Rig, worker: Process, n: int, *, results: bool = False, within: float = LONGEST) -> Delivery:
    """Wait until `n` jobs ran and are acknowledged."""
    driver, until = rig.driver(results=results), time.monotonic() + within
    while time.monotonic() < until and worker.is_running:
        # One look at the last job is cheap, and nothing is complete without it.
        if rig.probe.started(n - 1) and rig.probe.ran(n) == n:
            break
        time.sleep(0.005)
    ran = rig.probe.ran(n)
    while ran == n and (left := driver("unfinished")["n"]):
        if time.monotonic() > until:
            raise ProductFailed(f"all {n} jobs ran, but {left} of them are not acknowledged after {within:.0f} s")
        time.sleep(0.002)
    end = time.monotonic()
    starts = rig.probe.starts(n)
    return Delivery(n, ran, rig.probe.twice(n), starts[0] / 1e9, end if ran == n else starts[-1] / 1e9)


MEASURES = (
    Measure("drain", "one worker empties a full queue", drain),
    Measure("drain_results", "the same with results kept", drain_results),
)
