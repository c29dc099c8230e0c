"""A schedule: its stored record, and its due ticks."""

from __future__ import annotations

from datetime import tzinfo
from hashlib import blake2b
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta, Raw, Struct, field

from relevo.engine.job import PRIORITY_DEFAULT, PRIORITY_MAX
from relevo.errors import OptionError
from relevo.schedules.cron import Cron, Every, When, next_after, shortest_ms, ticks_between
from relevo.text.durations import LONGEST, Duration, milliseconds, spoken
from relevo.text.nearest import did_you_mean

#: A tick while the previous run has not ended: "skip" drops it, "queue" keeps it until then, "allow" runs both.
Overlap = Literal["skip", "queue", "allow"]
#: Ticks that were not fired in time: "skip" drops them, "once" makes one run for all, "all" one for each.
Missed = Literal["skip", "once", "all"]
#: Defined by a decorator, in the settings, or by a call at run time.
Origin = Literal["code", "settings", "call"]

#: The options of the schedule itself; all others are options of its jobs.
TIMES = frozenset({"cron", "every", "tz", "overlap", "missed", "missed_limit", "jitter"})

#: Characters.
LONGEST_NAME = 200
#: Missed runs that may be made up for at once; more would keep a queue busy with old work.
MISSED_LIMIT_MAX = 1000

#: The time it may take to detect a dead worker. A tick that is late by up to this much is not missed.
GRACE_MS = 15_000
#: How far the clock may step back while the schedule waits for it to catch up: ticks in between were fired already.
#: After a larger step the clock was wrong before, or the schedule was changed, and waiting might never end.
STEP_BACK_MS = 600_000
#: Longer than between any two ticks: the rarest date comes once in 40 years.
_NO_TICK_SO_FAR_MS = 51 * 366 * 86_400_000


class Schedule(Struct, frozen=True, kw_only=True):
    """The record of a schedule. Made by `schedule_of`, changed with `msgspec.structs.replace`.

    All fields are written, including defaults: a later version with other defaults must not change a registered
    schedule. Unknown fields come from a newer version and are ignored.
    """

    name: str
    target: str
    when: When
    queue: str = "default"
    #: The body of its jobs: their arguments, and the options chosen for them.
    body: Raw = Raw(b"{}")
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = PRIORITY_DEFAULT
    tenant: str = field(name="group", default="")
    weight: Annotated[float, Meta(ge=0.01, le=64)] = 1.0
    #: Seconds after its tick at which a job that has not started expires; None: never.
    expires: Annotated[float, Meta(ge=0)] | None = None
    #: Seconds for which the record of a failed job is kept.
    failure_ttl: Annotated[float, Meta(ge=0)] = 7 * 86400.0
    #: Runs that take longer than the interval must not pile up.
    overlap: Overlap = "skip"
    #: After a night without workers one report is needed, not one for each hour.
    missed: Missed = "once"
    #: With missed="all": at most this many, the newest. Enough for a weekend at one per half hour.
    missed_limit: Annotated[int, Meta(ge=1, le=MISSED_LIMIT_MAX)] = 100
    #: Seconds over which starts are spread, so that hourly schedules do not all start at once. 0: none.
    jitter: Annotated[float, Meta(ge=0)] = 0.0
    origin: Origin = "call"
    paused: bool = False

    def __post_init__(self) -> None:
        _name(self.name)
        if not self.target:
            raise OptionError(f"target: the name of a task is needed, found {self.target!r}")
        _choice("overlap", self.overlap, get_args(Overlap))
        _choice("missed", self.missed, get_args(Missed))
        _choice("origin", self.origin, get_args(Origin))
        _number("missed_limit", self.missed_limit, 1, MISSED_LIMIT_MAX, whole=True)
        _number("priority", self.priority, 0, PRIORITY_MAX, whole=True)
        _number("weight", self.weight, 0.01, 64)
        _number("jitter", self.jitter, 0, LONGEST)


class Firing(Struct, frozen=True):
    """The ticks of a schedule to fire now."""

    #: Oldest first. The time of a tick is its identity: a tick is fired at most once.
    ticks: tuple[int, ...]
    #: The next tick.
    next_ms: int
    #: Past ticks that are not fired.
    dropped: int = 0


def schedule_of(
    *,
    name: str,
    target: str,
    cron: str | None = None,
    every: Duration | None = None,
    tz: str | tzinfo | None = None,
    jitter: Duration = 0,
    **others: Any,
) -> Schedule:
    """Build a schedule; refuses invalid values with `OptionError`.

    Give `cron`, with its time zone, or `every`. The others are the fields of `Schedule`.

    >>> schedule_of(name="nightly", target="shop.report", cron="30 2 * * *", tz="Europe/Madrid").when
    Cron(expression='30 2 * * *', tz='Europe/Madrid')
    """
    known = {*Schedule.__struct_fields__, "cron", "every", "tz"} - {"when"}
    for other in others:
        if other not in known:
            raise OptionError(f"unknown option {other!r:.60} of a schedule{did_you_mean(other, known)}")
    when = _when(cron, every, tz)
    return Schedule(name=name, target=target, when=when, jitter=_jitter(jitter, when), **others)


def due(schedule: Schedule, due_ms: int, now_ms: int, *, grace_ms: int = GRACE_MS) -> Firing:
    """The ticks to fire now, when `due_ms` is the next expected tick (0: none yet).

    A tick is in time until `grace_ms` after it; older ones were missed:

    - "skip" fires ticks in time and drops missed ones.
    - "once" fires ticks in time; if there are none, the newest missed tick: one run for all.
    - "all" fires missed ticks, too, at most the newest `missed_limit`.

    Before `due_ms` nothing fires, and the same tick stays the expected one, also after the clock has stepped back a
    little, since the ticks in between were fired. If `due_ms` is not a tick of this schedule, or the clock has stepped
    back by more than ten minutes, the next tick from now is expected. No tick is missed while a schedule is paused, or
    before its first tick.
    """
    when = schedule.when
    if due_ms <= 0 or schedule.paused:
        return Firing((), next_after(when, now_ms))
    if now_ms < due_ms:
        return Firing((), _awaited(when, due_ms, now_ms))
    since_ms = max(due_ms, now_ms - grace_ms) - 1
    in_time = ticks_between(when, since_ms, now_ms, MISSED_LIMIT_MAX)
    made_up = {"skip": 0, "once": 0 if in_time.times else 1, "all": schedule.missed_limit}
    late = ticks_between(when, due_ms - 1, since_ms, made_up[schedule.missed])
    return Firing((*late.times, *in_time.times), next_after(when, now_ms), late.older + in_time.older)


def shifted(tick_ms: int, schedule: Schedule) -> int:
    """When the job of a tick may start: spread over the jitter, and the same on every worker."""
    digest = blake2b(f"{schedule.name}:{tick_ms}".encode(), digest_size=8).digest()
    return tick_ms + (int.from_bytes(digest) * round(schedule.jitter * 1000) >> 64)


def _awaited(when: When, due_ms: int, now_ms: int) -> int:
    """The tick to wait for while the expected tick `due_ms` is in the future."""
    upcoming = next_after(when, now_ms)
    if due_ms <= upcoming or due_ms - now_ms > _NO_TICK_SO_FAR_MS or next_after(when, due_ms - 1) != due_ms:
        return upcoming
    # By this clock an earlier tick is still to come. It was fired (else it would be the expected one), so the clock
    # has shown at least its time before.
    fired_ms = ticks_between(when, now_ms, due_ms - 1, 1).times[-1]
    return due_ms if fired_ms - now_ms <= STEP_BACK_MS else upcoming


def _when(cron: str | None, every: Duration | None, tz: str | tzinfo | None) -> When:
    if cron is not None and every is not None:
        raise OptionError(f"cron and every are two schedules: give one of them, found {cron!r:.60} and {every!r:.60}")
    if cron is not None:
        return Cron(cron, "UTC" if tz is None else str(tz) if isinstance(tz, tzinfo) else tz)
    if every is None:
        raise OptionError("a schedule needs cron= such as '30 2 * * *', or every= such as '10s'; found neither")
    if tz is not None:
        raise OptionError(f"tz: a fixed distance has no time zone, found {tz!r:.60}. Leave it out, or use cron=.")
    return Every.of(every)


def _jitter(value: Duration, when: When) -> float:
    found_ms = milliseconds(value, what="jitter")
    if found_ms and found_ms >= (shortest := shortest_ms(when)):
        raise OptionError(
            f"jitter: less than the {spoken(shortest / 1000)} between two runs is needed, found {value!r:.60}: "
            "one run would start after the next"
        )
    return found_ms / 1000


def _name(value: object) -> None:
    text = value if isinstance(value, str) and value.isprintable() else ""
    if not 0 < len(text) <= LONGEST_NAME or " " in text or ":" in text or text.startswith("-"):
        raise OptionError(
            f"name: printable text of 1 to {LONGEST_NAME} characters is needed, without spaces and colons and with no "
            f"dash in front, found {value!r:.80}"
        )


def _choice(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        near = did_you_mean(str(value), known)
        raise OptionError(f"{what}: one of {', '.join(known)} is needed, found {value!r:.60}{near}")


def _number(what: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    kinds = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        raise OptionError(f"{what}: {kind} from {low:g} to {high:g} is needed, found {value!r:.60}")


read_schedule = msgspec.json.Decoder(Schedule).decode
