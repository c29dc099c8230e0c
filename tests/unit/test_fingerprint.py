"""Which deaths are alike: the error's class and the way through the code, not the numbers."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from relevo.engine.fingerprint import LENGTH, LINE, error_line, fingerprint, is_permanent, looks_like_fingerprint
from relevo.engine.job import Attempt


def attempt(*frames: tuple[str, int, str], error: str = "ValueError", message: str = "no 7") -> Attempt:
    lines = [f'  File "{file}", line {line}, in {function}\n    raise\n' for file, line, function in frames]
    text = "Traceback (most recent call last):\n" + "".join(lines) + f"{error}: {message}\n"
    return Attempt("failed", error=error, message=message, traceback=text)


SHOP = ("/srv/shop/shop/pay.py", 10, "charge")
BANK = ("/srv/shop/shop/bank.py", 20, "ask")
ONE = fingerprint("retries_exhausted", attempt(SHOP, BANK))


@pytest.mark.parametrize(
    "other",
    [
        attempt(("/srv/shop/shop/pay.py", 99, "charge"), ("/srv/shop/shop/bank.py", 1, "ask")),
        attempt(("/home/ana/shop/pay.py", 10, "charge"), ("C:\\work\\shop\\bank.py", 20, "ask")),
        attempt(SHOP, BANK, message="no 8, and another text"),
    ],
    ids=["other lines", "other folders", "another message"],
)
def test_the_same_error_on_the_same_way_is_alike(other: Attempt) -> None:
    assert fingerprint("retries_exhausted", other) == ONE
    assert fingerprint("permanent", other) == ONE


@pytest.mark.parametrize(
    "other",
    [
        attempt(SHOP, BANK, error="KeyError"),
        attempt(SHOP),
        attempt(BANK, SHOP),
        attempt(SHOP, ("/srv/shop/shop/bank.py", 20, "tell")),
        attempt(SHOP, ("/srv/shop/shop/till.py", 20, "ask")),
    ],
    ids=["another error", "a shorter way", "another order", "another function", "another file"],
)
def test_another_error_or_another_way_is_not(other: Attempt) -> None:
    assert fingerprint("retries_exhausted", other) != ONE


def test_a_recursion_is_one_kind_however_deep_it_went() -> None:
    walk, step = ("/srv/shop/tree.py", 5, "walk"), ("/srv/shop/tree.py", 9, "step")
    prints = {
        fingerprint("", attempt(SHOP, *([walk, step] * depth), BANK, error="RecursionError")) for depth in (2, 30, 400)
    }
    assert len(prints) == 1


def test_a_real_traceback_has_frames() -> None:
    def fail(depth: int) -> None:
        if not depth:
            raise KeyError("x")
        fail(depth - 1)

    def died(depth: int) -> Attempt:
        try:
            fail(depth)
        except KeyError as error:
            text = "".join(traceback.format_exception(error))
            return Attempt("failed", error="KeyError", traceback=text)
        raise AssertionError

    assert fingerprint("", died(0)) == fingerprint("", died(3))
    bare = Attempt("failed", error="KeyError")
    assert fingerprint("", died(0)) != fingerprint("", bare)


@pytest.mark.parametrize(
    ("first", "second", "are_alike"),
    [
        ("no stock for 17", "no stock for 4711", True),
        ("order a1b2c3 is lost", "order ffe009 is lost", True),
        ("no stock for 17", "no money for 17", False),
        ("poison", "unknown_task", False),
    ],
)
def test_without_an_error_the_reason_without_its_numbers_is_the_group(first: str, second: str, are_alike: bool) -> None:
    lost = Attempt("lost", message="its worker fell silent")
    assert (fingerprint(first, lost) == fingerprint(second, lost)) is are_alike


def test_an_error_outside_the_users_code_is_grouped_by_its_reason() -> None:
    refused = Attempt("refused", error="PayloadError", message="argument 'number'")
    assert fingerprint("bad_arguments", refused) != fingerprint("input_lacking", refused)


def test_a_fingerprint_is_16_hex_digits_whatever_comes() -> None:
    for reason in ("", "x" * 2000, "a" * 2000, "\ud800", "é 1 ☃"):
        found = fingerprint(reason, Attempt(""))
        assert looks_like_fingerprint(found) and len(found) == LENGTH
    others: list[Any] = ["", "abc", "0" * 15, "0" * 17, "G" * 16, "A" * 16, 5, None, b"0" * 16]
    assert not any(map(looks_like_fingerprint, others))


def test_an_error_fits_in_a_line() -> None:
    assert error_line(Attempt("failed", error="ValueError", message="no 7")) == "ValueError: no 7"
    assert error_line(Attempt("lost", message="its worker fell silent")) == "its worker fell silent"
    assert len(error_line(Attempt("failed", error="E", message="x" * 1000))) == LINE


def test_permanent_and_transient_errors_are_distinguished() -> None:
    permanent = ["permanent", "bad_arguments", "unreadable", "forbidden_target", "bad_signature", "bad_reply_to"]
    transient = ["retries_exhausted", "poison", "unknown_task", "input_lacking", "an unknown kind"]
    assert [reason for reason in permanent + transient if is_permanent(reason)] == permanent
