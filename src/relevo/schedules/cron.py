"""When a schedule fires: by a cron expression in a time zone, or at a fixed interval.

A time at which a schedule fires is a *tick*. It is computed from the schedule alone, so every worker computes the same
ticks, and its time is its identity: the first worker to fire a tick prevents all others from firing it.

Most zones change the clock twice a year, so an hour is missing or comes twice:

- **The missing hour.** Times in it (02:30 in Madrid on a Sunday in March) are not lost: they fire once, together, at
  the end of the gap (03:00). An expression that fires in every hour anyway loses nothing, and nothing is made up.
- **The repeated hour.** Times in it fire in the first pass and not again in the second. Expressions that run through
  the hours instead of naming times, because the minute begins with `*` or every hour is named, fire in both: their
  interval in real time stays the same.

So `30 2 * * *` fires once on every day of the year, `0 */2 * * *` twelve times, and `*/30 * * * *` every half an hour.
Changes of a zone's rules are handled in the same way. cronsim parses the expression and iterates the local times; this
module maps them to UTC, since cronsim skips the missing hour with `0 */2 * * *` and with six fields, and misses times
where the clock is changed by half an hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from itertools import islice, pairwise
from typing import NamedTuple, assert_never
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim
from msgspec import Struct
from msgspec.structs import force_setattr

from relevo.errors import OptionError
from relevo.schedules.cron_text import fields_of, read, words
from relevo.text.durations import Duration, milliseconds, seconds, spoken
from relevo.text.nearest import did_you_mean

#: Seconds. Shorter intervals belong in a loop inside a job: creating and settling a job each time would cost more than
#: the work, and a tick would be late before the next one is due.
SHORTEST = 1.0
#: Seconds in a leap year. Longer intervals are better expressed as a date with cron.
LONGEST = 366 * 86_400.0

_DAY = 86_400
_SECOND = timedelta(seconds=1)
_ZERO = datetime(1970, 1, 1)
#: Names local to one system: on other workers they may mean another zone, or none.
_NOT_FOR_ALL = ("localtime", "posixrules", "posix/", "right/")


class Cron(Struct, frozen=True, tag_field="kind", tag="cron"):
    """Ticks at the local times of an expression.

    Five fields, or six with the second in front, or `@daily` and the like; the zone is an IANA name.

    >>> next_after(Cron("30 2 * * *", "Europe/Madrid"), 1_767_222_000_000)
    1767231000000
    """

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        force_setattr(self, "expression", read(self.expression))
        _zone(self.tz)


class Every(Struct, frozen=True, tag_field="kind", tag="every"):
    """Ticks at all multiples of an interval since 1970, UTC.

    Not counted from the registration: registering it again moves no tick, and whole days begin at 00:00 UTC.

    >>> next_after(Every(10), 1_767_222_003_000)
    1767222010000
    """

    #: Whole milliseconds.
    seconds: float

    def __post_init__(self) -> None:
        found = milliseconds(self.seconds, what="every") / 1000
        if not SHORTEST <= found <= LONGEST:
            raise OptionError(
                f"every: from {spoken(SHORTEST)} to {spoken(LONGEST)} is needed, found {self.seconds!r:.60}. For what "
                "must come more often use a loop in a job, for a date in the year cron=."
            )
        force_setattr(self, "seconds", found)

    @classmethod
    def of(cls, value: Duration) -> Every:
        """Read an option: seconds, a timedelta, or text such as `"10s"`."""
        return cls(seconds(value, what="every"))

    @property
    def ms(self) -> int:
        """The interval in milliseconds."""
        return round(self.seconds * 1000)


When = Cron | Every


class Ticks(NamedTuple):
    """The newest ticks of a span, oldest first."""

    times: list[int]
    #: Number of older ticks in that span.
    older: int


def next_after(when: When, after_ms: int) -> int:
    """The first tick later than `after_ms`."""
    match when:
        case Every():
            return (after_ms // when.ms + 1) * when.ms
        case Cron():
            return _Ticker(when).next_after(after_ms // 1000) * 1000
        case _:
            assert_never(when)


def ticks_between(when: When, after_ms: int, until_ms: int, limit: int) -> Ticks:
    """The newest `limit` ticks later than `after_ms` and not later than `until_ms`.

    The others are counted without iterating: a year of seconds takes no longer than a day.
    """
    match when:
        case Every():
            first, last = after_ms // when.ms + 1, until_ms // when.ms
            times = [number * when.ms for number in range(max(first, last - limit + 1), last + 1)]
            count = max(last - first + 1, 0)
        case Cron():
            ticker, span = _Ticker(when), (after_ms // 1000, until_ms // 1000)
            times = [tick * 1000 for tick in islice(ticker.backwards(*span), limit)][::-1]
            count = ticker.count(*span)
        case _:
            assert_never(when)
    return Ticks(times, count - len(times))


def shortest_ms(when: When) -> int:
    """The shortest interval between two ticks, among the first hundred of the century."""
    match when:
        case Every():
            return when.ms
        case Cron():
            ticks = islice(CronSim(fields_of(when.expression), datetime(2000, 1, 1)), 100)
            return min((later - earlier) // _SECOND for earlier, later in pairwise(ticks)) * 1000
        case _:
            assert_never(when)


def explain(when: When) -> str:
    """In words: `at 02:30 every day, Europe/Madrid time` or `every 10 seconds`."""
    match when:
        case Every():
            for unit, size in (("day", _DAY * 1000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000)):
                if when.ms % size == 0:
                    return f"every {unit}" if when.ms == size else f"every {when.ms // size} {unit}s"
            return f"every {when.seconds:.12g} seconds"
        case Cron():
            zone = when.tz if when.tz in ("UTC", "Etc/UTC") else f"{when.tz} time"
            return f"{words(when.expression)}, {zone}"
        case _:
            assert_never(when)


class _Calendar:
    """The local times of an expression, in seconds of a wall clock without changes."""

    def __init__(self, expression: str) -> None:
        self._fields = fields_of(expression)
        self._sets = CronSim(self._fields, _ZERO)
        #: It fires in every hour.
        self.hourly = len(self._sets.hours) == 24
        #: It runs through the hours instead of naming times.
        self.goes_on = self.hourly or self._sets.parts[1].startswith("*")

    def first(self, low: int) -> int:
        return (next(CronSim(self._fields, _wall(low - 1))) - _ZERO) // _SECOND

    def backwards(self, high: int) -> Iterator[int]:
        return ((time - _ZERO) // _SECOND for time in CronSim(self._fields, _wall(high + 1), reverse=True))

    def count(self, low: int, high: int) -> int:
        """Number of times from `low` to `high`, both included; counted by day, not one by one."""
        if high < low:
            return 0
        (first, begin), (last, end) = divmod(low, _DAY), divmod(high + 1, _DAY)
        days = sum(self._is_named(day) for day in range(first, last))
        rest = self._earlier(end) if end and self._is_named(last) else 0
        return days * self._earlier(_DAY) + rest - (self._earlier(begin) if self._is_named(first) else 0)

    def _is_named(self, day: int) -> bool:
        on = date.fromordinal(_ZERO.toordinal() + day)
        return on.month in self._sets.months and self._sets.match_day(on)

    def _earlier(self, time: int) -> int:
        """Number of times of a day before this one."""
        sets, (hour, minute, second) = self._sets, (time // 3600, time // 60 % 60, time % 60)
        seconds = sum(one < second for one in sets.seconds) if minute in sets.minutes else 0
        minutes = sum(one < minute for one in sets.minutes) * len(sets.seconds) + seconds
        hours = sum(one < hour for one in sets.hours) * len(sets.minutes) * len(sets.seconds)
        return hours + (minutes if hour in sets.hours else 0)


class _Stretch(NamedTuple):
    """A span in which the zone has one offset from UTC."""

    offset: int
    #: The time of the change at its begin; None: before the searched range.
    begin: int | None = None
    #: The first local time that belongs to it; may be a missing time, or one that also came before the change.
    first: int = 0

    def low(self, at: int) -> int:
        """The first local time that fires at `at` or later."""
        if self.begin is None:
            return at + self.offset
        return self.first if at <= self.begin else max(at + self.offset, self.first)


class _Ticker:
    """The ticks of an expression in its zone, in seconds since 1970."""

    def __init__(self, cron: Cron) -> None:
        self._calendar = _Calendar(cron.expression)
        self._zone = _zone(cron.tz)

    def next_after(self, after: int) -> int:
        at, searched, found = after + 1, 0, -1
        while True:
            stretch = self._stretch(at, at - _DAY)
            low = stretch.low(at)
            if not searched <= low <= found:  # else `found` still is the next one; saves a search of years
                searched, found = low, self._calendar.first(low)
            tick = max(found - stretch.offset, at)  # a missing time fires at the change
            change = self._next_change(at, tick)
            if change is None:
                return tick
            at = change

    def backwards(self, after: int, until: int) -> Iterator[int]:
        """The ticks later than `after` and not later than `until`, newest first."""
        for stretch, low, high in self._stretches(after, until):
            earliest, last = stretch.begin or low - stretch.offset, None
            for found in self._calendar.backwards(high):
                if found < low:
                    break
                tick = max(found - stretch.offset, earliest)
                if tick != last:  # all missing times fire as one
                    yield tick
                last = tick

    def count(self, after: int, until: int) -> int:
        """Number of ticks later than `after` and not later than `until`."""
        total = 0
        for stretch, low, high in self._stretches(after, until):
            start = max(low, stretch.begin + stretch.offset) if stretch.begin is not None else low
            missing = self._calendar.count(low, start) > 0
            total += missing + self._calendar.count(start + 1, high) if low <= high else 0
        return total

    def _stretches(self, after: int, until: int) -> Iterator[tuple[_Stretch, int, int]]:
        """The stretches of this span, newest first, each with the range of local times to search."""
        while until > after:
            stretch = self._stretch(until, after - _DAY)
            yield stretch, stretch.low(after + 1), until + stretch.offset
            until = after if stretch.begin is None else stretch.begin - 1

    def _stretch(self, at: int, since: int) -> _Stretch:
        begin, offset = self._last_change(since, at), self._offset(at)
        if begin is None:
            return _Stretch(offset)
        before = self._offset(begin - 1)
        is_free = self._calendar.hourly if offset > before else self._calendar.goes_on
        return _Stretch(offset, begin, begin + (offset if is_free else before))

    def _next_change(self, low: int, high: int) -> int | None:
        """The first time in (low, high] at which the offset changes."""
        offset = self._offset(low)
        while low < high:
            to = min(low + _DAY, high)
            if self._offset(to) != offset:
                return self._change(low, to)
            low = to
        return None

    def _last_change(self, low: int, high: int) -> int | None:
        """The last time in (low, high] at which the offset changes."""
        offset = self._offset(high)
        while low < high:
            to = max(high - _DAY, low)
            if self._offset(to) != offset:
                return self._change(to, high)
            high = to
        return None

    def _change(self, low: int, high: int) -> int:
        new = self._offset(high)
        return low + 1 + bisect_left(range(low + 1, high + 1), True, key=lambda at: self._offset(at) == new)

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, self._zone).utcoffset()
        assert offset is not None
        return offset // _SECOND


def _wall(time: int) -> datetime:
    return _ZERO + timedelta(seconds=time)


def _zone(name: object) -> ZoneInfo:
    """The zone of this name; refuses names that other workers may not know or may resolve differently."""
    if isinstance(name, str) and not name.startswith(_NOT_FOR_ALL):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):  # unknown; a path; a folder such as Europe
            pass
    raise OptionError(
        f"tz: no time zone has the name {name!r:.60}{_nearest_zone(str(name))} "
        "Give an IANA name such as 'Europe/Madrid' or 'UTC'."
    )


def _nearest_zone(name: str) -> str:
    known = sorted((zone for zone in available_timezones() if not zone.startswith(_NOT_FOR_ALL)), key=len)
    meant = name[:60].strip().replace(" ", "_").lower()
    for zone in known:
        if meant in (zone.lower(), zone.lower().rpartition("/")[2]):  # `Madrid`, `new york`, `europe/madrid`
            return f", did you mean {zone!r}?"
    return did_you_mean(name[:60], known) or "."
