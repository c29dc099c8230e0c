"""Vitals of a queue: sizes, ages, stuck jobs, rates.

The store reads at most a fixed number of random jobs of each state. Up to that number all figures are exact; beyond
it, mean ages, stuck jobs and shares of tasks are estimates and marked as such.

For most jobs the time since they became ready is exact: those ready at creation, due later, revived, or released with
their parents' results. For retried jobs, and for dependents that take no results, only a bound is known. So the age of
a queue is the age of its oldest job of the first kind; bounds count only if there is no such job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from relevo.engine.pauses import Pause

#: Windows of the reported rates, in minutes.
WINDOWS = {"1m": 1, "5m": 5, "15m": 15}
#: A shorter span than this, in ms, gives no meaningful rate.
SHORTEST_MS = 5_000
#: States in which entities are in stock or in use.
AT_REST = ("ready", "running")
#: Counters that are sampled every minute, in the order in which samples hold them.
COUNTED = ("enqueued", "done", "retry", "dead", "cancelled", "expired", "lost", "revived", "dropped")


class Entry(Struct, frozen=True, kw_only=True):
    """A job in a sample."""

    #: When it was made; 0: unknown, another program wrote it.
    made_ms: int = 0
    score: float = 0.0
    #: When it was last handed out, revived, or released by its parents; 0: never.
    begun_ms: int = 0
    #: Its task; '': unknown, e.g. because its body is too large to read.
    task: str = ""
    #: Its delay from creation until it was due, if any.
    later_ms: int = 0
    #: It became ready at some later, unknown time, so its age is only a bound.
    is_late: bool = False

    @property
    def since_ms(self) -> int:
        """The earliest time at which it can have become ready."""
        return max(self.made_ms + self.later_ms, self.begun_ms)


class StateVitals(Struct, frozen=True):
    """The jobs of a queue that are in one state."""

    size: int = 0
    #: Age of the oldest, in ms; None: no jobs, or their age is unknown.
    oldest_age_ms: int | None = None
    mean_age_ms: int | None = None
    #: Jobs in this state for too long; scheduled jobs overdue for too long.
    stuck: int = 0
    #: Whether mean and stuck were counted; else they are estimated from a sample.
    exact: bool = True


class PoolVitals(Struct, frozen=True, kw_only=True):
    """Vitals of a pool: its entities by state, and its dead letters."""

    name: str
    #: Its name among the queues.
    queue: str
    now_ms: int
    states: dict[str, StateVitals]
    dead: int = 0
    dead_recently: int = 0
    #: Dead letters by the state that their entities came from; estimated from a sample if there are more than that.
    dead_from: dict[str, int] = {}
    #: Entities that are in no state.
    orphans: int = 0
    #: Totals since the counters began.
    totals: dict[str, int] = {}

    def size(self, state: str) -> int:
        """How many entities are in a state."""
        return self.states[state].size if state in self.states else 0

    @property
    def stuck(self) -> int:
        """Entities in transit for too long. In stock or in use they may stay."""
        return sum(one.stuck for state, one in self.states.items() if state not in AT_REST)


class TaskLoad(Struct, frozen=True):
    """The jobs of one task in a queue."""

    task: str
    active: int = 0
    #: Ready, scheduled, or waiting for others.
    waiting: int = 0
    exact: bool = True
    #: Age of the oldest ready job of it among those that were read; None: there is none, or its age is unknown.
    oldest_age_ms: int | None = None


class Rates(Struct, frozen=True, kw_only=True):
    """Counts per minute."""

    #: The span measured, in seconds: about the window, less if no older sample exists.
    span_s: float
    enqueued: float = 0.0
    done: float = 0.0
    retried: float = 0.0
    dead: float = 0.0
    #: Failed attempts: retried or dead.
    failed: float = 0.0


class Sample(Struct, frozen=True):
    """The counters of a queue at a moment."""

    at_ms: int
    totals: Mapping[str, int]


class Fault(Struct, frozen=True):
    """A foreign value that a script found in the keys of a queue."""

    at_ms: int
    #: A sentence for display.
    text: str


class Vitals(Struct, frozen=True, kw_only=True):
    """A snapshot of one queue."""

    name: str
    #: Time of the snapshot, by the server's clock.
    now_ms: int
    #: ready, scheduled, running, waiting, done, dead
    states: dict[str, StateVitals]
    #: Scheduled jobs that are due, and for how long the first of them has been due.
    overdue: int = 0
    overdue_age_ms: int = 0
    #: Running jobs whose lease expired a while ago and that no worker has recovered.
    silent: int = 0
    idle_workers: int = 0
    paused: bool = False
    #: Breakers that are open, or half open with jobs that wait for the end of a probe.
    breakers: tuple[Pause, ...] = ()
    #: Waiting jobs held back by a limit, a pause or a breaker, not by other jobs.
    parked: int = 0
    #: Dead letters of the last 15 minutes that still exist.
    dead_recently: int = 0
    #: Dead letters of the last hour that were dropped because there were more than `dead_max`.
    dropped_recently: int = 0
    tasks: tuple[TaskLoad, ...] = ()
    #: By window, 1m, 5m and 15m; None: no sample is old enough.
    rates: dict[str, Rates | None] = {}
    #: Stuck jobs, in all states.
    stuck: int = 0
    #: Seconds until nothing is ready at the rate of the last five minutes, or else (a burst is over) of the last one;
    #: None: the backlog does not shrink, or the rate is unknown.
    clears_in_s: float | None = None
    #: Totals since the counters began.
    totals: dict[str, int] = {}
    #: Whether they were sampled in this minute, for later rates.
    minute_kept: bool = True
    #: Key, or key and field -> the fault found there, of the last week.
    faults: dict[str, Fault] = {}
    #: Tasks that no live worker has, and how many jobs wait for each.
    unknown_tasks: dict[str, int] = {}

    def size(self, state: str) -> int:
        """How many jobs are in a state."""
        return self.states[state].size


def aged(size: int, ages_ms: Sequence[int], *, stuck_ms: int, oldest_ms: int | None = None) -> StateVitals:
    """Vitals of a state with `size` jobs from the ages of a sample; `oldest_ms`: an age found in another way."""
    if not size or not ages_ms:
        return StateVitals(size, oldest_ms if size else None, exact=not size)
    exact = len(ages_ms) >= size
    oldest = max(ages_ms) if oldest_ms is None else max(oldest_ms, *ages_ms)
    found = sum(age >= stuck_ms for age in ages_ms)
    share = found if exact else round(size * found / len(ages_ms))
    # A stuck job in the sample counts as one even if its share rounds to zero.
    stuck = max(share, found, int(oldest >= stuck_ms))
    return StateVitals(size, oldest, round(sum(ages_ms) / len(ages_ms)), stuck, exact)


def ready(size: int, sample: Sequence[Entry], heads: Sequence[Entry], now_ms: int, stuck_ms: int) -> StateVitals:
    """Vitals of ready jobs, from a sample and the heads of the lines, where the oldest must be."""
    # If any age is exact, jobs with only a bound are left out.
    ours = [entry for entry in (*sample, *heads) if entry.made_ms]
    some_known = any(not entry.is_late for entry in ours)
    judged = [entry for entry in ours if not (some_known and entry.is_late)]
    oldest = max((_age(entry.since_ms, now_ms) for entry in judged), default=None)
    chosen = [entry for entry in sample if entry.made_ms and not (some_known and entry.is_late)]
    found = aged(size, [_age(entry.since_ms, now_ms) for entry in chosen], stuck_ms=stuck_ms, oldest_ms=oldest)
    return found if len(chosen) == len(sample) or not found.size else _inexact(found)


def _inexact(one: StateVitals) -> StateVitals:
    return StateVitals(one.size, one.oldest_age_ms, one.mean_age_ms, one.stuck, exact=False)


def _age(since_ms: int, now_ms: int) -> int:
    return max(0, now_ms - since_ms)  # producers' clocks may run ahead


def running(size: int, sample: Sequence[Entry], now_ms: int, stuck_ms: int) -> StateVitals:
    """Vitals of running jobs."""
    return aged(size, [_age(one.begun_ms, now_ms) for one in sample if one.begun_ms], stuck_ms=stuck_ms)


def by_score(size: int, sample: Sequence[Entry], now_ms: int, *, first_ms: int = 0, stuck: int = 0) -> StateVitals:
    """Vitals of a state whose scores are times: the oldest and the stuck jobs are exact for any size."""
    if not size:
        return StateVitals()
    ages = [_age(int(one.score), now_ms) for one in sample]
    mean = round(sum(ages) / len(ages)) if ages else None
    oldest = _age(first_ms, now_ms) if first_ms else None
    return StateVitals(size, oldest, mean, stuck, exact=len(ages) >= size)


def scheduled(size: int, sample: Sequence[Entry], heads: Sequence[Entry], now_ms: int, stuck: int) -> StateVitals:
    """Vitals of scheduled jobs: ages since creation or the last attempt."""
    ages = [_age(max(one.begun_ms, one.made_ms), now_ms) for one in sample if one.made_ms]
    first = [_age(max(one.begun_ms, one.made_ms), now_ms) for one in heads if one.made_ms]
    if not size or not ages:
        return StateVitals(size, stuck=stuck, exact=not size)
    return StateVitals(size, max(*ages, *first), round(sum(ages) / len(ages)), stuck, exact=len(ages) >= size)


def loads(
    active: tuple[int, Sequence[Entry]], *waiting: tuple[int, Sequence[Entry]], oldest: Mapping[str, int] | None = None
) -> tuple[TaskLoad, ...]:
    """The load of each task from samples given as (size, sample): tasks with most jobs first."""
    oldest = oldest or {}
    running, is_exact = _shares(*active)
    counts: Counter[str] = Counter()
    for size, sample in waiting:
        found, exact = _shares(size, sample)
        counts += found
        is_exact = is_exact and exact
    names = sorted({*running, *counts}, key=lambda name: (-running[name] - counts[name], name))
    return tuple(TaskLoad(name, running[name], counts[name], is_exact, oldest.get(name)) for name in names)


def oldest_by_task(entries: Iterable[Entry], now_ms: int) -> dict[str, int]:
    """Task -> age of the oldest of these jobs; those of which only a bound is known are left out."""
    found: dict[str, int] = {}
    for one in entries:
        if one.task and one.made_ms and not one.is_late:
            found[one.task] = max(found.get(one.task, 0), _age(one.since_ms, now_ms))
    return found


def grown(samples: Iterable[Sample], now: Sample, name: str) -> int:
    """By how much a counter grew since the oldest sample that has it."""
    earlier = sorted((one for one in samples if name in one.totals), key=lambda one: one.at_ms)
    return _grown(earlier[0].totals[name], now.totals.get(name, 0)) if earlier else 0


def _shares(size: int, sample: Sequence[Entry]) -> tuple[Counter[str], bool]:
    named = Counter(entry.task for entry in sample if entry.task)
    seen = sum(named.values())
    if not seen or seen >= size:
        return named, seen >= size
    return Counter({task: max(1, round(size * count / seen)) for task, count in named.items()}), False


def rates(samples: Iterable[Sample], now: Sample) -> dict[str, Rates | None]:
    """Rates by window, from current and earlier counters."""
    earlier = sorted((one for one in samples if one.at_ms < now.at_ms), key=lambda one: one.at_ms)
    return {name: _rate(earlier, now, minutes * 60_000) for name, minutes in WINDOWS.items()}


def _rate(earlier: Sequence[Sample], now: Sample, window_ms: int) -> Rates | None:
    # The newest sample that is old enough, else the oldest.
    old = [one for one in earlier if now.at_ms - one.at_ms >= window_ms]
    then = old[-1] if old else earlier[0] if earlier else None
    if then is None or now.at_ms - then.at_ms < SHORTEST_MS:
        return None
    span = (now.at_ms - then.at_ms) / 60_000

    def per_minute(*names: str) -> float:
        return round(sum(_grown(then.totals.get(name, 0), now.totals.get(name, 0)) for name in names) / span, 3)

    return Rates(
        span_s=round(span * 60, 3),
        enqueued=per_minute("enqueued", "revived"),
        done=per_minute("done"),
        retried=per_minute("retry"),
        dead=per_minute("dead"),
        failed=per_minute("retry", "dead"),
    )


def _grown(then: int, now: int) -> int:
    return now - then if now >= then else now  # the counters were reset in between


def clears_in(backlog: int, *rates: Rates | None) -> float | None:
    """Seconds until a backlog is empty at the first of these rates that shrinks it; None: no rate does."""
    if not backlog:
        return 0.0
    for one in rates:
        gain = one.done + one.dead - one.enqueued if one is not None else 0.0
        if gain > 0:
            return round(backlog / gain * 60, 3)
    return None
