"""Urgent jobs in a busy queue: how long they wait while others are enqueued and run at full speed."""

from __future__ import annotations

import time

from bench.adapters.contract import CONCURRENCY, TEXT
from bench.measures.doing import against, put
from bench.measures.drain import rate_of, size_of, wait_delivered
from bench.measures.measure import Measure, Result, percentiles
from bench.rig import SLOTS, Rig

SECONDS = 2.5
#: Tasks that enqueue one by one: enough to keep a client busy, few enough that none waits long for the others.
LANES = 20
#: One of so many is urgent.
EVERY = 100
#: Milliseconds of work that a worker claims ahead.
AHEAD_MS = 20.0


def work_priorities(rig: Rig) -> Result:
    """Arithmetic: an urgent job waits for its own call and for what is claimed: a full house and 20 ms of work."""
    seconds = SECONDS * rig.scale
    backlog = size_of(rate_of(rig), seconds)  # lasts until the end, whatever the speed of the client
    rig.reset()
    put(rig, "noop", TEXT, backlog)
    driver = rig.driver()
    with rig.worker(gently=False) as worker:
        rig.wait_until(lambda: rig.probe.any_ran(backlog), worker, within=30, what="the first job")
        most = SLOTS - backlog
        began, before = time.monotonic(), rig.probe.ran(backlog)
        rushed = driver(
            "ask", method="rush", first=backlog, most=most, seconds=seconds, lanes=LANES, urgent_every=EVERY
        )
        n = backlog + rushed["n"]
        drained = (rig.probe.ran(n) - before) / (time.monotonic() - began)
        left = n - rig.probe.ran(n)
        found = wait_delivered(rig, worker, n).told()
    if found["lost"]:
        return found
    waits = driver("ask", method="waits")["ms"]
    urgent = percentiles(waits[::EVERY])
    normal = percentiles([ms for i, ms in enumerate(waits) if i % EVERY])
    arithmetic = rushed["call_ms"] + AHEAD_MS + CONCURRENCY / drained * 1e3
    return {
        **found,
        "jobs_per_s": round(drained),
        "enqueued_per_s": round(rushed["n"] / rushed["seconds"]),
        "backlog": backlog,
        "left": left,
        "call_ms": round(rushed["call_ms"], 3),
        **against(urgent["p99_ms"], arithmetic),
        "urgent": urgent,
        "normal": normal,
    }


MEASURES = (
    Measure(
        "work_priorities",
        "urgent jobs among many, enqueued and run at full speed",
        work_priorities,
        only_asked=True,
        only_ours=True,
    ),
)
