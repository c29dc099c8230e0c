"""Enqueueing thousands of jobs in one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from relevo import Relevo


@pytest.mark.parametrize("options", [{}, {"tenant": "acme"}], ids=["plain", "with a tenant"])
async def test_the_event_loop_goes_on_while_many_jobs_are_enqueued(app: Relevo, options: dict[str, Any]) -> None:
    """Encoding 100,000 jobs takes a second, in which requests and workers on this loop would stand still."""

    @app.task
    async def step(number: int) -> None: ...

    turns = 0
    encoded: Counter[int] = Counter()

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def calls() -> Iterator[tuple[tuple[int], dict[str, Any]]]:
        for number in range(2_000):
            encoded[turns] += 1
            yield (number,), {}

    counting = asyncio.create_task(count_turns())
    try:
        jobs = await step.using(**options).aenqueue_many(calls())
    finally:
        counting.cancel()
    assert len(jobs) == 2_000
    assert max(encoded.values()) <= 300, "jobs that were encoded in one turn of the loop"
