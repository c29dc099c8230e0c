"""The numbers that tables show, and where they stand in the results."""

from __future__ import annotations

from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One number of a product."""

    #: `measure.field`
    key: str
    title: str
    unit: str
    more_is_better: bool

    @property
    def label(self) -> str:
        """The title with its unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def of(self, product: dict[str, Any]) -> float | None:
        """Its value, or None where it was not measured."""
        measure, _, field = self.key.partition(".")
        found = (product.get(measure) or {}).get(field)
        return float(found) if isinstance(found, int | float) else None


#: By table. What a smaller number says better is marked so.
TABLES: dict[str, tuple[Figure, ...]] = {
    "Throughput": (
        Figure("one.jobs_per_s", "enqueue one by one", "jobs/s", True),
        Figure("concurrent.jobs_per_s", "enqueue, 100 tasks or 16 threads", "jobs/s", True),
        Figure("bulk.jobs_per_s", "enqueue in bulk", "jobs/s", True),
        Figure("drain.jobs_per_s", "drain", "jobs/s", True),
        Figure("drain_results.jobs_per_s", "drain with results", "jobs/s", True),
    ),
    "Waiting": (
        Figure("idle.p50_ms", "idle start, p50", "ms", False),
        Figure("idle.p99_ms", "idle start, p99", "ms", False),
        Figure("cold.max_ms", "start after 2 s idle, longest", "ms", False),
        Figure("rtt.p50_ms", "enqueue to result, p50", "ms", False),
        Figure("rtt.p99_ms", "enqueue to result, p99", "ms", False),
    ),
    "Cost": (
        Figure("memory.bytes_per_job", "memory per queued job", "bytes", False),
        Figure("drain.server_us_per_job", "server time per job", "µs", False),
        Figure("drain.worker_us_per_job", "worker time per job", "µs", False),
        Figure("drain.commands_per_job", "server commands per job", "", False),
        Figure("drain.reads_per_job", "server reads per job", "", False),
        Figure("idle_cost.commands_per_s", "idle worker, commands", "1/s", False),
        Figure("idle_cost.worker_percent", "idle worker, processor", "%", False),
    ),
    "Long queues": (
        Figure("backlog.long", "long queue", "jobs", True),
        Figure("backlog.cost", "cost against 10,000 queued", "×", False),
        Figure("backlog.cost_of_first_jobs", "the same, first 10,000 jobs only", "×", False),
        Figure("backlog_1m.cost", "cost with 1,000,000 queued", "×", False),
        Figure("delayed.n", "due at one instant", "jobs", True),
        Figure("delayed.first_ms", "first of them starts after", "ms", False),
        Figure("delayed.done_after_s", "all of them done after", "s", False),
        Figure("delayed.jobs_per_s", "due at one instant", "jobs/s", True),
        Figure("delayed.stall_ms", "longest server stall", "ms", False),
    ),
    "Floor": (
        Figure("floor.round_trips_per_s", "raw round trips", "1/s", True),
        Figure("floor.start_p50_ms", "raw start, p50", "ms", False),
        Figure("floor.result_p50_ms", "raw answer, p50", "ms", False),
    ),
}

FIGURES = {figure.key: figure for table in TABLES.values() for figure in table}


def shown(value: float | None) -> str:
    """A number as tables write it."""
    if value is None:
        return "–"
    if value and abs(value) < 0.1:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
