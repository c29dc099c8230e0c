"""How soon an idle worker starts a job, how soon its result is back, and what idling costs."""

from __future__ import annotations

import time

from bench.measures.measure import Measure, Result, percentiles
from bench.rig import Rig

SAMPLES = 150
#: Seconds between two jobs: long enough for the worker to be idle again, and never in step with its timers.
GAP = (0.015, 0.045)
#: Seconds in which an idle worker is watched; some do something only every few seconds.
WATCHED, WATCHED_AT_LEAST = 20.0, 10.0
COLD = 2.0
COLD_SAMPLES = 3


def idle(rig: Rig) -> Result:
    driver = rig.driver()
    rig.reset()
    with rig.worker() as worker:
        rig.wait_idle(driver)
        found = driver("starts", first=5, n=_samples(rig), gap=GAP)
        assert worker.is_running
    return percentiles(found["ms"]) | {"lost": found["lost"]}


def cold(rig: Rig) -> Result:
    driver, found, lost = rig.driver(), [], 0
    rig.reset()
    with rig.worker():
        rig.wait_idle(driver)
        for i in range(COLD_SAMPLES):
            one = driver("starts", first=5 + i, n=1, gap=(COLD, COLD + 0.3))
            found += one["ms"]
            lost += one["lost"]
    return percentiles(found) | {"lost": lost}


def idle_cost(rig: Rig) -> Result:
    driver = rig.driver()
    rig.reset()
    with rig.worker() as worker:
        rig.wait_idle(driver)
        time.sleep(0.5)
        busy, before = worker.cpu(), rig.server.counters()
        time.sleep(max(WATCHED_AT_LEAST, WATCHED * min(1.0, rig.scale)))
        spent = rig.server.counters().since(before)
        busy = worker.cpu() - busy
    return {
        "commands_per_s": round(sum(spent.calls.values()) / spent.at, 2),
        "worker_percent": round(busy / spent.at * 100, 2),
        "commands": {name: round(calls / spent.at, 2) for name, calls in spent.calls.items()},
    }


def rtt(rig: Rig) -> Result:
    driver = rig.driver(results=True)
    rig.reset()
    with rig.worker(results=True):
        rig.wait_idle(driver)
        driver("results", first=5, n=5, gap=(0.0, 0.02))
        found = driver("results", first=10, n=_samples(rig), gap=GAP)
    return percentiles(found["ms"])


def _samples(rig: Rig) -> int:
    return max(20, round(SAMPLES * rig.scale))


MEASURES = (
    Measure("idle", "from the enqueue call to the start of the job, worker idle", idle),
    Measure("cold", "the same after two seconds without a job", cold),
    Measure("rtt", "from the enqueue call to the result, worker idle", rtt),
    Measure("idle_cost", "commands and processor time of an idle worker", idle_cost),
)
