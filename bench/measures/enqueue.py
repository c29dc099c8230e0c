"""How fast jobs are enqueued, what a queued one takes of memory, and the floor under both."""

from __future__ import annotations

import json

from bench.measures.measure import Measure, Result, median_of
from bench.processes import run_to_end
from bench.rig import Rig

SECONDS = 1.5
#: Never fewer: what the server keeps once, and rounds up, must not look like the memory of a job.
QUEUED = 20_000


def floor(rig: Rig) -> Result:
    rig.reset()
    command = [rig.python, "-m", "bench.floor", str(rig.server.port)]
    told = run_to_end(command, env=rig.environment(), cwd=rig.folder, log=rig.log, within=60)
    found: Result = json.loads(told)
    return found


def one(rig: Rig) -> Result:
    return _rate(rig, "one")


def concurrent(rig: Rig) -> Result:
    return _rate(rig, "concurrent")


def bulk(rig: Rig) -> Result:
    return _rate(rig, "bulk") if rig.about["bulk"] else {}


def _rate(rig: Rig, op: str) -> Result:
    driver, runs = rig.driver(), []
    driver(op, seconds=0.05)  # connected, scripts loaded
    for _ in range(rig.repeat):
        rig.reset()
        found = driver(op, seconds=SECONDS * rig.scale)
        runs.append(found["n"] / found["seconds"])
    rig.reset()
    return median_of(runs) | ({"lanes": found["lanes"]} if "lanes" in found else {})


def memory(rig: Rig) -> Result:
    driver = rig.driver()
    rig.reset()
    driver("fill", n=10, seconds=5)  # scripts and indexes are not the jobs'
    before = rig.server.memory()
    filled = driver("fill", n=QUEUED, seconds=20)
    after = rig.server.memory()
    rig.reset()
    return {"n": filled["n"], "bytes_per_job": round((after - before) / filled["n"], 1)}


MEASURES = (
    Measure("floor", "what raw sockets reach at this moment", floor),
    Measure("one", "enqueue one by one", one),
    Measure("concurrent", "enqueue from 100 tasks, or 16 threads, of one process", concurrent),
    Measure("bulk", "enqueue with the product's bulk call", bulk),
    Measure("memory", "bytes a queued job takes on the server", memory),
)
