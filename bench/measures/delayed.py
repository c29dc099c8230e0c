"""Many jobs that are due at one instant: when the first starts, when all are done, how long the server stalls."""

from __future__ import annotations

import time

from bench.measures.drain import rate_of, wait_delivered
from bench.measures.measure import Measure, Result
from bench.rig import Rig
from bench.stall import watched

JOBS = 50_000
#: Seconds that filling and draining may take; a slow product gets fewer jobs, and their number is told.
FILLING, DRAINING = 8.0, 12.0
#: Seconds before the instant in which the worker starts and settles.
EARLY = 4.0


def delayed(rig: Rig) -> Result:
    if not rig.about["has_delayed"]:
        return {}
    drained = rate_of(rig)
    driver = rig.driver()
    rig.reset()
    tried = driver("fill_at", n=2000, seconds=0.5, when=time.time() + 3600)
    per_s = tried["n"] / tried["seconds"]
    n = round(max(200, min(JOBS * min(1.0, rig.scale), per_s * FILLING * 0.7, drained * DRAINING)))
    rig.reset()
    when = float(int(time.time() + n / per_s * 1.4 + EARLY) + 1)
    filled = driver("fill_at", n=n, seconds=FILLING, when=when)
    n = filled["n"]
    rig.server.watch_slow()
    with rig.worker(delayed=True) as worker:
        time.sleep(max(0.0, when - 0.5 - time.time()))
        with watched(rig) as stall:
            time.sleep(max(0.0, when - 0.02 - time.time()))
            early = rig.probe.ran(n)
            due = time.monotonic() + when - time.time()
            rig.wait_until(lambda: rig.probe.any_ran(n), worker, within=30, what="the first job")
            found = wait_delivered(rig, worker, n, within=120)
    return {
        **found.told(),
        "early": early,
        "enqueued_per_s": round(n / filled["seconds"]),
        "first_ms": round((found.first - due) * 1e3, 2),
        "done_after_s": round(found.end - due, 3),
        "jobs_per_s": round(found.ran / (found.end - due)),
        "stall_ms": round(stall.ms, 2),
        "slowest_command_ms": rig.server.slowest_ms(),
    }


MEASURES = (Measure("delayed", f"{JOBS:,} jobs due at one instant, a worker running", delayed),)
