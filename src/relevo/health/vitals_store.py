"""Health of a queue: one bounded script per call, and samples of its counters once a minute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relevo.engine.ids import looks_like_id, made_ms
from relevo.engine.offers_store import read_unknown
from relevo.engine.pauses import Pause, read_pause
from relevo.health import vitals as numbers
from relevo.health.vitals import COUNTED, Entry, Fault, Sample, StateVitals, Vitals
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

#: Jobs of each state that are read, at random: enough to tell a tenth from a fourth. Where millions wait, none of
#: them is in the processor's cache, and each costs the server some 20 microseconds.
SAMPLE = 64
#: Jobs that are read from the head of each line, where the oldest is.
AHEAD = 10
#: A job without progress for so long is stuck, unless the caller says otherwise.
STUCK_MS = 7_200_000
#: Waiting for others is normal for longer: up to a day.
WAIT_MS = 86_400_000
#: Idle workers wake up to take over the jobs of a dead one. A lease that ended so long ago shows that none did.
LATE_MS = 10_000
RECENT_MS = 900_000
#: TTL of the samples of counters without a call.
HOUR_MS = 2 * 3_600_000
_FAR = float(2**60)
_FIELDS = 6  # of a job, as health/measure_queue.lua returns it


def vitals(queue: QueueKeys, name: str, *, stuck_ms: int = STUCK_MS, wait_ms: int = WAIT_MS) -> Call[Vitals]:
    """The health of the queue, at the same cost however many jobs are in it."""
    script = queue.script("health/measure_queue")

    def decode(reply: list[Any]) -> Vitals:
        return _read(name, stuck_ms, reply)

    return Call([SAMPLE, AHEAD, stuck_ms, wait_ms, LATE_MS, RECENT_MS], decode, script, queue.of(script))


def keep_minute(queue: QueueKeys) -> Call[dict[str, Fault]]:
    """Keep the queue's counters as of this minute, to compute rates from: returns the faults met recently."""
    script = queue.script("health/sample_counters")
    return Call([HOUR_MS], _faults, script, queue.of(script))


def _read(name: str, stuck_ms: int, reply: list[Any]) -> Vitals:
    now, sizes, idle, paused, breakers, parked, counts, jobs, dead_scores, done_scores, totals, minutes, *found = reply
    unknown, faults = found
    overdue, overdue_stuck, first_due, silent, waiting_stuck, waits_since, dead_recently, died, done_since = counts
    ready, heads, scheduled, next_due, running, waiting = map(_entries, jobs)
    due_ms = _ms(first_due) // 1024
    size = dict(zip(("ready", "scheduled", "running", "waiting", "done", "dead"), sizes, strict=True))
    states: dict[str, StateVitals] = {
        "ready": numbers.ready(size["ready"], ready, heads, now, stuck_ms),
        "scheduled": numbers.scheduled(size["scheduled"], scheduled, next_due, now, overdue_stuck),
        "running": numbers.running(size["running"], running, now, stuck_ms),
        "waiting": numbers.by_score(size["waiting"], waiting, now, first_ms=_ms(waits_since), stuck=waiting_stuck),
        "done": numbers.by_score(size["done"], _scored(done_scores), now, first_ms=_ms(done_since)),
        "dead": numbers.by_score(size["dead"], _scored(dead_scores), now, first_ms=_ms(died)),
    }
    counters = {_text(totals[i]): _number(totals[i + 1]) for i in range(0, len(totals), 2)}
    active = size["running"], running
    queued = ((size["ready"], ready), (size["scheduled"], scheduled), (size["waiting"], waiting))
    samples, present = _samples(minutes[1::2]), Sample(now, counters)
    rates = numbers.rates(samples, present)
    return Vitals(
        name=name,
        now_ms=now,
        states=states,
        overdue=overdue,
        overdue_age_ms=max(0, now - due_ms) if overdue else 0,
        silent=silent,
        idle_workers=idle,
        paused=bool(paused),
        breakers=_breakers(name, breakers),
        parked=round(size["waiting"] * parked / len(waiting)) if waiting else 0,
        dead_recently=dead_recently,
        dropped_recently=numbers.grown(samples, present, "dropped"),
        tasks=numbers.loads(active, *queued, oldest=numbers.oldest_by_task((*ready, *heads), now)),
        rates=rates,
        stuck=sum(one.stuck for one in states.values()),
        minute_kept=any(one.at_ms // 60_000 == now // 60_000 for one in samples),
        clears_in_s=numbers.clears_in(size["ready"], rates["5m"], rates["1m"]),
        totals=counters,
        faults=_faults(faults),
        unknown_tasks=read_unknown(unknown),
    )


def _faults(values: Sequence[bytes]) -> dict[str, Fault]:
    found = {}
    for name, text in zip(map(_text, values[::2]), map(_text, values[1::2]), strict=True):
        at_ms, _, what = text.partition(" ")
        if at_ms.isdigit():
            found[name] = Fault(int(at_ms), what)
    return found


def _breakers(queue: str, values: Sequence[bytes]) -> tuple[Pause, ...]:
    rows = zip(map(_text, values[::2]), map(_text, values[1::2]), strict=True)
    return tuple(one for name, text in sorted(rows) if (one := read_pause(queue, name, text)) is not None)


def _entries(values: Sequence[Any]) -> list[Entry]:
    rows = zip(*(values[i::_FIELDS] for i in range(_FIELDS)), strict=True)
    return [
        Entry(
            made_ms=_made(_text(id)),
            score=_score(score),
            begun_ms=int(since),
            task=_text(task),
            later_ms=later,
            is_late=bool(late),
        )
        for id, score, since, task, later, late in rows
    ]


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _made(id: str) -> int:
    return made_ms(id) if looks_like_id(id) else 0


def _scored(scores: Sequence[bytes]) -> list[Entry]:
    return [Entry(score=_score(score)) for score in scores]


def _samples(texts: Sequence[bytes]) -> list[Sample]:
    found = []
    for text in texts:
        at, *counts = text.split() or [b""]
        # Else another program wrote it. An earlier release did not count the last of them.
        if at.isdigit() and len(COUNTED) - 1 <= len(counts) <= len(COUNTED):
            found.append(Sample(int(at), dict(zip(COUNTED, map(_number, counts), strict=False))))
    return found


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0


def _ms(score: bytes) -> int:
    return int(_score(score))


def _score(text: bytes) -> float:
    """A score, made finite: other programs may write any."""
    return min(max(float(text), -_FAR), _FAR)
