"""One queue, more worker processes: how the speed grows, and what ends the growth."""

from __future__ import annotations

import os
import re
from typing import Any

from bench.adapters.contract import TEXT
from bench.measures.doing import against, bare, delivered, middle, put
from bench.measures.drain import rate_of, size_of, wait_delivered
from bench.measures.measure import Measure, Result
from bench.rig import Rig

PROCESSES = (1, 2, 4)
#: Seconds that one process has work for: with nothing to do in a job, and with computing, where a process that holds a
#: hundred jobs of a millisecond each is the last for a while.
SECONDS, SECONDS_OF_CPU = 1.0, 2.0
#: Seconds of computing in one job.
SPIN = 0.001


def scaling(rig: Rig) -> Result:
    """Arithmetic: what a job cost server and worker with one process, on as many cores as there are."""
    rounds = int(bare(rig, "rounds", SPIN)["rounds"])
    noops = size_of(rate_of(rig), SECONDS * rig.scale)
    spins = max(100, round(SECONDS_OF_CPU / SPIN * rig.scale))
    cores = len(os.sched_getaffinity(0))
    parts: dict[str, Result] = {}
    every: list[Result] = []
    for name, task, value, n in (("noop", "noop", TEXT, noops), ("cpu", "spin", rounds, spins)):
        of_one: Result | None = None
        for processes in PROCESSES:
            runs = [_drained(rig, task, value, n, processes) for _ in range(rig.repeat)]
            every += runs
            found = middle(runs, "jobs_per_s")
            of_one = of_one or found
            most = arithmetic(of_one["server_us_per_job"], of_one["worker_us_per_job"], processes, cores)
            parts[f"{name}_{processes}"] = found | against(found["jobs_per_s"], most)
    counts = {name: sum(run[name] for run in every) for name in ("twice", "refused", "taken_back", "unsettled")}
    wrong = ", ".join(f"{name}: {count}" for name, count in counts.items() if count)
    told = {"error": f"no worker died, and yet there are jobs that count as {wrong}"} if wrong else {}
    return {**delivered(every), **counts, "cores": cores, **told, **parts}


def arithmetic(server_us: float, worker_us: float, processes: int, cores: int) -> float:
    """Jobs a second that no placing of the work can exceed: the server and each process have a core at the most."""
    worker_us = max(0.1, worker_us)  # a short run may be below a tick of the system's clock
    return 1e6 * min(1 / server_us, processes / worker_us, cores / (server_us + worker_us))


def _drained(rig: Rig, task: str, value: Any, n: int, processes: int) -> Result:
    rig.reset()
    driver, everywhere, logged = rig.driver(), os.sched_getaffinity(0), rig.log_size()

    def totals() -> Result:
        return driver("ask", method="totals")

    with rig.server.on_any_core(), rig.worker(gently=False, extra=("-p", str(processes)), on=everywhere) as worker:
        rig.wait_until(lambda: totals()["idle_workers"] == processes, worker, within=60, what="all processes wait")
        driver("ask", method="hold", held=True)  # so that all of them begin with a full queue
        put(rig, task, value, n)
        before, busy = rig.server.counters(), worker.cpu()
        driver("ask", method="hold", held=False)
        rig.wait_until(lambda: rig.probe.any_ran(n), worker, within=30, what="the first job")
        found = wait_delivered(rig, worker, n)
        spent, busy = rig.server.counters().since(before), worker.cpu() - busy
        counted = totals()
    seconds, jobs = found.end - found.first, max(1, found.ran)
    refused = re.findall(r"the outcome of (\d+) jobs came too late", rig.logged(logged))
    return {
        **found.told(),
        "jobs_per_s": round(found.ran / seconds),
        "server_us_per_job": round(spent.cpu / jobs * 1e6, 2),
        "worker_us_per_job": round(busy / jobs * 1e6, 1),
        "server_busy": round(spent.cpu / seconds, 3),
        "cores_busy": round((spent.cpu + busy) / seconds, 2),
        "commands_per_job": round(sum(spent.calls.values()) / jobs, 3),
        "unsettled": n - counted.get("done", 0),
        "refused": sum(map(int, refused)),
        "taken_back": counted.get("lost", 0),
    }


MEASURES = (Measure("scaling", "one queue with 1, 2 and 4 worker processes", scaling, only_asked=True, only_ours=True),)
