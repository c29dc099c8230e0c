"""Durations as people write them."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo.errors import OptionError
from relevo.text.durations import milliseconds, seconds, spoken

CENTURY = 100 * 365.25 * 86_400


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        *((0, 0.0), (90, 90.0), (0.25, 0.25), (timedelta(minutes=5), 300.0), ("0s", 0.0), ("90s", 90.0), ("5m", 300.0)),
        *(("1.5h", 5400.0), ("7d", 604_800.0), ("168h", 604_800.0), ("2w", 1_209_600.0), ("250ms", 0.25)),
        *(("1h30m", 5400.0), (" 1h 30m ", 5400.0), ("1m500ms", 60.5), ("1w2d3h4m5s6ms", 788_645.006)),
    ],
)
def test_a_duration_is_read_as_it_is_written(written: Any, expected: float) -> None:
    read = seconds(written)
    assert read == pytest.approx(expected)
    assert isinstance(read, float)


@pytest.mark.parametrize("text", ["90", "1.5", " 24 "])
def test_a_number_in_text_without_unit_is_refused_and_the_unit_shown(text: str) -> None:
    """Hours and seconds cannot be mixed up silently."""
    with pytest.raises(OptionError, match=rf'ttl: .* has no unit\. Write "{text.strip()}s"'):
        seconds(text, what="ttl")


@pytest.mark.parametrize(
    "wrong",
    [
        *(-1, -0.5, timedelta(seconds=-1), math.nan, math.inf, -math.inf, True, False, None, Decimal(3), b"5m"),
        *("", "  ", "-5m", "5", "5 m", "m", "5M", "5min", "1h30", "30m1h", "5m5m", "1e3s", "nan", "inf", ".5s"),
        *("1.s", "٣s", "5m\n,", "5x", "9" * 400 + "s"),
        *(10**400, pytest.param(10**5000, id="huge"), pytest.param(-(10**5000), id="low")),
        *(CENTURY * 1.01, timedelta.max, 1_700_000_000_000),
    ],
)
def test_an_ambiguous_duration_is_refused_with_its_name_and_an_example(wrong: Any) -> None:
    with pytest.raises(OptionError) as refusal:
        seconds(wrong, what="lease")
    message = str(refusal.value)
    assert message.startswith("lease: ")
    assert "5m" in message or "Write" in message
    assert len(message) < 300


def test_the_refusal_shows_what_was_found() -> None:
    with pytest.raises(OptionError, match=r"grace: .* found -3\."):
        seconds(-3, what="grace")
    with pytest.raises(OptionError, match="duration: not a duration: '5 minutes'"):
        seconds("5 minutes")


def test_milliseconds_are_rounded_to_whole_ones() -> None:
    assert milliseconds(0.0015) == 2
    assert milliseconds("1.5s") == 1500
    assert milliseconds(0.0001) == 0
    assert milliseconds(0.1 + 0.2) == 300
    with pytest.raises(OptionError, match="delay"):
        milliseconds(-1, what="delay")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0s"), (252, "4m12s"), (0.25, "250ms"), (604_800, "7d"), (5400, "1h30m"), (1.5, "1.5s")),
        *((90_061, "1d1h1m1s"), (59.9996, "1m"), (0.9999999, "1s"), (3599.7, "1h"), (0.0005, "0.5ms"), (-3, "-3s")),
    ],
)
def test_a_duration_is_spoken_shortly(value: float, text: str) -> None:
    assert spoken(value) == text


@given(st.floats(min_value=0, max_value=CENTURY * 0.99))
@example(0.9999995)
@example(59.9995)
@example(86_399.5)
def test_what_is_spoken_can_be_read_again(value: float) -> None:
    tolerance = 0.000_000_6 if value < 1 else 0.000_6 if value < 60 else 0.5
    assert seconds(spoken(value)) == pytest.approx(value, abs=tolerance, rel=1e-9)


@given(st.text())
def test_any_text_is_read_or_refused_but_never_breaks(text: str) -> None:
    try:
        assert seconds(text) >= 0
    except OptionError:
        pass
