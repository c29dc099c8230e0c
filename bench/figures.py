"""The numbers that tables show, and where they stand in the results."""

from __future__ import annotations

from typing import Any, NamedTuple


class Figure(NamedTuple):
    """One number of a product."""

    #: `measure.field`, or `measure.part.field`
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
        found: Any = product
        for name in self.key.split("."):
            found = found.get(name) if isinstance(found, dict) else None
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
    "Work": (
        Figure("work_await.1ms.jobs_per_s", "jobs that wait 1 ms", "jobs/s", True),
        Figure("work_await.1ms.of_arithmetic", "– of a bare event loop", "×", True),
        Figure("work_await.1ms.of_core", "– of what one core allows", "×", True),
        Figure("work_await.1ms.p50_ms", "– start at a pace, p50", "ms", False),
        Figure("work_await.1ms.p99_ms", "– start at a pace, p99", "ms", False),
        Figure("work_await.10ms.jobs_per_s", "jobs that wait 10 ms", "jobs/s", True),
        Figure("work_await.10ms.of_arithmetic", "– of a bare event loop", "×", True),
        Figure("work_await.10ms.p50_ms", "– start at a pace, p50", "ms", False),
        Figure("work_await.10ms.p99_ms", "– start at a pace, p99", "ms", False),
        Figure("work_cpu.async.jobs_per_s", "jobs that compute for 1 ms, async", "jobs/s", True),
        Figure("work_cpu.async.of_arithmetic", "– of a bare loop", "×", True),
        Figure("work_cpu.async.p50_ms", "– start at a pace, p50", "ms", False),
        Figure("work_cpu.async.p99_ms", "– start at a pace, p99", "ms", False),
        Figure("work_cpu.plain.jobs_per_s", "the same in threads", "jobs/s", True),
        Figure("work_cpu.plain.of_arithmetic", "– of a bare loop", "×", True),
        Figure("work_cpu.plain.p50_ms", "– start at a pace, p50", "ms", False),
        Figure("work_cpu.plain.p99_ms", "– start at a pace, p99", "ms", False),
        Figure("work_large.one.jobs_per_s", "10 KB, enqueue one by one", "jobs/s", True),
        Figure("work_large.one.mb_per_s", "– bytes", "MB/s", True),
        Figure("work_large.one.of_arithmetic", "– of small job and bare bytes", "×", True),
        Figure("work_large.bulk.jobs_per_s", "10 KB, enqueue in bulk", "jobs/s", True),
        Figure("work_large.bulk.mb_per_s", "– bytes", "MB/s", True),
        Figure("work_large.bulk.of_arithmetic", "– of small job and bare bytes", "×", True),
        Figure("work_large.bulk.slowest_command_ms", "– longest command of the server", "ms", False),
        Figure("work_large.drain.jobs_per_s", "10 KB, drain", "jobs/s", True),
        Figure("work_large.drain.mb_per_s", "– bytes", "MB/s", True),
        Figure("work_large.drain.of_arithmetic", "– of small job and bare bytes", "×", True),
        Figure("work_large.drain.slowest_command_ms", "– longest command of the server", "ms", False),
        Figure("groups.alone.times_enqueue_many", "a group of 10,000, against enqueue_many", "×", False),
        Figure("groups.busy.times_enqueue_many", "– beside a busy worker", "×", False),
        Figure("work_priorities.jobs_per_s", "busy queue, enqueued and drained", "jobs/s", True),
        Figure("work_priorities.enqueued_per_s", "– enqueued at the same time", "jobs/s", True),
        Figure("work_priorities.urgent.p50_ms", "– urgent jobs start after, p50", "ms", False),
        Figure("work_priorities.urgent.p99_ms", "– urgent jobs start after, p99", "ms", False),
        Figure("work_priorities.of_arithmetic", "– p99 of what is claimed ahead", "×", False),
        Figure("work_priorities.normal.p50_ms", "– normal jobs start after, p50", "ms", False),
        Figure("work_priorities.normal.p99_ms", "– normal jobs start after, p99", "ms", False),
        Figure("work_slow.async.jobs_per_s", "fast jobs beside a slow one, async", "jobs/s", True),
        Figure("work_slow.async.of_arithmetic", "– of the same without it", "×", True),
        Figure("work_slow.async.p99_ms", "– start at a pace, p99", "ms", False),
        Figure("work_slow.async.without_p99_ms", "– without the slow one, p99", "ms", False),
        Figure("work_slow.plain.jobs_per_s", "the same in threads", "jobs/s", True),
        Figure("work_slow.plain.of_arithmetic", "– of the same without it", "×", True),
        Figure("work_slow.plain.p99_ms", "– start at a pace, p99", "ms", False),
        Figure("work_slow.plain.without_p99_ms", "– without the slow one, p99", "ms", False),
    ),
    "Scaling": (
        *(
            Figure(f"scaling.{kind}_{processes}.{field}", title, unit, more)
            for kind, named in (("noop", "no-op"), ("cpu", "1 ms of computing"))
            for processes in (1, 2, 4)
            for field, title, unit, more in (
                ("jobs_per_s", f"{named}, processes: {processes}", "jobs/s", True),
                ("of_arithmetic", "– of costs and cores", "×", True),
                ("server_busy", "– server busy", "cores", False),
                ("cores_busy", "– server and workers busy", "cores", False),
                ("worker_us_per_job", "– worker time per job", "µs", False),
            )
        ),
        Figure("scaling.refused", "outcomes refused", "", False),
        Figure("scaling.taken_back", "jobs taken back from living workers", "", False),
    ),
    "Sharing": tuple(
        Figure(f"sharing.{part}.{field}", title, unit, more)
        for part, tenants in (("few", "100"), ("many", "10,000"))
        for field, title, unit, more in (
            ("jobs_per_s", f"{tenants} tenants, drain", "jobs/s", True),
            ("cost", "– time per job against none", "×", False),
            ("server_cost", "– server time per job against none", "×", False),
            ("enqueue_cost", "– server time per enqueue against none", "×", False),
            ("fairness", "– least served tenant, of its share", "×", True),
        )
    ),
    "Floor": (
        Figure("floor.round_trips_per_s", "raw round trips", "1/s", True),
        Figure("floor.start_p50_ms", "raw start, p50", "ms", False),
        Figure("floor.result_p50_ms", "raw answer, p50", "ms", False),
    ),
}

#: Tables with a row for each number, for they are about relevo alone.
OWN = ("Work", "Scaling", "Sharing")

FIGURES = {figure.key: figure for table in TABLES.values() for figure in table}


def shown(value: float | None) -> str:
    """A number as tables write it."""
    if value is None:
        return "–"
    if value and abs(value) < 0.1:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
