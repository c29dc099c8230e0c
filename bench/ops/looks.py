"""What an operator does, and how long that may take."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import median
from subprocess import DEVNULL
from typing import Any, NamedTuple

from bench.ops.filling import Full
from bench.server import Server
from relevo import metrics
from relevo.cli.top.look import looking

clock = time.perf_counter


class Look(NamedTuple):
    """Something that somebody waits for."""

    name: str
    do: Callable[[], Any]
    #: Milliseconds that it may take; None: only shown.
    most_ms: float | None = None


class Found(NamedTuple):
    """How long it took, and how long the slowest of its calls kept the server busy: on the median, and once.

    A script that is slow is slow each time; what was slow once had its core taken away, or was unlucky.
    """

    name: str
    median_ms: float
    longest_ms: float
    slowest_call_ms: float
    longest_call_ms: float
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
    (largest, *_) = dead.error_groups(limit=1)
    far = dead.page(limit=100).after
    return [
        Look("health", app.health, 50.0),
        Look("health of a queue's numbers alone", app.queue().stats),
        Look("page of 50 dead letters", lambda: dead.list(limit=50), 100.0),
        Look("the next page", lambda: dead.page(limit=50, after=far), 100.0),
        Look("page of one group", lambda: dead.list(error_group=largest.fingerprint, limit=50), 100.0),
        Look("page of the last hour", lambda: dead.list(since="1h", limit=50), 100.0),
        Look("page of one tenant", lambda: dead.list(tenant="tenant_7", limit=50), 100.0),
        Look("groups of dead letters", dead.error_groups, 100.0),
        Look("one dead letter", lambda: dead.show(newest.id), 100.0),
        Look("page of ready jobs", lambda: app.queue().jobs("ready", limit=50), 100.0),
        Look("page of scheduled jobs", lambda: app.queue().jobs("scheduled", limit=50), 100.0),
        Look("metrics for Prometheus", lambda: metrics.exposition(app)),
        Look("dry run of the purge", app.purge),
        Look("relevo top", lambda: app.engine.run(looking(app)), 100.0),
        Look("probe of a worker, a process of its own", _probe, 50.0),
    ]


def deeds(full: Full) -> list[Look]:
    """What changes something, and is done to all there is."""
    app = full.app
    return [
        Look("export of all dead letters", lambda: sum(1 for _ in app.dead.export())),
        Look("discard of them", lambda: app.dead.discard(all=True)),
        Look("restore of them", lambda: app.dead.restore(all=True)),
        Look("retry of them", lambda: app.dead.retry(all=True)),
        Look("clear of a queue", app.queue().clear),
    ]


def _probe() -> None:
    subprocess.run([sys.executable, "-m", "relevo.alive", __file__, "--max-age=1000000h"], check=True, stdout=DEVNULL)


class Slow(NamedTuple):
    """Of many calls: what all but one in a hundred kept to, and the longest of all.

    A script that is slow by itself is among the hundred; what is seldom slow had its core taken away.
    """

    most_ms: float
    longest_ms: float

    @classmethod
    def of(cls, calls: Sequence[float]) -> Slow:
        """Of calls, the longest first."""
        return cls(calls[len(calls) // 100], calls[0]) if calls else cls(0.0, 0.0)


def take_once(server: Server, deed: Look) -> Found:
    """Do what can be done once, in many calls."""
    server.watch_slow()
    began = clock()
    deed.do()
    took = (clock() - began) * 1e3
    return Found(deed.name, took, took, *Slow.of(server.slow_ms()), deed.most_ms)


def take(server: Server, look: Look, times: int) -> Found:
    """Do it some times."""
    look.do()  # the first one reads scripts in
    server.watch_slow()
    took, slowest = [], []
    for _ in range(times):
        began = clock()
        look.do()
        took.append((clock() - began) * 1e3)
        slowest.append(server.slowest_ms())
    return Found(look.name, median(took), max(took), median(slowest), max(slowest), look.most_ms)
