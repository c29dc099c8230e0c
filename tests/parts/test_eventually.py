"""Waiting for a condition, blocking and in an event loop."""

from __future__ import annotations

import asyncio

import pytest

from tests.eventually import aeventually, eventually


def test_eventually_gives_the_first_truthy_value() -> None:
    values = iter([None, 0, "", "now", "later"])
    assert eventually(lambda: next(values)) == "now"


def test_eventually_looks_at_least_once_fails_at_its_timeout_and_shows_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"three jobs: not so within 0 s; the last look gave \[\]"):
        eventually(list, timeout=0, what="three jobs")


def test_eventually_bears_only_the_named_errors() -> None:
    def broken() -> int:
        raise KeyError("lost")

    with pytest.raises(AssertionError, match="KeyError"):
        eventually(broken, timeout=0.01, errors=(KeyError,))
    with pytest.raises(KeyError):
        eventually(broken, errors=(ValueError,))


async def test_async_waiting_leaves_the_loop_free_and_takes_both_kinds_of_check() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.02, done.set)

    async def look() -> str | None:
        return "seen" if done.is_set() else None

    assert await aeventually(look) == "seen"
    assert await aeventually(done.is_set)


async def test_async_waiting_ends_a_check_that_hangs() -> None:
    with pytest.raises(AssertionError, match="the answer: not so within"):
        await aeventually(asyncio.Event().wait, timeout=0.01, what="the answer")


async def test_timeout_error_of_a_check_is_not_taken_for_the_end_of_the_waiting() -> None:
    async def look() -> bool:
        raise TimeoutError("of the check")

    with pytest.raises(TimeoutError, match="of the check"):
        await aeventually(look)
    with pytest.raises(AssertionError, match="of the check"):
        await aeventually(look, timeout=0.01, errors=(TimeoutError,))
