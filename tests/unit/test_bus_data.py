"""The data of a message arrives unchanged, or is refused by name when it is sent."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from types import MappingProxyType
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.bus.data import encoded, encoded_object
from relevo.codec.depth import MAX_DEPTH
from relevo.errors import PayloadError, PayloadTooLarge

LIMIT = 2**20


class Line(msgspec.Struct):
    sku: str
    pieces: int = 1


class Order(msgspec.Struct):
    lines: list[Line]
    due: datetime.date | None = None


class Row(msgspec.Struct, array_like=True):
    a: int


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Colour(enum.Enum):
    RED = "red"


def data(given: Any, limit: int = LIMIT) -> bytes:
    return encoded_object(given, what="billing.charge", limit=limit)


def refused(given: Any, limit: int = LIMIT) -> str:
    with pytest.raises(PayloadError, match=r"billing\.charge: ") as caught:
        data(given, limit)
    return str(caught.value)


def deep(levels: int) -> dict[str, Any]:
    top: dict[str, Any] = {}
    inner = top
    for _ in range(levels - 1):
        inner["a"] = {}
        inner = inner["a"]
    return top


# --- what is taken


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, "{}"),
        ({}, "{}"),
        ({"cents": 990, "to": "zoë"}, '{"cents":990,"to":"zoë"}'),
        (Point(1.5), '{"x":1.5,"y":0.0}'),
        (Order([Line("a", 2)], datetime.date(2026, 2, 1)), '{"lines":[{"sku":"a","pieces":2}],"due":"2026-02-01"}'),
    ],
)
def test_a_dict_a_struct_or_a_dataclass_is_the_arguments_by_name(given: Any, text: str) -> None:
    assert data(given).decode() == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), "[1,2]"),
        ({7}, "[7]"),
        (datetime.datetime(2026, 2, 1, 3, 4, 5, tzinfo=datetime.UTC), '"2026-02-01T03:04:05Z"'),
        (datetime.timedelta(seconds=90), '"PT90S"'),
        (uuid.UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (b"\x00\xff", '"AP8="'),
        (Colour.RED, '"red"'),
        ([Line("a")], '[{"sku":"a","pieces":1}]'),
        ({"p": Point(1.0)}, '{"p":{"x":1.0,"y":0.0}}'),
        (2**63, str(2**63)),
        (-(2**70), str(-(2**70))),
        ("\x00\u2028\U0001f600", '"\\u0000\u2028\U0001f600"'),
    ],
)
def test_other_values_are_encoded_in_the_form_that_annotations_read_back(value: Any, text: str) -> None:
    assert data({"v": value}).decode() == f'{{"v":{text}}}'


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4))
def test_json_values_arrive_unchanged(given: dict[str, Any]) -> None:
    try:
        raw = data(given)
    except PayloadError as error:
        assert "surrogates" in str(error)
        return
    assert msgspec.json.decode(raw) == given
    assert json.loads(raw) == given


# --- what is refused


def test_data_that_is_no_object_is_refused_with_what_is_needed() -> None:
    values: list[Any] = [[1, 2], (("a", 1),), "cents", b"{}", 7, True, 0.5, {"a"}, MappingProxyType({"a": 1})]
    for wrong in (*values, Order, Point, dict, Row(7), object(), iter({}), ...):
        assert "dict of the action's arguments" in (text := refused(wrong)) or "must be a JSON object" in text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap", [lambda v: {"v": v}, lambda v: {"v": [{"w": (1, v)}]}, lambda v: Point(v), lambda v: {"v": {v}}]
)
def test_numbers_that_json_would_turn_into_null_are_refused(wrap: Any, value: float) -> None:
    assert "NaN" in refused(wrap(value))


def test_a_value_that_cannot_be_encoded_is_refused_at_any_depth() -> None:
    for value in (object(), lambda: 7, int, range(3), {"a": {None: 1}}, {"a": {(1, 2): 3}}, 1j, {"a": "\ud800"}):
        refused({"v": [value]})


@pytest.mark.parametrize(
    "value",
    [
        *({1: 2}, {1.5: 2}, {b"cents": 990}, {uuid.UUID(int=7): 1}),
        # two keys that would be one name
        *({1: "a", "1": "b"}, {"v": {1: "a", "1": "b"}}, {"v": [{1.5: 0, "1.5": 1}]}),
    ],
)
def test_arguments_are_named_by_text(value: dict[Any, Any]) -> None:
    refused(value)


def test_data_that_contains_itself_is_refused() -> None:
    given: dict[str, Any] = {}
    given["me"] = given
    refused(given)
    listed: list[Any] = []
    listed.append(listed)
    refused({"v": listed})


def test_data_may_be_as_deep_as_jobs_and_no_deeper() -> None:
    assert data(deep(MAX_DEPTH))
    assert "deep" in refused(deep(MAX_DEPTH + 1))
    refused(deep(100_000))


def test_data_may_be_as_large_as_the_limit_and_no_larger() -> None:
    assert len(data({"v": "x" * 92}, limit=100)) == 100
    with pytest.raises(PayloadTooLarge, match=r"billing\.charge: 101 bytes encoded, the limit is 100") as caught:
        data({"v": "x" * 93}, limit=100)
    assert (caught.value.size, caught.value.limit) == (101, 100)


def test_a_value_that_fails_while_it_is_encoded_raises_only_a_payload_error() -> None:
    class Liar(dict[str, Any]):
        def __len__(self) -> int:
            raise RuntimeError("no")

    @dataclasses.dataclass
    class Late:
        x: int

    missing = Late.__new__(Late)  # without its field
    for odd in (Liar(a=1), missing, {"v": missing}):
        try:
            raw = data(odd)
        except PayloadError:
            continue
        assert isinstance(msgspec.json.decode(raw), dict)


# --- other values: contexts of callbacks, reports


def test_a_context_can_be_any_value_and_is_checked_like_data() -> None:
    for value in (None, 7, "x", [1, 2], {"a": 1}, True, 0.5):
        assert msgspec.json.decode(encoded(value, what="context", limit=LIMIT)) == value
    for wrong in (math.nan, object(), [math.inf]):
        with pytest.raises(PayloadError, match="context: "):
            encoded(wrong, what="context", limit=LIMIT)


@pytest.mark.parametrize(
    ("value", "what"),
    [(numpy.float64(1), "numpy.float64 cannot be sent as JSON: pass .item()"), (numpy.zeros(2), "pass .tolist()")],
    ids=["scalar", "array"],
)
@pytest.mark.parametrize("wrap", [lambda v: {"v": v}, lambda v: {"v": [{"w": v}]}])
def test_values_of_numpy_are_refused_with_what_to_pass_instead(wrap: Any, value: Any, what: str) -> None:
    assert what in refused(wrap(value))
