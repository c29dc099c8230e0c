"""Jobs that wait and jobs that compute, against the same work in a bare loop: what a queue adds to real work."""

from __future__ import annotations

from typing import Any

from bench.adapters.contract import CONCURRENCY
from bench.measures.doing import against, bare, delivered, middle, put, waiting
from bench.measures.drain import emptied, rate_of
from bench.measures.measure import Measure, Result
from bench.rig import Rig

#: Seconds of a bare run, and of a drain at the speed of the bare run.
BARE, DRAINED = 0.3, 1.0
NAPS = {"1ms": 0.001, "10ms": 0.010}
#: Seconds of computing.
SPIN = 0.001


def work_await(rig: Rig) -> Result:
    """Arithmetic: as many as a bare loop, and no more than a core can do: a job that does nothing, and a sleep."""
    parts = {}
    for name, each in NAPS.items():
        found = _beside(rig, "nap", each, "sleep", each, CONCURRENCY)
        sleep_us = bare(rig, "sleep", each, CONCURRENCY, BARE * min(1.0, rig.scale))["cpu_us"]
        core = 1 / (1 / rate_of(rig) + sleep_us / 1e6)
        parts[name] = found | {"core_allows": round(core), "of_core": round(found["jobs_per_s"] / core, 3)}
    return delivered(parts.values()) | parts


def work_cpu(rig: Rig) -> Result:
    """Arithmetic: as many as a bare loop of the same function."""
    rounds = int(bare(rig, "rounds", SPIN)["rounds"])
    parts = {
        "async": _beside(rig, "spin", rounds, "burn", rounds),
        "plain": _beside(rig, "spin_plain", rounds, "burn", rounds),
    }
    return delivered(parts.values()) | parts


def _beside(rig: Rig, task: str, value: Any, *bare_words: object) -> Result:
    """Drains of a task, each between two bare runs, with which its speed is compared; then how long jobs wait."""
    runs, bare_seconds = [], max(0.05, BARE * min(1.0, rig.scale))
    for _ in range(rig.repeat):
        before = bare(rig, *bare_words, bare_seconds)["per_s"]
        rig.reset()
        n = put(rig, task, value, max(100, round(before * DRAINED * rig.scale)))["n"]
        found = emptied(rig, n)
        arithmetic = (before + bare(rig, *bare_words, bare_seconds)["per_s"]) / 2
        runs.append(found | against(found["jobs_per_s"], arithmetic))
    found = middle(runs, "of_arithmetic")
    wait = waiting(rig, task, value, rate=found["jobs_per_s"])
    kept = ("jobs_per_s", "arithmetic", "of_arithmetic", "runs", "server_us_per_job", "worker_us_per_job")
    return {
        **delivered([found, wait]),
        **{name: found[name] for name in kept},
        **{name: wait.get(name) for name in ("p50_ms", "p90_ms", "p99_ms", "max_ms")},
    }


MEASURES = (
    Measure(
        "work_await",
        "jobs that wait 1 ms and 10 ms, against a bare event loop",
        work_await,
        only_asked=True,
        only_ours=True,
    ),
    Measure("work_cpu", "jobs that compute for 1 ms, against a bare loop", work_cpu, only_asked=True, only_ours=True),
)
