"""Limits as people give them, and as the store keeps them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.errors import OptionError
from relevo.limits.limit import LARGEST_BURST, Limit, Rate, limit_of, rate_of, read_limit, tenant_of


@pytest.mark.parametrize(
    ("given", "per_second", "text"),
    [
        ("10/s", 10, "10/s"),
        ("100/m", 100 / 60, "100/m"),
        ("5/h", 5 / 3600, "5/h"),
        ("1/d", 1 / 86_400, "1/d"),
        ("0.5/s", 0.5, "0.5/s"),
        (" 10 / m ", 10 / 60, "10/m"),
        ("10.0/s", 10, "10/s"),
        (10, 10, "10/s"),
        (2.5, 2.5, "2.5/s"),
        (1_000_000, 1_000_000, "1000000/s"),
        (0.00123456789, 0.00123456789, "0.00123456789/s"),
    ],
)
def test_a_rate_is_read_as_people_write_it(given: Any, per_second: float, text: str) -> None:
    rate = rate_of(given)
    assert rate.per_second == pytest.approx(per_second)
    assert str(rate) == text
    assert rate_of(text) == rate


@pytest.mark.parametrize(
    "nonsense",
    [
        *("", "10", "10/", "/s", "10/w", "10/ms", "-1/s", "ten/s", "10/s/s", "1e3/s", "0/s", "0.1/d", "9999999999/s"),
        *(0, -1, 1e-9, 1_000_001, 10**400, math.nan, math.inf, True, None, [], b"10/s"),
    ],
)
def test_a_malformed_rate_is_refused(nonsense: Any) -> None:
    with pytest.raises(OptionError, match=r'rate: .*found|rate: not a rate: .*"10/s"'):
        rate_of(nonsense)


@pytest.mark.parametrize(
    ("rate", "burst"),
    [("10/s", 10), ("1/s", 1), ("5/h", 1), ("100/m", 2), (1.5, 2), (1_000_000, LARGEST_BURST)],
)
def test_without_a_burst_one_seconds_worth_may_start_at_once(rate: Any, burst: int) -> None:
    assert limit_of(rate=rate).burst == burst


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({}, "concurrency=, rate= or both; unlimit"),
        ({"burst": 3}, "concurrency=, rate= or both"),
        ({"concurrency": 2, "burst": 3}, "give rate= as well"),
        ({"concurrency": 0}, r"from 1 to 1,000,000 is needed, found 0; pause\(...\)"),
        ({"concurrency": True}, "concurrency: a whole number"),
        ({"concurrency": 1_000_001}, "concurrency: a whole number"),
        ({"rate": "1/s", "burst": 0}, "burst: a whole number"),
        ({"rate": "1/s", "burst": LARGEST_BURST + 1}, "burst: a whole number"),
    ],
)
def test_an_impossible_limit_is_refused(given: dict[str, Any], wrong: str) -> None:
    with pytest.raises(OptionError, match=wrong):
        limit_of(**given)


@pytest.mark.parametrize("name", ["", None, 7, b"acme", "a\nb", "x" * 201, ["acme"], "\ud800"])
def test_what_cannot_be_a_tenant_has_no_limit(name: Any) -> None:
    with pytest.raises(OptionError, match=r"tenant: printable text of 1 to 200 characters is needed, found .*no limit"):
        tenant_of(name)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit(concurrency=2, rate=Rate(10.0), burst=10), "2 10/s 10 0"),
        (Limit(concurrency=7), "7 - - 0"),
        (Limit(concurrency=None, rate=Rate(5.0, "h"), burst=1, paused=True), "- 5/h 1 1"),
        (Limit(paused=True), "- - - 1"),
        (Limit(concurrency=None, rate=Rate(1.5e-05), burst=1), "- 1.5e-05/s 1 0"),
    ],
)
def test_a_limit_is_kept_as_a_short_text(limit: Limit, text: str) -> None:
    assert str(limit) == text
    assert read_limit(text) == limit


@given(
    st.none() | st.integers(1, 1_000_000),
    st.none() | st.floats(1 / 86_400, 1_000_000) | st.integers(1, 1_000_000).map(lambda count: f"{count}/h"),
    st.booleans(),
)
def test_every_limit_is_read_back(concurrency: int | None, rate: Any, paused: bool) -> None:
    if concurrency is None and rate is None:
        return
    given = limit_of(concurrency, rate)
    limit = Limit(concurrency=given.concurrency, rate=given.rate, burst=given.burst, paused=paused)
    assert read_limit(str(limit)) == limit
