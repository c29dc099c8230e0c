"""Ages, shares and rates as pure functions of what was looked at."""

from __future__ import annotations

import pytest

from relevo.health import vitals
from relevo.health.vitals import Entry, Rates, Sample, StateVitals, TaskLoad

NOW = 1_800_000_000_000
MINUTE = 60_000


def entry(ago_ms: int, *, task: str = "t", **more: int) -> Entry:
    return Entry(made_ms=NOW - ago_ms, task=task, is_late=bool(more), **more)


def test_ages_of_a_whole_state_are_exact_and_those_of_a_sample_an_estimate() -> None:
    assert vitals.aged(3, [10, 20, 60], stuck_ms=20) == StateVitals(3, 60, 30, 2, exact=True)
    assert vitals.aged(1000, [0] * 90 + [100] * 10, stuck_ms=100) == StateVitals(1000, 100, 10, 100, exact=False)
    assert vitals.aged(1000, [0] * 100, stuck_ms=100, oldest_ms=500).stuck == 1, "although its share is zero"
    assert [vitals.aged(1, [age], stuck_ms=100).stuck for age in (99, 100, 101)] == [0, 1, 1]


def test_a_clock_that_runs_ahead_makes_no_age_negative() -> None:
    assert vitals.ready(1, [entry(-5_000)], [], NOW, 100).oldest_age_ms == 0


def test_what_was_handed_out_before_is_as_old_as_that_at_the_most() -> None:
    found = vitals.ready(1, [entry(10 * MINUTE, begun_ms=NOW - MINUTE)], [], NOW, 100)
    assert found.oldest_age_ms == MINUTE


def test_only_what_is_known_counts_where_something_is() -> None:
    sample = [entry(60 * MINUTE, begun_ms=NOW - 50 * MINUTE), entry(2 * MINUTE), entry(4 * MINUTE)]
    assert vitals.ready(3, sample, [], NOW, 10 * MINUTE) == StateVitals(3, 4 * MINUTE, 3 * MINUTE, 0, exact=False)


def test_shares_of_tasks_are_exact_for_a_whole_state_and_scaled_from_a_sample() -> None:
    running = [entry(1, task="a"), entry(1, task="b"), entry(1, task="a")]
    assert vitals.loads((3, running), (1, [entry(1, task="b")])) == (TaskLoad("a", 2, 0), TaskLoad("b", 1, 1))
    sample = [entry(1, task="a")] * 75 + [entry(1, task="b")] * 25
    scaled = TaskLoad("a", 0, 750, exact=False), TaskLoad("b", 0, 250, exact=False)
    assert vitals.loads((0, []), (1000, sample)) == scaled


def samples(*rows: tuple[int, int, int]) -> list[Sample]:
    """(minutes ago, enqueued, done)"""
    return [Sample(NOW - ago * MINUTE, {"enqueued": came, "done": went}) for ago, came, went in rows]


def test_a_rate_is_measured_against_the_newest_sample_that_is_old_enough() -> None:
    earlier = samples((20, 0, 0), (16, 10, 4), (6, 60, 30), (2, 100, 70), (1, 130, 90))
    found = vitals.rates(earlier, Sample(NOW, {"enqueued": 160, "done": 100}))
    assert found == {
        "1m": Rates(span_s=60.0, enqueued=30.0, done=10.0),
        "5m": Rates(span_s=360.0, enqueued=16.667, done=11.667),
        "15m": Rates(span_s=960.0, enqueued=9.375, done=6.0),
    }


def test_without_an_old_sample_the_oldest_one_is_used() -> None:
    found = vitals.rates(samples((2, 0, 0)), Sample(NOW, {"enqueued": 10, "done": 10}))
    assert {one.span_s for one in found.values() if one} == {120.0}


def test_a_moment_says_nothing_about_a_rate() -> None:
    assert vitals.rates([Sample(NOW - 4_999, {})], Sample(NOW, {"done": 5}))["1m"] is None
    assert vitals.rates([Sample(NOW - 5_000, {})], Sample(NOW, {"done": 5}))["1m"] == Rates(span_s=5.0, done=60.0)
    assert vitals.rates([], Sample(NOW, {"done": 5}))["1m"] is None


def test_counters_that_were_reset_give_no_negative_rate() -> None:
    found = vitals.rates(samples((1, 1000, 900)), Sample(NOW, {"enqueued": 6, "done": 3}))["1m"]
    assert found == Rates(span_s=60.0, enqueued=6.0, done=3.0)


def test_failures_are_what_is_retried_and_what_dies() -> None:
    found = vitals.rates([Sample(NOW - MINUTE, {})], Sample(NOW, {"retry": 3, "dead": 2, "revived": 4}))["1m"]
    assert found == Rates(span_s=60.0, enqueued=4.0, retried=3.0, dead=2.0, failed=5.0)


@pytest.mark.parametrize(
    ("backlog", "rates", "seconds"),
    [
        (0, None, 0.0),
        (100, None, None),
        (100, Rates(span_s=60.0, enqueued=10.0, done=20.0), 600.0),
        (100, Rates(span_s=60.0, enqueued=10.0, done=10.0), None),
        (100, Rates(span_s=60.0, enqueued=20.0, done=10.0), None),
        (100, Rates(span_s=60.0, done=10.0, dead=90.0), 60.0),
    ],
)
def test_the_time_until_a_backlog_is_worked_off(backlog: int, rates: Rates | None, seconds: float | None) -> None:
    assert vitals.clears_in(backlog, rates) == seconds


def test_a_burst_that_is_over_does_not_last_for_ever() -> None:
    """More came than went in five minutes; in the last one it was the other way round."""
    burst, now = Rates(span_s=300.0, enqueued=600.0, done=200.0), Rates(span_s=60.0, enqueued=0.0, done=300.0)
    assert vitals.clears_in(600, burst, now) == 120.0
    assert vitals.clears_in(600, now, burst) == 120.0
    assert vitals.clears_in(600, burst, None) is vitals.clears_in(600, burst, burst) is None
