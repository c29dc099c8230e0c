"""Steps of the server's clock, as one worker sees them."""

from __future__ import annotations

import pytest

from relevo.worker.server_clock import ServerClock

DAY = 86_400_000


def heard(clock: ServerClock, at: float, server_ms: float, *, took: float = 0.001) -> int:
    """A reply that came at `at` to a call that took so long."""
    return clock.note(at - took, at, round(server_ms))


def watched() -> ServerClock:
    """A clock that was read at 100 s of ours, when it said one day."""
    clock = ServerClock()
    assert heard(clock, 100.0, DAY) == 0
    return clock


def test_clock_that_runs_with_ours() -> None:
    clock = watched()
    assert [heard(clock, 100.0 + n, DAY + n * 1000) for n in range(1, 50)] == [0] * 49


@pytest.mark.parametrize("step", [60_000, -60_000, 3_600_000, -3_600_000, 5000, -5000])
def test_a_step_is_seen_once(step: int) -> None:
    clock = watched()
    assert heard(clock, 110.0, DAY + 10_000 + step) == pytest.approx(step, abs=5)
    assert heard(clock, 120.0, DAY + 20_000 + step) == 0


@pytest.mark.parametrize("took", [0.0, 5.0, 59.0])
@pytest.mark.parametrize("answered_after", [0.0, 0.5, 1.0])
def test_no_delay_is_a_step(took: float, answered_after: float) -> None:
    clock = watched()
    answered = 101.0 + took * answered_after
    assert heard(clock, 101.0 + took, DAY + (answered - 100) * 1000, took=took) == 0
    assert heard(clock, 102.0 + took, DAY + (2 + took) * 1000) == 0


def test_a_slow_clock_is_no_step() -> None:
    clock = watched()
    assert [heard(clock, 100.0 + n, DAY + n * 999) for n in range(1, 2000)] == [0] * 1999


def test_overlapping_calls_tell_nothing() -> None:
    clock = watched()
    assert heard(clock, 110.0, DAY + 70_000) > 59_000
    assert clock.note(101.0, 111.0, DAY + 1000) == 0, "it was answered before the step"


def test_who_was_silent_for_long_reports_nothing() -> None:
    clock = watched()
    assert heard(clock, 200.0, DAY + 100_000 - 3_600_000) == 0
    assert heard(clock, 201.0, DAY + 101_000 - 3_600_000) == 0


def test_a_step_back_that_only_undoes_a_step_forward_moves_nothing() -> None:
    clock = watched()
    assert heard(clock, 101.0, DAY + 61_000) > 0
    back = heard(clock, 102.0, DAY + 2000)
    assert clock.missing(back) < 10
    further = heard(clock, 103.0, DAY + 3000 - 60_000)
    assert clock.missing(further) == pytest.approx(60_000, abs=10)
