"""Behaviour that no other test of app and worker showed, found by `./dev breaks`."""

from __future__ import annotations

import time

import pytest

from relevo import Relevo
from relevo.errors import JobCancelled
from tests.eventually import PATIENCE, aeventually
from tests.working import working


async def test_cancelled_function_ends_in_its_thread(app: Relevo) -> None:
    """Not only its job: else its thread would go on with the work, for ever. A time limit takes the same road."""
    steps: list[str] = []

    @app.task
    def spin() -> None:
        try:
            steps.append("began")
            while True:
                time.sleep(0.001)
        finally:
            steps.append("ended")

    async with working(app):
        job = await spin.aenqueue()
        await aeventually(lambda: steps)
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
        await aeventually(lambda: steps == ["began", "ended"])
