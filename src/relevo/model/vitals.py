"""How a queue is doing, in numbers: sizes, ages, stuck jobs, rates.

The store looks at no more than a fixed number of jobs of each state, taken at random, whatever there are. Up to that
many, all numbers are exact; beyond it, mean ages, stuck jobs and shares of tasks are estimates, and say so.

How long a job has been ready is known exactly of most: those that were ready when they were made, due since, revived,
or freed with the results that they waited for. Of one that was tried before, or waited for others and takes nothing
from them, only a bound is known. So the age of a queue is that of its oldest job of the first kind; of others, only
where there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from relevo.model.pauses import Pause

#: Minutes over which rates are told.
WINDOWS = {"1m": 1, "5m": 5, "15m": 15}
#: A shorter time than this, in ms, says nothing about a rate.
SHORTEST_MS = 5_000
#: States of entities in which they wait for somebody who wants them, or are in somebody's hands.
AT_REST = ("ready", "running")
#: Counters that are sampled every minute, in the order in which samples hold them.
COUNTED = ("enqueued", "done", "retry", "dead", "cancelled", "expired", "lost", "revived")


class Entry(Struct, frozen=True):
    """A job that was looked at."""

    #: When it was made; 0: somebody else wrote it, and nobody knows.
    made_ms: int = 0
    score: float = 0.0
    #: When it was last handed out, revived, or freed by those that it waited for; 0: never.
    begun_ms: int = 0
    #: Its task; '': unknown, as of a body too large to read.
    task: str = ""
    #: How long after it was made it was due, if it was made for later.
    later_ms: int = 0
    #: It became ready later than all that is known of it, so that its age is only a bound.
    is_late: bool = False

    @property
    def since_ms(self) -> int:
        """Since when it may have been ready: not before this."""
        return max(self.made_ms + self.later_ms, self.begun_ms)


class StateVitals(Struct, frozen=True):
    """The jobs of a queue that are in one state."""

    size: int = 0
    #: Age of the oldest, in ms; None: there is none, or nothing is known of it.
    oldest_age_ms: int | None = None
    mean_age_ms: int | None = None
    #: In this state for longer than they should; of scheduled jobs, overdue for so long.
    stuck: int = 0
    #: Whether mean and stuck were counted; else they are estimated from a sample.
    exact: bool = True


class PoolVitals(Struct, frozen=True):
    """How a pool is doing: its entities by state, and its dead letters."""

    name: str
    #: Its name among the queues.
    queue: str
    now_ms: int
    states: dict[str, StateVitals]
    dead: int = 0
    dead_recently: int = 0
    #: Totals since the counters began.
    totals: dict[str, int] = {}

    def size(self, state: str) -> int:
        """How many entities are in a state."""
        return self.states[state].size if state in self.states else 0

    @property
    def stuck(self) -> int:
        """Entities that are on their way for too long. Where they rest until somebody wants them, they may stay."""
        return sum(one.stuck for state, one in self.states.items() if state not in AT_REST)


class TaskLoad(Struct, frozen=True):
    """The jobs of one task in a queue."""

    task: str
    active: int = 0
    #: Ready, scheduled, or waiting for others.
    waiting: int = 0
    exact: bool = True


class Rates(Struct, frozen=True):
    """What happened per minute."""

    #: Seconds that were looked at: about the window, less where nobody looked before.
    span_s: float
    enqueued: float = 0.0
    done: float = 0.0
    retried: float = 0.0
    dead: float = 0.0
    #: Attempts that did not go well: retried or dead.
    failed: float = 0.0


class Sample(Struct, frozen=True):
    """The counters of a queue at a moment."""

    at_ms: int
    totals: Mapping[str, int]


class Fault(Struct, frozen=True):
    """Something that another program wrote into the keys of a queue, and that a script met."""

    at_ms: int
    #: A sentence for people.
    text: str


class Vitals(Struct, frozen=True):
    """A queue, looked at once."""

    name: str
    #: When, by the server's clock.
    now_ms: int
    #: ready, scheduled, running, waiting, done, dead
    states: dict[str, StateVitals]
    #: Scheduled jobs whose time has come, and for how long the first of them has been due.
    overdue: int = 0
    overdue_age_ms: int = 0
    #: Running jobs whose lease ran out a while ago, and nobody took them over.
    silent: int = 0
    idle_workers: int = 0
    paused: bool = False
    #: Of tasks whose attempts failed too often: open, or half open with jobs that wait for the end of a probe.
    breakers: tuple[Pause, ...] = ()
    #: Of those that wait: held back by a limit, a pause or a breaker, not by other jobs.
    parked: int = 0
    #: Dead letters of the last 15 minutes that are still there.
    dead_recently: int = 0
    tasks: tuple[TaskLoad, ...] = ()
    #: By window, 1m, 5m and 15m; None: nobody has looked long enough ago.
    rates: dict[str, Rates | None] = {}
    #: Jobs that do not get on, in all states.
    stuck: int = 0
    #: Seconds until nothing is ready if it goes on like the last five minutes, or else (a burst is over) like the last
    #: one; None: it never will, or nobody knows.
    clears_in_s: float | None = None
    #: Totals since the counters began.
    totals: dict[str, int] = {}
    #: Whether somebody kept them in this minute, so that rates can be told later.
    minute_kept: bool = True
    #: Key, or key and field -> what was wrong there, of the last week.
    faults: dict[str, Fault] = {}
    #: Tasks that no live worker knows, and how many jobs wait for one that does.
    unknown_tasks: dict[str, int] = {}

    def size(self, state: str) -> int:
        """How many jobs are in a state."""
        return self.states[state].size


def aged(size: int, ages_ms: Sequence[int], *, stuck_ms: int, oldest_ms: int | None = None) -> StateVitals:
    """A state of so many jobs, of which a sample has these ages; `oldest_ms`: of one that was found otherwise."""
    if not size or not ages_ms:
        return StateVitals(size, oldest_ms if size else None, exact=not size)
    exact = len(ages_ms) >= size
    oldest = max(ages_ms) if oldest_ms is None else max(oldest_ms, *ages_ms)
    found = sum(age >= stuck_ms for age in ages_ms)
    share = found if exact else round(size * found / len(ages_ms))
    # One that was seen is one, however small its share of the sample.
    stuck = max(share, found, int(oldest >= stuck_ms))
    return StateVitals(size, oldest, round(sum(ages_ms) / len(ages_ms)), stuck, exact)


def ready(size: int, sample: Sequence[Entry], heads: Sequence[Entry], now_ms: int, stuck_ms: int) -> StateVitals:
    """What is ready: a sample, and what stands first in line, where the oldest must be."""
    # Where something is known exactly, what is not is left out.
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
    return max(0, now_ms - since_ms)  # clocks of those who make jobs may run ahead


def running(size: int, sample: Sequence[Entry], now_ms: int, stuck_ms: int) -> StateVitals:
    """What runs, and for how long."""
    return aged(size, [_age(one.begun_ms, now_ms) for one in sample if one.begun_ms], stuck_ms=stuck_ms)


def by_score(size: int, sample: Sequence[Entry], now_ms: int, *, first_ms: int = 0, stuck: int = 0) -> StateVitals:
    """A state whose scores are times: the oldest and those that are stuck were counted, whatever the size."""
    if not size:
        return StateVitals()
    ages = [_age(int(one.score), now_ms) for one in sample]
    mean = round(sum(ages) / len(ages)) if ages else None
    oldest = _age(first_ms, now_ms) if first_ms else None
    return StateVitals(size, oldest, mean, stuck, exact=len(ages) >= size)


def scheduled(size: int, sample: Sequence[Entry], heads: Sequence[Entry], now_ms: int, stuck: int) -> StateVitals:
    """What is due later: ages since it was made or last handed out."""
    ages = [_age(max(one.begun_ms, one.made_ms), now_ms) for one in sample if one.made_ms]
    first = [_age(max(one.begun_ms, one.made_ms), now_ms) for one in heads if one.made_ms]
    if not size or not ages:
        return StateVitals(size, stuck=stuck, exact=not size)
    return StateVitals(size, max(*ages, *first), round(sum(ages) / len(ages)), stuck, exact=len(ages) >= size)


def loads(active: tuple[int, Sequence[Entry]], *waiting: tuple[int, Sequence[Entry]]) -> tuple[TaskLoad, ...]:
    """The tasks of a queue by their share of the samples, given as (size, sample): those with most jobs first."""
    running, is_exact = _shares(*active)
    counts: Counter[str] = Counter()
    for size, sample in waiting:
        found, exact = _shares(size, sample)
        counts += found
        is_exact = is_exact and exact
    names = sorted({*running, *counts}, key=lambda name: (-running[name] - counts[name], name))
    return tuple(TaskLoad(name, running[name], counts[name], is_exact) for name in names)


def _shares(size: int, sample: Sequence[Entry]) -> tuple[Counter[str], bool]:
    named = Counter(entry.task for entry in sample if entry.task)
    seen = sum(named.values())
    if not seen or seen >= size:
        return named, seen >= size
    return Counter({task: max(1, round(size * count / seen)) for task, count in named.items()}), False


def rates(samples: Iterable[Sample], now: Sample) -> dict[str, Rates | None]:
    """Rates by window, from counters of now and of earlier."""
    earlier = sorted((one for one in samples if one.at_ms < now.at_ms), key=lambda one: one.at_ms)
    return {name: _rate(earlier, now, minutes * 60_000) for name, minutes in WINDOWS.items()}


def _rate(earlier: Sequence[Sample], now: Sample, window_ms: int) -> Rates | None:
    # The newest that is old enough; while there is none, the oldest.
    old = [one for one in earlier if now.at_ms - one.at_ms >= window_ms]
    then = old[-1] if old else earlier[0] if earlier else None
    if then is None or now.at_ms - then.at_ms < SHORTEST_MS:
        return None
    span = (now.at_ms - then.at_ms) / 60_000

    def per_minute(*names: str) -> float:
        return round(sum(_grown(then.totals.get(name, 0), now.totals.get(name, 0)) for name in names) / span, 3)

    return Rates(
        round(span * 60, 3),
        per_minute("enqueued", "revived"),
        per_minute("done"),
        per_minute("retry"),
        per_minute("dead"),
        per_minute("retry", "dead"),
    )


def _grown(then: int, now: int) -> int:
    return now - then if now >= then else now  # the counters began anew meanwhile


def clears_in(backlog: int, *rates: Rates | None) -> float | None:
    """Seconds until a backlog is worked off, by the first of these rates at which it is; None: by none of them."""
    if not backlog:
        return 0.0
    for one in rates:
        gain = one.done + one.dead - one.enqueued if one is not None else 0.0
        if gain > 0:
            return round(backlog / gain * 60, 3)
    return None
