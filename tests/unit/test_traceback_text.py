"""Tracebacks of failed attempts read as Python's own."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from relevo.worker.traceback_text import text_of


def plain() -> None:
    raise ValueError("no such invoice")


def with_cause() -> None:
    try:
        plain()
    except ValueError as error:
        raise RuntimeError("cannot charge") from error


def while_handling() -> None:
    try:
        plain()
    except ValueError:
        {"there": 1}["missing"]


def suppressed() -> None:
    try:
        plain()
    except ValueError:
        raise RuntimeError("cannot charge") from None


def recursive(depth: int = 200) -> None:
    recursive(depth - 1) if depth else plain()


def of_a_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


def with_a_note() -> None:
    error = ValueError("no such invoice")
    error.add_note("while charging 7")
    raise error


def in_source_that_cannot_be_read() -> None:
    eval("1 +")


CASES = [
    plain,
    with_cause,
    while_handling,
    suppressed,
    recursive,
    of_a_group,
    with_a_note,
    in_source_that_cannot_be_read,
]


@pytest.mark.parametrize("fail", CASES)
def test_it_is_what_python_itself_would_say_the_first_time_and_later(fail: Callable[[], None]) -> None:
    for _ in range(2):
        try:
            fail()
        except BaseException as error:
            frames = error.__traceback__
            assert text_of(error, frames) == "".join(traceback.format_exception(type(error), error, frames))
            without = frames.tb_next if frames is not None else None
            assert text_of(error, without) == "".join(traceback.format_exception(type(error), error, without))
