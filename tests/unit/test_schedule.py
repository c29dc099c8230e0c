"""Schedules: their records, and what is due of them."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from relevo.engine.job import write
from relevo.errors import OptionError
from relevo.schedules.cron import Cron, Every, next_after, ticks_between
from relevo.schedules.schedule import (
    GRACE_MS,
    MISSED_LIMIT_MAX,
    STEP_BACK_MS,
    Firing,
    Schedule,
    due,
    read_schedule,
    schedule_of,
    shifted,
)

HOUR = 3_600_000
#: A full hour and midnight, UTC.
NOON = 1_767_268_800_000
DAY = 24 * HOUR


def made(**options: Any) -> Schedule:
    options = {"name": "nightly", "target": "shop.report", **options}
    if not {"cron", "every"} & options.keys():
        options["every"] = "1h"
    return schedule_of(**options)


# Records


def test_a_schedule_is_written_and_read_back_also_by_an_older_version() -> None:
    times: dict[str, Any] = {"cron": "30 2 * * *", "tz": "Europe/Madrid", "jitter": "5m"}
    jobs: dict[str, Any] = {"priority": 50, "tenant": "acme", "weight": 2.0, "expires": 60.0, "failure_ttl": 3600.0}
    runs: dict[str, Any] = {"overlap": "queue", "missed": "all", "missed_limit": 7, "origin": "code", "paused": True}
    body = Raw(b'{"t":"shop.report","a":[7],"k":{"cents":990},"r":5}')
    schedule = made(queue="reports", body=body, **times, **jobs, **runs)
    text = write(schedule)
    assert read_schedule(text) == schedule
    assert write(read_schedule(text)) == text
    assert read_schedule(msgspec.json.encode({**msgspec.json.decode(text), "colour": "red"})) == schedule


def test_all_fields_are_written_so_that_other_defaults_change_nothing() -> None:
    written = msgspec.json.decode(write(made(every="10s")))
    assert written == {
        "name": "nightly",
        "target": "shop.report",
        "when": {"kind": "every", "seconds": 10.0},
        "queue": "default",
        "body": {},
        "priority": 100,
        "group": "",  # the stored name of the tenant
        "weight": 1.0,
        "expires": None,
        "failure_ttl": 604_800.0,
        "overlap": "skip",
        "missed": "once",
        "missed_limit": 100,
        "jitter": 0.0,
        "origin": "call",
        "paused": False,
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("overlap", "some"), ("missed", "twice"), ("origin", "nobody"), ("missed_limit", 0), ("missed_limit", 1001)),
        *(("priority", -1), ("priority", 1024), ("weight", 0), ("weight", 65), ("jitter", -1), ("name", "a b")),
        *(("when", {"kind": "cron", "expression": "0 0 30 2 *"}), ("when", {"kind": "moon"}), ("when", None)),
    ],
)
def test_a_broken_record_is_refused(field: str, value: Any) -> None:
    broken = {**msgspec.json.decode(write(made())), field: value}
    with pytest.raises((OptionError, msgspec.ValidationError)):
        read_schedule(msgspec.json.encode(broken))


# What people write


@pytest.mark.parametrize("name", ["nightly", "shop.tasks.report", "x" * 200, "bericht-für-tür", "a/b@c+1", "_"])
def test_a_name_is_printable_text(name: str) -> None:
    assert made(name=name).name == name


@pytest.mark.parametrize("name", ["", "x" * 201, "a b", "a:b", "a\n", "a\u00a0b", "-a", "\ud800", None, 7])
def test_a_name_with_spaces_or_colons_is_refused(name: Any) -> None:
    with pytest.raises(OptionError, match=r"name: printable text of 1 to 200 characters .* without spaces and colons"):
        made(name=name)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cron": "30 2 * * *"}, Cron("30 2 * * *", "UTC")),
        ({"cron": "@daily", "tz": "Europe/Madrid"}, Cron("@daily", "Europe/Madrid")),
        ({"cron": "@daily", "tz": ZoneInfo("Europe/Madrid")}, Cron("@daily", "Europe/Madrid")),
        ({"cron": "@daily", "tz": UTC}, Cron("@daily", "UTC")),
        ({"every": "10s"}, Every(10)),
        ({"every": timedelta(minutes=5)}, Every(300)),
        ({"every": 90}, Every(90)),
        ({"cron": None, "every": 90}, Every(90)),
    ],
)
def test_a_schedule_fires_by_cron_or_by_an_interval(options: dict[str, Any], expected: Any) -> None:
    assert made(**options).when == expected


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ({"target": ""}, "target: the name of a task is needed"),
        ({"cron": "@daily", "every": "1d"}, "cron and every are two schedules: give one .* '@daily' and '1d'"),
        ({"cron": None, "every": None}, "needs cron= such as .*, or every= .*; found neither"),
        ({"every": "10s", "tz": "Europe/Madrid"}, "tz: a fixed distance has no time zone, found 'Europe/Madrid'"),
        ({"cron": ""}, "cron: text"),
        ({"cron": "@daily", "tz": "Europe/Madird"}, "did you mean 'Europe/Madrid'"),
        ({"cron": "@daily", "tz": timezone(timedelta(hours=2))}, "tz: no time zone has the name 'UTC.02:00'"),
        ({"every": "500ms"}, "every: from 1s"),
        ({"overlap": "skp"}, "overlap: one of skip, queue, allow is needed, found 'skp', did you mean 'skip'"),
        ({"missed": "onec"}, "missed: one of skip, once, all is needed, found 'onec', did you mean 'once'"),
        ({"origin": "setting"}, "did you mean 'settings'"),
        ({"missed_limit": 0}, "missed_limit: a whole number from 1 to 1000 is needed, found 0"),
        ({"missed_limit": True}, "missed_limit: a whole number"),
        ({"priority": 1024}, "priority: a whole number from 0 to 1023"),
        ({"weight": 0}, "weight: a number from 0.01 to 64"),
        ({"overlapp": "skip"}, "unknown option 'overlapp' of a schedule, did you mean 'overlap'"),
        ({"when": Every(1)}, "unknown option 'when'"),
        ({"jitter": -1}, "jitter"),
        # a jitter as long as the shortest interval
        *(
            ({**when, "jitter": jitter}, f"jitter: less than the {jitter} between two runs is needed")
            for when, jitter in (
                ({"every": "10s"}, "10s"),
                ({"cron": "*/5 * * * *"}, "5m"),
                ({"cron": "0,50 9,10 * * *"}, "10m"),
                ({"cron": "30 2 * * *"}, "1d"),
            )
        ),
    ],
)
def test_an_ambiguous_schedule_is_refused(options: dict[str, Any], refusal: str) -> None:
    with pytest.raises(OptionError, match=refusal):
        made(**options)


# Jitter


def test_a_start_is_shifted_by_less_than_the_jitter_and_the_same_for_all() -> None:
    assert made(every="10s", jitter="9999ms").jitter == 9.999
    assert shifted(NOON, made(jitter=0)) == NOON
    schedule = made(jitter="10m")
    ticks = [NOON + hour * HOUR for hour in range(500)]
    shifts = [shifted(tick, schedule) - tick for tick in ticks]
    assert all(0 <= shift < 600_000 for shift in shifts)
    assert len(set(shifts)) > 490 and min(shifts) < 30_000 and max(shifts) > 570_000
    assert shifts == [shifted(tick, read_schedule(write(schedule))) - tick for tick in ticks]
    assert shifted(NOON, schedule) == NOON + 487_998  # a constant: other processes and versions must find it, too
    assert len({shifted(NOON, made(name=f"tenant-{number}", jitter="10m")) for number in range(100)}) > 95


# What is due: every hour, and it is NOON or later


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
@pytest.mark.parametrize("late_ms", [0, 1, GRACE_MS])
def test_a_tick_in_time_is_fired_whatever_the_policy(missed: str, late_ms: int) -> None:
    assert due(made(missed=missed), NOON, NOON + late_ms) == Firing((NOON,), NOON + HOUR)


@pytest.mark.parametrize(
    ("options", "hours", "late_ms", "fired"),
    [
        # one tick, after the grace
        ({"missed": "skip"}, 0, GRACE_MS + 1, []),
        ({"missed": "once"}, 0, GRACE_MS + 1, [0]),
        ({"missed": "all"}, 0, GRACE_MS + 1, [0]),
        # an outage of hours
        ({"missed": "skip"}, 4, HOUR // 2, []),
        ({"missed": "once"}, 4, HOUR // 2, [4]),
        ({"missed": "all"}, 4, HOUR // 2, [0, 1, 2, 3, 4]),
        # one that ends with a tick in time, which needs no run beside it
        ({"missed": "skip"}, 4, 5_000, [4]),
        ({"missed": "once"}, 4, 5_000, [4]),
        ({"missed": "all"}, 4, 5_000, [0, 1, 2, 3, 4]),
        # a limit drops the oldest
        ({"missed": "all", "missed_limit": 1}, 4, HOUR // 2, [4]),
        ({"missed": "all", "missed_limit": 3}, 4, HOUR // 2, [2, 3, 4]),
        ({"missed": "all", "missed_limit": 5}, 4, HOUR // 2, [0, 1, 2, 3, 4]),
    ],
)
def test_after_an_outage_the_policy_decides(
    options: dict[str, Any], hours: int, late_ms: int, fired: list[int]
) -> None:
    firing = due(made(**options), NOON, NOON + hours * HOUR + late_ms)
    ticks = tuple(NOON + hour * HOUR for hour in fired)
    assert firing == Firing(ticks, NOON + (hours + 1) * HOUR, hours + 1 - len(fired))


def test_ticks_in_time_are_all_fired_and_not_under_the_limit_of_those_missed() -> None:
    firing = due(made(every=1, missed="all", missed_limit=2), NOON, NOON + 60_000)
    assert firing.ticks == tuple(range(NOON + 43_000, NOON + 60_001, 1000))
    assert firing.dropped == 61 - 18
    shorter_than_the_grace = due(made(every=1, missed="skip"), NOON, NOON + 9_999)
    assert shorter_than_the_grace == Firing(tuple(range(NOON, NOON + 9_001, 1000)), NOON + 10_000)


@pytest.mark.parametrize("options", [{"every": 1}, {"cron": "* * * * * *", "tz": "Europe/Madrid"}])
@pytest.mark.parametrize(("missed", "most"), [("skip", 16), ("once", 16), ("all", 116)])
def test_a_month_of_seconds_is_decided_at_once(options: dict[str, Any], missed: str, most: int) -> None:
    firing = due(made(**options, missed=missed), NOON, NOON + 30 * DAY)
    assert len(firing.ticks) == most
    assert len(firing.ticks) + firing.dropped == 30 * 86_400 + 1
    assert firing.ticks[-1] == NOON + 30 * DAY and firing.next_ms == NOON + 30 * DAY + 1000


def test_a_long_grace_has_its_limit_too_and_without_one_only_the_very_moment_is_in_time() -> None:
    firing = due(made(every=1), NOON, NOON + HOUR, grace_ms=2 * HOUR)
    assert len(firing.ticks) == MISSED_LIMIT_MAX
    assert firing.dropped == 3601 - MISSED_LIMIT_MAX
    assert due(made(missed="skip"), NOON, NOON, grace_ms=0).ticks == (NOON,)
    assert due(made(missed="skip"), NOON, NOON + 1, grace_ms=0).ticks == ()


# Clocks and changes


@pytest.mark.parametrize("back_ms", [1, 60_000, STEP_BACK_MS])
def test_a_clock_that_stepped_back_a_little_brings_no_tick_again(back_ms: int) -> None:
    """NOON was fired, the next is waited for, and then it is before NOON again."""
    assert due(made(), NOON + HOUR, NOON - back_ms) == Firing((), NOON + HOUR)
    assert due(made(cron="0 12 * * *"), NOON + DAY, NOON - back_ms) == Firing((), NOON + DAY)
    assert due(made(every=1), NOON + 1000, NOON - back_ms) == Firing((), NOON + 1000)


@pytest.mark.parametrize("ahead_ms", [STEP_BACK_MS + 1, DAY, 365 * DAY, 10**15, 10**18])
def test_a_clock_that_was_far_ahead_is_not_waited_for(ahead_ms: int) -> None:
    """While it was ahead, a tick was fired and the one after it chosen."""
    for schedule in (made(), made(every=1), made(cron="0 12 * * *")):
        last = (NOON + ahead_ms) // DAY * DAY + 12 * HOUR  # a tick of all of them
        waited_for = next_after(schedule.when, last) if ahead_ms < 10**15 else last
        assert due(schedule, waited_for, NOON + 1) == Firing((), next_after(schedule.when, NOON + 1))


@pytest.mark.parametrize(
    ("due_ms", "now_ms", "options", "expected"),
    [
        # before its time nothing is fired and the tick is kept
        (NOON, NOON - 1, {}, Firing((), NOON)),
        (NOON, NOON - HOUR, {}, Firing((), NOON)),
        # the expression was changed: a time that is no tick of it is not waited for
        (NOON + 5, NOON - 1, {}, Firing((), NOON)),
        (NOON - 5, NOON - 10, {}, Firing((), NOON)),
        (NOON + 12 * HOUR, NOON + 1, {"cron": "0 * * * *"}, Firing((), NOON + HOUR)),
        # ticks that passed are those of the schedule as it is now
        (NOON - 5, NOON + HOUR // 2, {"missed": "all"}, Firing((NOON,), NOON + HOUR)),
        (NOON + 5, NOON + HOUR // 2, {"missed": "all"}, Firing((), NOON + HOUR)),
        # a new schedule fires first at its next tick
        (0, NOON, {"missed": "all"}, Firing((), NOON + HOUR)),
        (-1, NOON, {"missed": "all"}, Firing((), NOON + HOUR)),
        # while paused nothing is fired or missed
        (NOON, NOON + 5 * HOUR + 1, {"missed": "all", "paused": True}, Firing((), NOON + 6 * HOUR)),
        (NOON, NOON - 1, {"missed": "all", "paused": True}, Firing((), NOON)),
    ],
)
def test_only_ticks_of_the_schedule_as_it_is_now_are_fired(
    due_ms: int, now_ms: int, options: dict[str, Any], expected: Firing
) -> None:
    assert due(made(**options), due_ms, now_ms) == expected


@given(
    st.sampled_from([{"every": "20s"}, {"every": "7m"}, {"cron": "*/7 * * * *"}, {"cron": "30 2 * * *"}]),
    st.sampled_from(["skip", "once", "all"]),
    st.lists(st.integers(-STEP_BACK_MS // 4, 3 * HOUR) | st.integers(0, 20_000), min_size=1, max_size=30),
)
def test_no_tick_is_fired_twice_and_each_is_fired_or_dropped(
    when: dict[str, Any], missed: str, steps_ms: list[int]
) -> None:
    """A worker looks now and then, and its clock goes on, and back a little now and then."""
    schedule = made(**when, missed=missed, missed_limit=1000)
    now_ms = newest_ms = NOON + 1
    waited_for = due(schedule, 0, now_ms).next_ms
    fired: list[int] = []
    dropped = 0
    for step_ms in steps_ms:
        # Steps back add up to no more than what is waited for.
        now_ms = max(now_ms + step_ms, newest_ms - STEP_BACK_MS)
        newest_ms = max(newest_ms, now_ms)
        firing = due(schedule, waited_for, now_ms)
        waited_for = firing.next_ms
        fired += firing.ticks
        dropped += firing.dropped
    assert fired == sorted(set(fired))
    all_of_them = ticks_between(schedule.when, NOON + 1, newest_ms, 100_000).times
    assert len(fired) + dropped == len(all_of_them)
    assert set(fired) <= set(all_of_them)
    assert dropped == 0 or missed != "all"
    assert waited_for == next_after(schedule.when, newest_ms)
