"""The loop that repeats a worker's duties."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

import pytest

from relevo.engine.duty import Duty, repeat
from relevo.errors import FormatError, ServerRefused, ServerUnavailable, StoreError
from tests.eventually import aeventually


class Counting(Duty[int]):
    name = "counting"
    interval = 0.001

    def __init__(self, *errors: Exception | None) -> None:
        self.runs = 0
        self._errors = iter(errors)

    async def run_once(self) -> int:
        self.runs += 1
        if (error := next(self._errors, None)) is not None:
            raise error
        return self.runs


@contextlib.contextmanager
def repeated(duty: Duty[int]) -> Iterator[asyncio.Task[None]]:
    task = asyncio.create_task(repeat(duty))
    try:
        yield task
    finally:
        task.cancel()


async def test_a_duty_is_repeated() -> None:
    duty = Counting()
    with repeated(duty):
        await aeventually(lambda: duty.runs > 3)


async def test_a_duty_that_hurries_does_not_wait_for_the_end_of_its_interval() -> None:
    duty = Counting()
    duty.interval = 3600.0
    with repeated(duty):
        for run in range(1, 4):
            duty.hurry()
            await aeventually(lambda run=run: duty.runs == run)  # type: ignore[misc]


async def test_a_duty_may_begin_at_once() -> None:
    duty = Counting()
    duty.interval, duty.first = 3600.0, 0.0
    with repeated(duty):
        await aeventually(lambda: duty.runs == 1)


@pytest.mark.parametrize(("error", "lines"), [(ServerRefused("no permission"), 2), (ServerUnavailable("gone"), 0)])
async def test_a_series_of_failures_is_logged_once_and_an_outage_by_the_consumers_only(
    error: StoreError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    duty = Counting(error, error, None, error, error)
    with caplog.at_level(logging.WARNING), repeated(duty):
        await aeventually(lambda: duty.runs > 5)
    assert [one.getMessage() for one in caplog.records] == [f"counting: {error}; it will be retried"] * lines


async def test_keys_of_another_version_end_the_repetition() -> None:
    with repeated(Counting(FormatError("too new"))) as task, pytest.raises(FormatError):
        await task
