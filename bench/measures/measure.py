"""A measure: a name, and what to do with a product."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

from bench.rig import Rig

Result = dict[str, Any]


class Measure(NamedTuple):
    """One thing that is measured."""

    name: str
    #: One line for people.
    about: str
    take: Callable[[Rig], Result]
    #: Taken only when named.
    only_asked: bool = False
    #: Only relevo can be measured so.
    only_ours: bool = False


def percentiles(ms: list[float]) -> Result:
    """How waiting times are spread."""
    if not ms:
        return {"n": 0}
    found = sorted(ms)
    cuts = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
    return {"n": len(found), **{name: round(_at(found, share), 3) for name, share in cuts.items()}}


def _at(found: list[float], share: float) -> float:
    place = (len(found) - 1) * share
    below = int(place)
    above = min(below + 1, len(found) - 1)
    return found[below] + (found[above] - found[below]) * (place - below)


def median_of(runs: list[float]) -> Result:
    """A rate from several runs, with what each of them gave."""
    return {"jobs_per_s": round(statistics.median(runs)), "runs": [round(run) for run in runs]}
