"""Health of a pool: one bounded script per call."""

from __future__ import annotations

from typing import Any

from relevo.health.vitals import PoolVitals, StateVitals
from relevo.health.vitals_store import RECENT_MS, SAMPLE
from relevo.pools.store import MOST_STATES
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call


def pool_vitals(pool: QueueKeys, name: str, queue: str, *, stuck_ms: int) -> Call[PoolVitals]:
    """The numbers by which a pool is judged."""
    script = pool.script("pools/measure_pool")

    def decode(reply: list[Any]) -> PoolVitals:
        now_ms, dead, recently, counters, *rows = reply
        states = {}
        for word, size, oldest, stuck, mean in zip(*(rows[n::5] for n in range(5)), strict=True):
            ages = (now_ms - int(float(oldest)), now_ms - int(float(mean)))
            states[word.decode(errors="replace")] = StateVitals(size, *ages, stuck, exact=size <= SAMPLE)
        totals = {
            field.decode(errors="replace"): int(n) for field, n in zip(counters[::2], counters[1::2], strict=True)
        }
        return PoolVitals(
            name=name, queue=queue, now_ms=now_ms, states=states, dead=dead, dead_recently=recently, totals=totals
        )

    return Call([stuck_ms, RECENT_MS, SAMPLE, MOST_STATES], decode, script, pool.of(script))
