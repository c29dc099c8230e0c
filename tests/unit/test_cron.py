"""When a schedule fires: cron expressions in time zones, and fixed intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo.errors import OptionError
from relevo.schedules.cron import LONGEST, Cron, Every, When, explain, next_after, shortest_ms, ticks_between
from relevo.schedules.cron_text import ALIASES, fields_of

MADRID, NEW_YORK, LORD_HOWE, HAVANA = "Europe/Madrid", "America/New_York", "Australia/Lord_Howe", "America/Havana"


def ms(text: str, tz: str = "UTC") -> int:
    """The moment of a local time; with an offset in the text, of that."""
    read = datetime.fromisoformat(text)
    return round((read if read.tzinfo else read.replace(tzinfo=ZoneInfo(tz))).timestamp() * 1000)


def local(at_ms: int, tz: str = "UTC") -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, ZoneInfo(tz))


def walk(when: When, after_ms: int) -> Iterator[int]:
    while True:
        after_ms = next_after(when, after_ms)
        yield after_ms


def ticks(expression: str, tz: str, after: str, until: str) -> list[str]:
    """The ticks between two local times: `29 03:00 +2`, the day, the time and the hours ahead of UTC."""
    found = []
    for tick in walk(Cron(expression, tz), ms(after, tz)):
        if tick > ms(until, tz):
            break
        at = local(tick, tz)
        hours = (at.utcoffset() or timedelta()) / timedelta(hours=1)
        found.append(f"{at:%d %H:%M} {hours:+g}" + (f" {at:%S}s" if at.second else ""))
    return found


# Expressions


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00", "2026-01-01T00:01:00"),
        ("* * * * *", "2026-01-01T00:00:59.999", "2026-01-01T00:01:00"),
        ("* * * * * *", "2026-01-01T00:00:59.999", "2026-01-01T00:01:00"),
        ("* * * * * *", "2026-01-01T00:00:00", "2026-01-01T00:00:01"),
        ("*/10 * * * * *", "2026-01-01T00:00:51", "2026-01-01T00:01:00"),
        ("30 0 2 * * *", "2026-01-01T02:00:29", "2026-01-01T02:00:30"),  # the second is the first of six
        ("30 2 * * *", "2026-01-01T02:30:00", "2026-01-02T02:30:00"),
        ("30 2 * * *", "2199-12-31T12:00:00", "2200-01-01T02:30:00"),
        ("0 9-17/4 * * mon-fri", "2026-01-02T17:00:00", "2026-01-05T09:00:00"),
        ("0 0 1 jan *", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("0 0 * * 7", "2026-01-01T00:00:00", "2026-01-04T00:00:00"),
        ("0 0 31 * *", "2026-01-31T00:00:00", "2026-03-31T00:00:00"),
        ("0 0 29 2 *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 29 2 *", "2096-02-29T00:00:00", "2104-02-29T00:00:00"),  # 2100 has none
        ("0 0 29 2 *", "2000-01-01T00:00:00", "2000-02-29T00:00:00"),  # 2000 had one
        ("0 0 L * *", "2026-02-01T00:00:00", "2026-02-28T00:00:00"),
        ("0 0 L 2 *", "2028-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 LW * *", "2026-02-01T00:00:00", "2026-02-27T00:00:00"),  # the 28th is a Saturday
        ("0 0 * * 5L", "2026-01-01T00:00:00", "2026-01-30T00:00:00"),
        ("0 0 * * MON#2", "2026-01-01T00:00:00", "2026-01-12T00:00:00"),
        ("0 0 * * 1#5", "2026-01-01T00:00:00", "2026-03-30T00:00:00"),
        ("0 0 * 2 MON#5", "2072-03-01T00:00:00", "2112-02-29T00:00:00"),  # the most seldom there is
        ("0 0 13 * 5", "2026-01-03T00:00:00", "2026-01-09T00:00:00"),  # day or weekday, as in every cron
        ("0 0 */2 * 5", "2026-01-03T00:00:00", "2026-01-09T00:00:00"),  # day and weekday, if one begins with a star
        ("@daily", "2026-01-01T00:00:00", "2026-01-02T00:00:00"),
        ("@yearly", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
    ],
)
def test_the_next_tick_of_an_expression(expression: str, after: str, expected: str) -> None:
    assert next_after(Cron(expression), ms(after)) == ms(expected)


def test_an_expression_is_kept_as_it_was_written_but_for_white_space_and_the_case_of_words() -> None:
    assert Cron("  0\t0 * *  mon ").expression == "0 0 * * mon"
    assert Cron(" @Daily ") == Cron("@daily")
    assert Cron("0 0 * * *").tz == "UTC"


@pytest.mark.parametrize(
    ("expression", "field", "found", "hint"),
    [
        ("60 * * * *", "minute", "60", "out of range. Allowed are 0-59"),
        ("60 * * * * *", "second", "60", "out of range. Allowed are 0-59"),
        ("0 24 * * *", "hour", "24", "out of range. Allowed are 0-23"),
        ("0 0 0 * *", "day of the month", "0", "out of range. Allowed are 1-31, L"),
        ("0 0 32 * *", "day of the month", "32", "Allowed are 1-31"),
        ("0 0 * 0 *", "month", "0", "Allowed are 1-12 or JAN-DEC"),
        ("0 0 * 13 *", "month", "13", "Allowed are 1-12 or JAN-DEC"),
        ("0 0 * * 8", "day of the week", "8", "Allowed are 0-7 or SUN-SAT"),
        ("1,x,3 * * * *", "minute", "X", "not understood"),
        ("1,,3 * * * *", "minute", "", "not understood"),
        ("0 0 * * 1#6", "day of the week", "1#6", "FRI#2"),
        ("0 0 * * L", "day of the week", "L", "5L"),
        ("0 0 15W * *", "day of the month", "15W", "not understood"),
        ("0 0 L-3 * *", "day of the month", "L-3", "not understood"),
        ("0 0 L/2 * *", "day of the month", "L/2", "a last day has no steps"),
        ("0 0 ? * *", "day of the month", "?", r"write \* for any"),
        ("0 22-2 * * *", "hour", "22-2", "backwards, write 22-23,0-2"),
        ("0 0 * NOV-FEB *", "month", "NOV-FEB", "backwards, write NOV-12,1-FEB"),
        ("0 0 * * FRI-SUN", "day of the week", "FRI-SUN", "backwards, write FRI-7"),
        ("0 0 * * SAT-MON", "day of the week", "SAT-MON", "backwards, write SAT-7,1-MON"),
        ("1-5/x * * * *", "minute", "1-5/X", "not understood"),
        ("5-5/10 * * * *", "minute", "5-5/10", "a range of one has no steps, write 5 or 5-59/10"),
        ("*/0 * * * *", "minute", "*/0", "a step is 1 or more"),
        ("*/61 * * * *", "minute", "*/61", "longer than all of 0-59; for a fixed distance use every="),
        ("*/99999999999999999999 * * * *", "minute", "*/99999999999999999999", "longer than all"),
        (f"{'9' * 200} * * * *", "minute", "9" * 39, "out of range"),
        ("٣ * * * *", "minute", "٣", "out of range"),
        ("5² * * * *", "minute", "5²", "not understood"),
        ("0 0 * * ¹L", "day of the week", "¹L", "not understood"),
    ],
)
def test_a_wrong_field_is_refused_with_its_name_what_was_found_and_what_is_allowed(
    expression: str, field: str, found: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=rf"the {field} of '.*{hint}") as refusal:
        Cron(expression)
    assert f"is wrong at '{found}" in str(refusal.value)
    assert len(str(refusal.value)) < 400


@pytest.mark.parametrize(
    "advice", ["22-23,0-2 * * * * *", "0 0 * NOV-12,1-FEB *", "0 0 * * FRI-7", "0 0 * * SAT-7,1-MON", "*/60 */24 * * *"]
)
def test_the_advice_of_a_refusal_is_accepted(advice: str) -> None:
    assert next_after(Cron(advice), 0) > 0


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        *((wrong, r"text of 1 to 300 characters is needed, such as '30 2 \* \* \*'")
          for wrong in ("", "   ", None, 5, b"* * * * *", "* " * 200)),
        *((wrong, rf"5 fields are needed .* or 6 .* found {len(wrong.split())} in")
          for wrong in ("*", "* * * *", "* * * * * * *", "10s")),
        ("10s", "use every="),
        ("@dayly", "did you mean '@daily'"),
        ("@every 5m", "unknown word"),
        ("@reboot", "enqueue the job at the start"),
    ],
)  # fmt: skip
def test_a_malformed_expression_is_refused_with_what_is_needed(wrong: Any, hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        Cron(wrong)


@pytest.mark.parametrize(
    ("never", "reason"),
    [
        ("0 0 30 2 *", "there is no day 30 in February"),
        ("0 0 30,31 feb *", "there is no day 30,31 in February"),
        ("0 0 31 4,6,9,11 *", "there is no day 31 in April or June or September or November"),
        ("0 0 0 31 2 *", "there is no day 31 in February"),
        ("* * */20 * 1L", r"no day is both '\*/20' as a day of the month and '1L' as a day of the week"),
        ("0 0 */3 2 MON#5", "no day is both"),
        ("0 0 LW * */7", "no day is both 'LW'"),
    ],
)
def test_a_date_that_never_comes_is_refused_with_the_reason(never: str, reason: str) -> None:
    with pytest.raises(OptionError, match=f"never comes: {reason}"):
        Cron(never)


@pytest.mark.parametrize("possible", ["0 0 29 2 *", "0 0 31 1,2 *", "0 0 28-31 2 *", "0 0 30 2 1L", "0 0 29 2 */7"])
def test_a_rare_date_is_not_taken_for_an_impossible_one(possible: str) -> None:
    assert next_after(Cron(possible), ms("2026-01-01")) > ms("2026-01-01")


@given(st.text(st.sampled_from("0123456789*/-,#LWMONFRI @?x٣"), max_size=40) | st.text(max_size=30))
@example("0 0 L,LW * *")
@example("0 0 * * 5L/2")
@example("0 0 * * MON#1/2")
@example("0 0 1L * *")
@example("@")
def test_any_text_is_read_or_refused_but_never_breaks(text: str) -> None:
    try:
        when = Cron(text)
    except OptionError:
        return
    assert next_after(when, 0) > 0
    assert explain(when)


# Zones


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("Europe/Madird", "'Europe/Madrid'"),
        ("europe/madrid", "'Europe/Madrid'"),
        ("EUROPE/MADRID", "'Europe/Madrid'"),
        ("Madrid", "'Europe/Madrid'"),
        ("New York", "'America/New_York'"),
        ("America/NewYork", "'America/New_York'"),
        ("UTC ", "'UTC'"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_one_that_was_meant(wrong: str, meant: str) -> None:
    with pytest.raises(OptionError, match=rf"tz: no time zone has the name '{wrong}', did you mean {meant}\?"):
        Cron("@daily", wrong)


@pytest.mark.parametrize(
    "wrong",
    ["", "Europe", "Europe/", "../zoneinfo/UTC", "/etc/localtime", "+02:00", "\0", "\ud800", "x" * 5000, "zone.tab",
     None, 5, "localtime", "posixrules", "posix/UTC", "right/UTC"],
)  # fmt: skip
def test_a_zone_that_other_machines_may_lack_is_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="Give an IANA name such as 'Europe/Madrid'"):
        Cron("@daily", wrong)


def test_every_zone_has_a_next_midnight() -> None:
    for zone in sorted(available_timezones() - {"localtime"}):
        tick = next_after(Cron("@daily", zone), ms("2026-06-01"))
        assert local(tick, zone).hour in (0, 1), zone
        assert 0 < tick - ms("2026-06-01") <= 24 * 3_600_000, zone


# The hour that is missing and the hour that comes twice


def in_zone(day: str, times: str, before: str, after: str) -> list[str]:
    """`02:30b 03:00a` as `ticks` shows them: b with the offset before the change, a with the one after it."""
    return [f"{day[-2:]} {time[:5]} {before if time[5] == 'b' else after}" for time in times.split()]


@pytest.mark.parametrize(
    ("expression", "until", "times"),
    [
        # times in it fire once at the moment after
        *((f"{times} * * *", "03:10", "03:00a") for times in ("30 2", "0 2", "0,30 2", "*/15 2", "0 2,3", "59 30 2")),
        # times around it are untouched
        ("15 1-4 * * *", "12:00", "01:15b 03:00a 03:15a 04:15a"),
        ("30 1 * * *", "12:00", "01:30b"),
        ("0 3 * * *", "12:00", "03:00a"),
        # intervals go on without a break
        ("*/30 * * * *", "04:00", "00:30b 01:00b 01:30b 03:00a 03:30a 04:00a"),
        *((expression, "05:00", "00:15b 01:15b 03:15a 04:15a")
          for expression in ("15 * * * *", "15 0-23 * * *", "15 */1 * * *", "0 15 * * * *")),
        ("0 */2 * * *", "07:00", "03:00a 04:00a 06:00a"),
    ],
)  # fmt: skip
def test_ticks_of_a_day_without_its_third_hour(expression: str, until: str, times: str) -> None:
    for tz, day, before, after in (
        (MADRID, "2026-03-29", "+1", "+2"),
        (MADRID, "2027-03-28", "+1", "+2"),
        (NEW_YORK, "2026-03-08", "-5", "-4"),
        (NEW_YORK, "2027-03-14", "-5", "-4"),
    ):
        assert ticks(expression, tz, f"{day}T00:00", f"{day}T{until}") == in_zone(day, times, before, after), day


@pytest.mark.parametrize(
    ("expression", "begin", "until", "times"),
    [
        # times in it fire in the first pass only
        ("30 {h} * * *", "00", "12", "0{h}:30b"),
        ("0,30 {h} * * *", "00", "12", "0{h}:00b 0{h}:30b"),
        ("15,45 {h} * * *", "00", "12", "0{h}:15b 0{h}:45b"),
        ("0 30 {h} * * *", "00", "12", "0{h}:30b"),
        # times around it are untouched
        ("15 {last},{h},{next} * * *", "00", "12", "0{last}:15b 0{h}:15b 0{next}:15a"),
        # intervals go on without a break
        ("*/30 * * * *", "0{h}", "0{next}", "0{h}:30b 0{h}:00a 0{h}:30a 0{next}:00a"),
        ("*/30 {h}-6 * * *", "0{h}", "0{next}", "0{h}:30b 0{h}:00a 0{h}:30a 0{next}:00a"),
        *((expression, "0{h}", "0{next}", "0{h}:15b 0{h}:15a")
          for expression in ("15 * * * *", "15 0-23 * * *", "0 15 * * * *")),
    ],
)  # fmt: skip
def test_ticks_of_a_day_that_has_an_hour_twice(expression: str, begin: str, until: str, times: str) -> None:
    for tz, day, hour, before, after in (
        (MADRID, "2026-10-25", 2, "+2", "+1"),
        (MADRID, "2027-10-31", 2, "+2", "+1"),
        (NEW_YORK, "2026-11-01", 1, "-4", "-5"),
        (NEW_YORK, "2027-11-07", 1, "-4", "-5"),
    ):
        hours = {"last": hour - 1, "h": hour, "next": hour + 1}
        span = [f"{day}T{end.format(**hours)}:00" for end in (begin, until)]
        assert ticks(expression.format(**hours), tz, *span) == in_zone(day, times.format(**hours), before, after), day
        second_pass = ms(f"{day}T0{hour}:00", tz) + 3_600_000 + 60_000
        tomorrow = next_after(Cron(f"30 {hour} * * *", tz), second_pass)
        assert local(tomorrow, tz).date() == local(second_pass, tz).date() + timedelta(days=1)


@pytest.mark.parametrize("tz", [MADRID, NEW_YORK, LORD_HOWE, HAVANA, "Asia/Kathmandu", "Africa/Casablanca", "UTC"])
class TestAYear:
    """From the first midnight of 2026 to that of 2027."""

    def found(self, expression: str, tz: str, begin: str = "2026-01-01", end: str = "2027-01-01") -> list[int]:
        begin_ms, end_ms = ms(begin, tz), ms(end, tz)
        found = ticks_between(Cron(expression, tz), begin_ms - 1, end_ms - 1, 100_000)
        assert found.older == 0
        return found.times

    @pytest.mark.parametrize("expression", ["30 2 * * *", "30 1 * * *", "30 0 * * *", "0 0 * * *", "45 59 23 * * *"])
    def test_a_daily_schedule_fires_once_a_day(self, tz: str, expression: str) -> None:
        on = [local(tick, tz).date() for tick in self.found(expression, tz)]
        assert len(on) == len(set(on)) == 365

    def test_every_second_hour_fires_twelve_times_a_day(self, tz: str) -> None:
        found = Counter(local(tick, tz).date() for tick in self.found("0 */2 * * *", tz))
        assert len(found) == 365
        assert {*found.values()} == {12}

    def test_half_hours_and_hours_keep_their_interval_in_real_time(self, tz: str) -> None:
        for season in (("2026-02-10", "2026-04-10"), ("2026-10-01", "2026-11-10")):  # when clocks are changed
            found = self.found("*/30 * * * *", tz, *season)
            assert {later - earlier for earlier, later in pairwise(found)} == {30 * 60_000}
        if tz != LORD_HOWE:  # where the clock is changed by half an hour, full hours move
            assert {later - earlier for earlier, later in pairwise(self.found("5 * * * *", tz))} == {3_600_000}


@pytest.mark.parametrize(
    ("expression", "tz", "after", "until", "expected"),
    [
        # a midnight that is missing, and one that comes twice
        ("@daily", HAVANA, "2026-03-07T12:00", "2026-03-09T12:00", ["08 01:00 -4", "09 00:00 -4"]),
        ("@daily", HAVANA, "2026-10-31T12:00", "2026-11-02T12:00", ["01 00:00 -4", "02 00:00 -5"]),
        # a change by half an hour
        ("15 2 * * *", LORD_HOWE, "2026-10-04T00:00", "2026-10-04T12:00", ["04 02:30 +11"]),
        ("45 * * * *", LORD_HOWE, "2026-04-05T01:00", "2026-04-05T02:00", ["05 01:45 +11", "05 01:45 +10.5"]),
        # a day that is missing as a whole
        ("0 12 * * *", "Pacific/Apia", "2011-12-29T13:00", "2011-12-31T23:00", ["31 00:00 +14", "31 12:00 +14"]),
        # a change beyond those that zone files list one by one
        ("30 2 * * *", MADRID, "2199-03-31T00:00", "2199-04-01T03:00", ["31 03:00 +2", "01 02:30 +2"]),
    ],
)
def test_ticks_at_unusual_changes_of_the_clock(
    expression: str, tz: str, after: str, until: str, expected: list[str]
) -> None:
    assert ticks(expression, tz, after, until) == expected


# All of it, against a walk through every minute


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, set[int], set[int]]:
    """Five fields, with the minutes and the hours they name."""

    def field(size: int) -> tuple[str, set[int]]:
        low = draw(st.integers(0, size - 1))
        high = draw(st.integers(low, size - 1))
        step = draw(st.integers(1, size))
        chosen = draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=4))
        return draw(
            st.sampled_from(
                [
                    ("*", set(range(size))),
                    (f"*/{step}", set(range(0, size, step))),
                    (f"{low}-{high}", set(range(low, high + 1))),
                    (f"{low}/{step}", set(range(low, size, step))),
                    *([(f"{low}-{high}/{step}", set(range(low, high + 1, step)))] if low < high else []),
                    (",".join(map(str, chosen)), chosen),
                ]
            )
        )

    (minute, minutes), (hour, hours) = field(60), field(24)
    return f"{minute} {hour} * * *", minutes, hours


def by_the_minute(
    expression: str, minutes: set[int], hours: set[int], tz: str, after_ms: int, until_ms: int
) -> list[int]:
    goes_on = expression.startswith("*") or len(hours) == 24
    found = []
    for at_ms in range(after_ms // 60_000 * 60_000 + 60_000, until_ms + 1, 60_000):
        now, before = local(at_ms, tz), local(at_ms - 60_000, tz)
        is_named = now.hour in hours and now.minute in minutes
        if is_named and (goes_on or not now.fold):
            found.append(at_ms)
        elif len(hours) < 24:
            lost, passed = now.replace(tzinfo=None), before.replace(tzinfo=None) + timedelta(minutes=1)
            missing = [passed + timedelta(minutes=minute) for minute in range((lost - passed) // timedelta(minutes=1))]
            if any(one.hour in hours and one.minute in minutes for one in missing):
                found.append(at_ms)
    return found


CHANGES = [
    *((MADRID, "2026-03-29T01:00Z"), (MADRID, "2026-10-25T01:00Z"), (NEW_YORK, "2027-03-14T07:00Z")),
    *((NEW_YORK, "2027-11-07T06:00Z"), (LORD_HOWE, "2026-04-04T15:00Z"), (LORD_HOWE, "2026-10-03T15:30Z")),
    *((HAVANA, "2026-03-08T05:00Z"), (HAVANA, "2026-11-01T05:00Z"), ("UTC", "2028-02-29T00:00Z")),
]


@given(
    expressions(),
    st.sampled_from(CHANGES),
    st.integers(-150 * 60_000, 150 * 60_000),
    st.integers(0, 36 * 3_600_000),
    st.integers(0, 9),
)
def test_ticks_are_those_of_a_walk_through_every_minute(
    named: tuple[str, set[int], set[int]], change: tuple[str, str], shift_ms: int, length_ms: int, limit: int
) -> None:
    tz, moment = change
    after_ms = ms(moment) + shift_ms
    until_ms = after_ms + length_ms
    when = Cron(named[0], tz)
    expected = by_the_minute(*named, tz, after_ms, until_ms)
    stepped = []
    for tick in walk(when, after_ms):
        if tick > until_ms:
            break
        stepped.append(tick)
    assert stepped == expected
    assert ticks_between(when, after_ms, until_ms, 10_000) == (expected, 0)
    newest = ticks_between(when, after_ms, until_ms, limit)
    assert newest.times == expected[len(expected) - min(limit, len(expected)) :]
    assert newest.older == len(expected) - len(newest.times)


@given(
    expressions(),
    st.sampled_from(["* *", "1 *", "29 2", "L *", "LW 1-6", "*/7 *", "13,31 *"]),
    st.sampled_from(["*", "1-5", "5L", "MON#2", "0,7"]),
    st.sampled_from(["", "0 ", "*/7 ", "15,45 "]),
    st.sampled_from([*(tz for tz, _ in CHANGES), "Africa/Casablanca", "Asia/Kathmandu", "Pacific/Apia"]),
    st.integers(ms("2000-01-01"), ms("2200-01-01")),
)
def test_ticks_increase_and_can_be_found_from_either_side(
    named: tuple[str, set[int], set[int]], days_and_months: str, weekdays: str, second: str, tz: str, after_ms: int
) -> None:
    minute, hour, *_ = named[0].split()
    when = Cron(f"{second}{minute} {hour} {days_and_months} {weekdays}", tz)
    walked = walk(when, after_ms)
    found = [next(walked) for _ in range(5)]
    assert after_ms < found[0] and found == sorted(set(found))
    for tick in found:
        assert tick % 1000 == 0
        assert next_after(when, tick - 1) == next_after(when, tick - 1000) == tick
    assert ticks_between(when, after_ms, found[-1], 5) == (found, 0)
    assert ticks_between(when, after_ms, found[-1] - 1, 2) == (found[2:4], 2)
    assert ticks_between(when, found[-1], found[-1], 5) == ([], 0)


# Many ticks


@pytest.mark.parametrize("when", [Every(1), Cron("* * * * * *"), Cron("* * * * * *", MADRID)])
def test_ten_years_of_seconds_are_counted_and_not_walked_through(when: When) -> None:
    """315 million ticks: one by one they would take longer than a test may."""
    begin, end = ms("2026-03-01T00:00Z"), ms("2036-03-01T00:00Z")
    found = ticks_between(when, begin, end, 100)
    assert found.times == list(range(end - 99_000, end + 1, 1000))
    assert found.older == (end - begin) // 1000 - 100


def test_missing_times_are_counted_as_the_one_tick_they_are() -> None:
    begin, end = ms("2026-03-28T12:00", MADRID), ms("2026-03-30T12:00", MADRID)
    assert ticks_between(Cron("0-58 2 * * *", MADRID), begin, end, 0) == ([], 1 + 59)


def test_a_time_without_ticks_has_none() -> None:
    for when in (Every(10), Cron("*/10 * * * * *", MADRID)):
        for after, until in ((10_000, 19_999), (10_000, 10_000), (50_000, 10_000)):
            assert ticks_between(when, after, until, 5) == ([], 0)
        assert ticks_between(when, 9_999, 20_000, 5) == ([10_000, 20_000], 0)
        assert ticks_between(when, 9_999, 20_000, 1) == ([20_000], 1)


@pytest.mark.parametrize(
    ("when", "shortest"),
    [
        (Every(2.5), 2_500),
        (Cron("* * * * * *"), 1_000),
        (Cron("*/10 * * * *"), 600_000),
        (Cron("0,50 9,10 * * *"), 600_000),
        (Cron("30 2 * * *", MADRID), 86_400_000),
        (Cron("0 0 1 * *"), 28 * 86_400_000),
        (Cron("0 0 * 2 MON#5"), 4_382 * 86_400_000),
    ],
)
def test_the_shortest_interval_between_two_ticks(when: When, shortest: int) -> None:
    assert shortest_ms(when) == shortest


# Intervals


@pytest.mark.parametrize(
    ("every", "after", "expected"),
    [
        (1, 0, 1_000),
        (1, 999, 1_000),
        (10, 10_000, 20_000),
        (10, 19_999, 20_000),
        ("1.5s", 1_500, 3_000),
        (timedelta(minutes=5), 300_001, 600_000),
        ("366d", 0, 366 * 86_400_000),
    ],
)
def test_an_interval_counts_from_the_epoch(every: Any, after: int, expected: int) -> None:
    assert next_after(Every.of(every), after) == expected


@pytest.mark.parametrize("wrong", [0, 0.5, "999ms", -1, "367d", LONGEST + 1, "5", True, None, "*/5 * * * *"])
def test_an_impossible_interval_is_refused(wrong: Any) -> None:
    for make in (Every.of, Every):
        with pytest.raises(OptionError, match=r"^every: "):
            make(wrong)
    with pytest.raises(OptionError, match=r"from 1s to 366d is needed, found 0\.5\. .* use a loop in a job"):
        Every.of("500ms")


@given(st.integers(1_000, 366 * 86_400_000), st.integers(0, ms("2200-01-01")))
def test_ticks_of_an_interval_are_multiples_of_it(every_ms: int, after_ms: int) -> None:
    when = Every(every_ms / 1000)
    tick = next_after(when, after_ms)
    assert when.ms == every_ms
    assert tick % every_ms == 0 and after_ms < tick <= after_ms + every_ms
    assert next_after(when, tick - 1) == tick


# Words


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        (Cron("30 2 * * *", MADRID), "at 02:30 every day, Europe/Madrid time"),
        (Cron("30 2 * * *"), "at 02:30 every day, UTC"),
        (Cron("@yearly"), "at 00:00 on January 1, UTC"),
        (Cron("@monthly"), "at 00:00 on the first day of every month, UTC"),
        (Cron("@weekly"), "at 00:00 on Sunday, UTC"),
        (Cron("@daily"), "at 00:00 every day, UTC"),
        (Cron("@hourly"), "at the start of every hour, UTC"),
        (Cron("*/60 * * * *"), "at the start of every hour, UTC"),
        (Cron("0 */24 * * *"), "at 00:00 every day, UTC"),
        (Cron("* * * * *"), "every minute, UTC"),
        (Cron("* * * * * *"), "every second, UTC"),
        (Cron("*/30 * * * *"), "every 30 minutes, UTC"),
        (Cron("*/010 * * * * *"), "every 10 seconds, UTC"),
        (Cron("0 */2 * * *"), "every 2 hours, UTC"),
        (Cron("0 0 */2 * * *"), "every 2 hours, UTC"),
        (Cron("*/7 * * * *"), "every seventh minute of every hour, UTC"),
        (Cron("*/5 * * * mon"), "every fifth minute of every hour on Monday, UTC"),
        (Cron("30 0 2 * * *"), "at 02:00:30 every day, UTC"),
        (Cron("0 9 * * 1-5", NEW_YORK), "at 09:00 on Monday through Friday, America/New_York time"),
        (Cron("0 0 1,22,23 * *"), "at 00:00 on the first, the 22nd, and the 23rd day of month, UTC"),
        (Cron("0 0 31 * *"), "at 00:00 on the 31st day of every month, UTC"),
        (Cron("0 0 11 * *"), "at 00:00 on the 11th day of every month, UTC"),
        (Cron("0 0 L * *"), "at 00:00 on the last day of every month, UTC"),
        (Cron("0 0 * * 5L"), "at 00:00 on the last Friday of the month, UTC"),
        (Cron("0 0 * * MON#2"), "at 00:00 on the second Monday of the month, UTC"),
        (Every(1), "every second"),
        (Every(10), "every 10 seconds"),
        (Every(1.5), "every 1.5 seconds"),
        (Every(60), "every minute"),
        (Every(90), "every 90 seconds"),
        (Every(5400), "every 90 minutes"),
        (Every(3600), "every hour"),
        (Every(7 * 86_400), "every 7 days"),
        (Every(1_000_000.001), "every 1000000.001 seconds"),
    ],
)
def test_a_schedule_is_explained_in_plain_words(when: When, expected: str) -> None:
    assert explain(when) == expected


# As a value


@pytest.mark.parametrize("when", [Cron("30 2 * * *", MADRID), Cron("@daily"), Every(10), Every(1.5)])
def test_a_schedule_is_written_and_read_back(when: When) -> None:
    assert msgspec.json.decode(msgspec.json.encode(when), type=When) == when
    assert hash(when) == hash(msgspec.structs.replace(when))


def test_a_stored_schedule_is_checked_when_it_is_read() -> None:
    assert msgspec.json.encode(Every(10)) == b'{"kind":"every","seconds":10.0}'
    assert msgspec.json.encode(Cron("@daily")) == b'{"kind":"cron","expression":"@daily","tz":"UTC"}'
    with pytest.raises(OptionError, match="there is no day 31 in April"):
        msgspec.json.decode(b'{"kind":"cron","expression":"0 0 31 4 *"}', type=Cron)
    with pytest.raises(OptionError, match="every"):
        msgspec.json.decode(b'{"kind":"every","seconds":0}', type=Every)


def test_all_aliases_are_expressions() -> None:
    for alias, fields in ALIASES.items():
        assert fields_of(Cron(alias).expression) == fields == Cron(fields).expression


def test_no_tick_is_computed_from_the_clock_of_this_machine() -> None:
    """Every machine finds the same ticks at any time."""
    when = Cron("30 2 * * *", MADRID)
    assert next_after(when, 0) == ms("1970-01-01T02:30", MADRID)
    assert next_after(when, ms("2150-07-01")) == ms("2150-07-01T00:30+00:00")
