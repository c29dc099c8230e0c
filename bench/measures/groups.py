"""A large group against `enqueue_many` of the same jobs, beside a worker at rest and beside a busy one."""

from __future__ import annotations

from statistics import median

from bench.measures.measure import Measure, Result
from bench.rig import Rig

MEMBERS = 10_000


def groups(rig: Rig) -> Result:
    driver = rig.driver()
    rig.reset()
    members = max(300, round(MEMBERS * min(1.0, rig.scale)))
    alone = [_ratio(rig, members) for _ in range(rig.repeat)]
    rig.reset()
    with rig.worker(gently=False):
        rig.wait_idle(driver)
        busy = [_ratio(rig, members) for _ in range(rig.repeat)]
    rig.reset()
    return {"members": members, "alone": _told(alone), "busy": _told(busy)}


def _ratio(rig: Rig, members: int) -> float:
    took = rig.driver()("ask", method="put_group", n=members)
    return float(took["group"] / took["many"])


def _told(ratios: list[float]) -> Result:
    return {"times_enqueue_many": round(median(ratios), 2), "runs": [round(one, 2) for one in ratios]}


MEASURES = (
    Measure(
        "groups", f"enqueue a group of {MEMBERS:,} against enqueue_many of it", groups, only_asked=True, only_ours=True
    ),
)
