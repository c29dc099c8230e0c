"""Health of a pool: one bounded script per call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from relevo.health.vitals import PoolVitals, StateVitals
from relevo.health.vitals_store import RECENT_MS, SAMPLE
from relevo.pools.store import MOST_STATES
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: Dead letters whose state of origin is read: exact up to so many.
LETTERS = 256


def pool_vitals(pool: QueueKeys, name: str, queue: str, *, stuck_ms: int) -> Call[PoolVitals]:
    """The numbers by which a pool is judged."""
    script = pool.script("pools/measure_pool")

    def decode(reply: list[Any]) -> PoolVitals:
        now_ms, dead, recently, counters, unplaced, origins, *rows = reply
        states = {}
        for word, size, oldest, stuck, mean in zip(*(rows[n::5] for n in range(5)), strict=True):
            ages = (now_ms - int(float(oldest)), now_ms - int(float(mean)))
            states[word.decode(errors="replace")] = StateVitals(size, *ages, stuck, exact=size <= SAMPLE)
        totals = {
            field.decode(errors="replace"): int(n) for field, n in zip(counters[::2], counters[1::2], strict=True)
        }
        return PoolVitals(
            name=name,
            queue=queue,
            now_ms=now_ms,
            states=states,
            dead=dead,
            dead_recently=recently,
            dead_from=_shares(dead, origins),
            orphans=max(0, unplaced),
            totals=totals,
        )

    return Call([stuck_ms, RECENT_MS, SAMPLE, MOST_STATES, LETTERS], decode, script, pool.of(script))


def _shares(dead: int, states: Sequence[bytes]) -> dict[str, int]:
    """How many dead letters came from each state, by the states of some of them."""
    counts = Counter(state.decode(errors="replace") for state in states)
    seen = counts.total()
    return {state: max(1, round(count * dead / seen)) for state, count in sorted(counts.items())}
