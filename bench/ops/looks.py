"""What an operator does, and how long that may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

from bench.ops.filling import Full
from bench.server import Server
from relevo import metrics
from relevo.cli.top_look import looking

clock = time.perf_counter


class Look(NamedTuple):
    """Something that somebody waits for."""

    name: str
    do: Callable[[], Any]
    #: Milliseconds that it may take; None: only shown.
    most_ms: float | None = None


class Found(NamedTuple):
    """How long it took, of all times it was done, and the longest that the server was busy with one call of it."""

    name: str
    median_ms: float
    longest_ms: float
    slowest_call_ms: float
    most_ms: float | None

    @property
    def is_met(self) -> bool:
        """Whether it is as quick as it must be."""
        return self.most_ms is None or self.median_ms <= self.most_ms


def looks(full: Full) -> list[Look]:
    """All of them."""
    app = full.app
    dead = app.dead
    (newest, *_) = dead.list(limit=1)
    (largest, *_) = dead.groups(limit=1)
    far = dead.page(limit=100).after
    return [
        Look("health", app.health, 50.0),
        Look("health of a queue's numbers alone", app.queue().stats),
        Look("page of 50 dead letters", lambda: dead.list(limit=50), 100.0),
        Look("the next page", lambda: dead.page(limit=50, after=far), 100.0),
        Look("page of one group", lambda: dead.list(group=largest.fingerprint, limit=50), 100.0),
        Look("page of the last hour", lambda: dead.list(since="1h", limit=50), 100.0),
        Look("page of one tenant", lambda: dead.list(tenant="tenant_7", limit=50), 100.0),
        Look("groups of dead letters", dead.groups, 100.0),
        Look("one dead letter", lambda: dead.show(newest.id), 100.0),
        Look("page of ready jobs", lambda: app.queue().jobs("ready", limit=50), 100.0),
        Look("page of scheduled jobs", lambda: app.queue().jobs("scheduled", limit=50), 100.0),
        Look("metrics for Prometheus", lambda: metrics.exposition(app)),
        Look("dry run of the purge", app.purge),
        Look("relevo top", lambda: app.run(looking(app)), 100.0),
    ]


def take(server: Server, look: Look, times: int) -> Found:
    """Do it some times."""
    look.do()  # the first one reads scripts in
    server.watch_slow()
    took = []
    for _ in range(times):
        began = clock()
        look.do()
        took.append((clock() - began) * 1e3)
    return Found(look.name, median(took), max(took), server.slowest_ms(), look.most_ms)
