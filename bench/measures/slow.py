"""One slow job among thousands of fast ones: whether they notice."""

from __future__ import annotations

from typing import NamedTuple

from bench.adapters.contract import TEXT
from bench.measures.doing import against, delivered, middle, paced, put
from bench.measures.drain import rate_of, size_of, wait_delivered
from bench.measures.measure import Measure, Result
from bench.rig import Rig

#: Seconds of the slow job, and how much of them is filled with fast ones.
SLOW, FILLED = 2.0, 0.5


class Mix(NamedTuple):
    """Which tasks, and how long the slow one takes."""

    fast: str
    slow: str
    seconds: float

    def put_first(self, rig: Rig, number: int, *, slow: bool) -> None:
        """The job that is the slow one, or in its place one more fast one."""
        put(rig, self.slow if slow else self.fast, self.seconds if slow else TEXT, 1, number)


def work_slow(rig: Rig) -> Result:
    """Arithmetic: one slot of a hundred, or one thread, is taken, and no processor time. So nothing should change."""
    seconds = SLOW * min(1.0, rig.scale)
    n = size_of(rate_of(rig), seconds * FILLED)
    parts = {
        "async": _part(rig, Mix("noop", "nap", seconds), n),
        "plain": _part(rig, Mix("noop_plain", "block", seconds), n),
    }
    return delivered(parts.values()) | parts


def _part(rig: Rig, mix: Mix, n: int) -> Result:
    found = middle([_pair(rig, mix, n, slow_first=bool(i % 2)) for i in range(rig.repeat)], "of_arithmetic")
    without, beside = (_waits(rig, mix, found["jobs_per_s"], slow=slow) for slow in (False, True))
    return {
        **found,
        **delivered([found, without, beside]),
        **{name: beside.get(name) for name in ("p50_ms", "p99_ms", "max_ms")},
        **{f"without_{name}": without.get(name) for name in ("p50_ms", "p99_ms", "max_ms")},
    }


def _pair(rig: Rig, mix: Mix, n: int, *, slow_first: bool) -> Result:
    found = {slow: _drained(rig, mix, n, slow=slow) for slow in (slow_first, not slow_first)}
    without, beside = found[False], found[True]
    return {
        **delivered([without, beside]),
        "jobs_per_s": round(beside["per_s"]),
        **against(beside["per_s"], without["per_s"]),
    }


def _drained(rig: Rig, mix: Mix, n: int, *, slow: bool) -> Result:
    """How fast the `n` fast jobs start that are queued behind the first one."""
    rig.reset()
    mix.put_first(rig, 0, slow=slow)
    put(rig, mix.fast, TEXT, n, first=1)
    with rig.worker(gently=False) as worker:
        rig.wait_until(lambda: rig.probe.any_ran(n + 1), worker, within=30, what="the first job")
        found = wait_delivered(rig, worker, n + 1)
    starts = sorted(rig.probe.times(1, n))
    return found.told() | {"per_s": n / ((starts[-1] - starts[0]) / 1e9)}


def _waits(rig: Rig, mix: Mix, rate: float, *, slow: bool) -> Result:
    """How long fast jobs at a pace wait that come after the first one."""
    rig.reset()
    with rig.worker(gently=False) as worker:
        rig.wait_idle(rig.driver())
        mix.put_first(rig, 5, slow=slow)
        return paced(rig, worker, mix.fast, TEXT, first=6, rate=rate)


MEASURES = (
    Measure("work_slow", "fast jobs beside a slow one, and without it", work_slow, only_asked=True, only_ours=True),
)
