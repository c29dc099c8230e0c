"""What it costs that a queue is shared fairly between tenants, and whether it is."""

from __future__ import annotations

from collections import Counter
from statistics import median

from bench.measures.doing import delivered, middle
from bench.measures.drain import emptied, rate_of, size_of
from bench.measures.measure import Measure, Result
from bench.rig import Rig

SECONDS = 1.5
FEW, MANY = 100, 10_000


def sharing(rig: Rig) -> Result:
    """Arithmetic: the same number of jobs in the same number of calls, without tenants."""
    n = size_of(rate_of(rig), SECONDS * rig.scale)
    parts = {}
    for name, tenants in (("few", FEW), ("many", MANY)):
        calls = min(tenants, n // 2)
        pairs = [_pair(rig, n, calls, shared_first=bool(i % 2)) for i in range(rig.repeat)]
        costs = {cost: round(median(pair[cost] for pair in pairs), 3) for cost in ("server_cost", "enqueue_cost")}
        parts[name] = middle(pairs, "cost") | costs
    return delivered(parts.values()) | parts


def _pair(rig: Rig, n: int, calls: int, *, shared_first: bool) -> Result:
    found = {tenants: _drained(rig, n, calls, tenants) for tenants in (shared_first, not shared_first)}
    shared, plain = found[True], found[False]
    return {
        **delivered([shared, plain]),
        "tenants": calls,
        "jobs_per_s": shared["jobs_per_s"],
        "without_jobs_per_s": plain["jobs_per_s"],
        "cost": round(plain["jobs_per_s"] / shared["jobs_per_s"], 3),
        "server_us_per_job": shared["server_us_per_job"],
        "without_server_us_per_job": plain["server_us_per_job"],
        "server_cost": round(shared["server_us_per_job"] / plain["server_us_per_job"], 3),
        "enqueue_us_per_job": shared["enqueue_us_per_job"],
        "without_enqueue_us_per_job": plain["enqueue_us_per_job"],
        "enqueue_cost": round(shared["enqueue_us_per_job"] / plain["enqueue_us_per_job"], 3),
        "fairness": shared["fairness"],
        "without_fairness": plain["fairness"],
    }


def _drained(rig: Rig, n: int, calls: int, tenants: bool) -> Result:
    rig.reset()
    before = rig.server.counters()
    filled = rig.driver()("ask", method="put_shared", n=n, calls=calls, tenants=tenants)
    spent = rig.server.counters().since(before)
    found = emptied(rig, filled["n"])
    return {
        **found,
        "enqueue_us_per_job": round(spent.cpu / filled["n"] * 1e6, 2),
        "fairness": _fairness(rig, filled["n"], filled["each"], calls),
    }


def _fairness(rig: Rig, n: int, each: int, calls: int) -> float:
    """When there was time for half of every tenant: the least that one got, as a part of its half."""
    half = each // 2
    started = sorted(range(n), key=rig.probe.times(0, n).__getitem__)[: half * calls]
    got = Counter(i // each for i in started)
    return round(min(got[tenant] for tenant in range(calls)) / half, 3)


MEASURES = (
    Measure("sharing", "fair tenants, 100 and 10,000 of them, against none", sharing, only_asked=True, only_ours=True),
)
