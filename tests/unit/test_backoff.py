"""Waiting times between attempts: exact series, bounds with jitter, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.engine.backoff import CAP, Backoff
from relevo.errors import OptionError


def series(backoff: Backoff, many: int = 6) -> list[float]:
    return [backoff.delay(retry, 0.5) for retry in range(1, many + 1)]


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(), [2, 4, 8, 16, 32, 64]),
        (Backoff.exponential("1s"), [1, 2, 4, 8, 16, 32]),
        (Backoff.exponential("10s", cap="1m"), [10, 20, 40, 60, 60, 60]),
        (Backoff.exponential(2000 * 60, cap="1d"), [86_400] * 6),
        (Backoff.linear("5s"), [5, 10, 15, 20, 25, 30]),
        (Backoff.linear(5, cap=12), [5, 10, 12, 12, 12, 12]),
        (Backoff.fixed(timedelta(seconds=3)), [3] * 6),
        (Backoff.of("7s"), [7] * 6),
        (Backoff.of(0), [0] * 6),
        (Backoff.of(["1s", 10, "1m"]), [1, 10, 60, 60, 60, 60]),
        (Backoff.of((0.5,)), [0.5] * 6),
        (Backoff.of(Backoff.fixed(1)), [1] * 6),
    ],
)
def test_the_series_is_exact_in_the_middle_of_the_jitter(backoff: Backoff, delays: list[float]) -> None:
    assert series(backoff) == delays


@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_without_jitter_chance_changes_nothing(chance: float) -> None:
    backoff = Backoff.exponential("2s", jitter=0)
    assert [backoff.delay(retry, chance) for retry in range(1, 13)] == [2.0**n for n in range(1, 12)] + [CAP]
    assert CAP == 3600


@given(retry=st.integers(1, 10_000), chance=st.floats(0, 1), jitter=st.floats(0, 1))
def test_jitter_stays_in_its_bounds(retry: int, chance: float, jitter: float) -> None:
    """Min(cap, base * 2^k) plus or minus the share, never below zero, however late the retry."""
    plain = min(CAP, 2.0 * 2.0 ** min(retry - 1, 60))
    delay = Backoff.exponential("2s", jitter=jitter).delay(retry, chance)
    assert plain * (1 - jitter) - 1e-9 <= delay <= plain * (1 + jitter) + 1e-9
    assert delay >= 0


def test_jitter_spreads_over_its_whole_share() -> None:
    backoff = Backoff.fixed("10s", jitter=0.2)
    assert [backoff.delay(1, chance) for chance in (0.0, 0.5, 1.0)] == pytest.approx([8, 10, 12])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "empty list"),
        ("10", "no unit"),
        ("soon", "not a duration"),
        (-1, "zero or more"),
        (["1s", "later"], "not a duration"),
        (None, "not a duration"),
        (True, "not a duration"),
        (b"1s", "not a Backoff"),
        ({"base": 1}, "not a duration"),
        (float("nan"), "zero or more"),
        (float("inf"), "100 years"),
    ],
)
def test_nonsense_is_refused_by_name(wrong: Any, says: str) -> None:
    with pytest.raises(OptionError, match=rf"backoff.*{says}"):
        Backoff.of(wrong)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_a_jitter_that_is_no_share_and_a_cap_that_is_no_duration_are_refused(jitter: float) -> None:
    for make in (Backoff.fixed, Backoff.linear, Backoff.exponential):
        with pytest.raises(OptionError, match="jitter is a share"):
            make("1s", jitter=jitter)
    with pytest.raises(OptionError, match="backoff cap"):
        Backoff.exponential("1s", cap="high")


@pytest.mark.parametrize("backoff", [Backoff(), Backoff.linear(5, cap=12, jitter=0), Backoff.of(["1s", "2s"])])
def test_a_backoff_travels_with_its_job(backoff: Backoff) -> None:
    assert msgspec.json.decode(msgspec.json.encode(backoff), type=Backoff) == backoff
