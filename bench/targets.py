"""What relevo must reach against its peers in the same run, and whether it does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from bench.figures import FIGURES
from bench.products import PRODUCTS

#: Whom a figure is compared with: the `best` peer, the best `async` one, the best `safe` one (which runs the job of a
#: dead worker again and leaves nothing behind), one by its name, or `nobody`.
Against = str


class Target(NamedTuple):
    """A bound for one figure of one flavour."""

    title: str
    flavour: str
    figure: str
    rule: Literal[">=", "<="]
    bound: float
    against: Against = "best"

    def __str__(self) -> str:
        sign = {">=": "≥", "<=": "≤"}[self.rule]
        return f"{sign} {self.bound:g}" + ("" if self.against == "nobody" else "×")


TARGETS = (
    Target("drain", "relevo", "drain.jobs_per_s", ">=", 10),
    Target("drain with results", "relevo", "drain_results.jobs_per_s", ">=", 10),
    Target("drain, plain functions", "relevo-blocking", "drain.jobs_per_s", ">=", 10),
    Target("enqueue one by one, blocking", "relevo-blocking", "one.jobs_per_s", ">=", 1.2),
    Target("enqueue one by one, async", "relevo", "one.jobs_per_s", ">=", 1.4, "async"),
    Target("enqueue one by one, async", "relevo", "one.jobs_per_s", ">=", 1.0, "huey"),
    Target("enqueue, 100 tasks", "relevo", "concurrent.jobs_per_s", ">=", 5),
    Target("enqueue, 16 threads", "relevo-blocking", "concurrent.jobs_per_s", ">=", 3),
    Target("enqueue in bulk", "relevo", "bulk.jobs_per_s", ">=", 8),
    Target("idle start, p50", "relevo", "idle.p50_ms", "<=", 0.7),
    Target("idle start, p99", "relevo", "idle.p99_ms", "<=", 0.6),
    Target("enqueue to result, p50", "relevo", "rtt.p50_ms", "<=", 0.5),
    Target("enqueue to result, p99", "relevo", "rtt.p99_ms", "<=", 0.55),
    Target("server time per job", "relevo", "drain.server_us_per_job", "<=", 0.25),
    Target("worker time per job", "relevo", "drain.worker_us_per_job", "<=", 0.10),
    Target("memory per queued job", "relevo", "memory.bytes_per_job", "<=", 1.05, "safe"),
    Target("idle worker, commands/s", "relevo", "idle_cost.commands_per_s", "<=", 0.6, "nobody"),
    Target("cost with a long queue", "relevo", "backlog.cost", "<=", 1.05, "nobody"),
    Target("cost with 1,000,000 queued", "relevo", "backlog_1m.cost", "<=", 1.05, "nobody"),
    Target("due at one instant", "relevo", "delayed.jobs_per_s", ">=", 8),
    Target("first of them, ms", "relevo", "delayed.first_ms", "<=", 5, "nobody"),
    Target("longest stall, ms", "relevo", "delayed.stall_ms", "<=", 5, "nobody"),
)


class Verdict(NamedTuple):
    """A target and what was found."""

    target: Target
    ours: float
    peer: str
    theirs: float | None
    ratio: float
    is_met: bool


def judge(products: dict[str, dict[str, Any]]) -> list[Verdict]:
    """All targets for which there are numbers."""
    return [verdict for target in TARGETS if (verdict := _judge(target, products))]


def _judge(target: Target, products: dict[str, dict[str, Any]]) -> Verdict | None:
    figure = FIGURES[target.figure]
    ours = figure.of(products.get(target.flavour, {}))
    if ours is None:
        return None
    if target.against == "nobody":
        return Verdict(target, ours, "", None, ours, _meets(target, ours))
    found = [
        (value, name)
        for name in _rivals(target.against, products)
        if (value := figure.of(products[name])) is not None and value > 0
    ]
    if not found:
        return None
    theirs, peer = max(found) if figure.more_is_better else min(found)
    return Verdict(target, ours, peer, theirs, ours / theirs, _meets(target, ours / theirs))


def _rivals(against: Against, products: dict[str, dict[str, Any]]) -> Iterable[str]:
    for name, found in products.items():
        product, about = PRODUCTS.get(name), found.get("about", {})
        if product is None or product.is_ours or product.is_reference:
            continue
        match against:
            case "async":
                chosen = about.get("is_async")
            case "safe":
                chosen = about.get("recovers") and about.get("cleans_up")
            case "best":
                chosen = True
            case _:
                chosen = name == against
        if chosen:
            yield name


def _meets(target: Target, value: float) -> bool:
    return value >= target.bound if target.rule == ">=" else value <= target.bound
