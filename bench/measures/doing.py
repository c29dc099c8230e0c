"""Jobs that do something: put on the queue, enqueued at a pace, and the same work without a queue beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from statistics import median_low
from typing import Any

from bench.measures.drain import wait_delivered
from bench.measures.measure import Result, percentiles
from bench.processes import Process, run_to_end
from bench.rig import Rig

DELIVERY = ("n", "ran", "twice", "lost")
#: Jobs a second in measures of waiting: half of what a worker can do, but never so many that the client, which has the
#: worker's core, is what is measured.
PACE = 1000.0
#: Seconds.
PACED = 1.5


def bare(rig: Rig, *words: object) -> dict[str, float]:
    """What `bench.bare` finds now, on the core of the workers."""
    command = [rig.python, "-m", "bench.bare", *(str(word) for word in words)]
    told = run_to_end(command, env=rig.environment(), cwd=rig.folder, log=rig.log, within=60)
    found: dict[str, float] = json.loads(told)
    return found


def put(rig: Rig, task: str, value: Any, n: int, first: int = 0) -> Result:
    """Put `n` jobs of a task on the queue, numbered from `first` on."""
    return rig.driver()("ask", method="put", task=task, value=value, n=n, first=first)


def paced(rig: Rig, worker: Process, task: str, value: Any, *, first: int, rate: float) -> Result:
    """Jobs at a pace that a worker of that rate keeps up with: how long they wait, and whether all ran."""
    driver, per_s = rig.driver(), min(PACE, rate / 2)
    n = max(50, round(per_s * PACED * rig.scale))
    driver("ask", method="pace", task=task, value=value, first=first, n=n, per_s=per_s)
    found = wait_delivered(rig, worker, first + n).told()
    return found | ({} if found["lost"] else percentiles(driver("ask", method="waits")["ms"]) | {"n": found["n"]})


def waiting(rig: Rig, task: str, value: Any, *, rate: float) -> Result:
    """The same with a worker of its own that has nothing else to do."""
    rig.reset()
    with rig.worker(gently=False) as worker:
        rig.wait_idle(rig.driver())
        return paced(rig, worker, task, value, first=5, rate=rate)


def against(found: float, arithmetic: float) -> Result:
    """What should have come out, and how much of it did."""
    return {"arithmetic": round(arithmetic, 2), "of_arithmetic": round(found / arithmetic, 3)}


def delivered(parts: Iterable[Result]) -> Result:
    """The deliveries of all parts of a measure together."""
    parts = list(parts)
    return {name: sum(part[name] for part in parts) for name in DELIVERY}


def middle(runs: list[Result], by: str) -> Result:
    """The run in the middle, by one of its numbers, with the deliveries of all."""
    chosen = median_low([run[by] for run in runs])
    return next(run for run in runs if run[by] == chosen) | delivered(runs) | {"runs": [run[by] for run in runs]}
