"""Behaviour that no other test of app and worker showed, found by `./dev breaks`."""

from __future__ import annotations

import asyncio
import time

import pytest

from relevo import Relevo
from relevo.errors import JobCancelled
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
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


async def test_worker_renews_a_lease_in_time_again_and_again(app_factory: AppFactory, server: Server) -> None:
    """One claim outlives two leases. A machine that stands still loses it, then the next claim is looked at."""
    lease_ms = 500
    app = app_factory(lease=lease_ms / 1000)
    keys = app.engine.keys_of("default")
    firsts: dict[bytes, float] = {}

    @app.task(timeout="1h", max_crashes=1000)
    async def long() -> None:
        await asyncio.Event().wait()

    async with working(app):
        job = await long.aenqueue()

        def is_kept() -> bool:
            claim = server.command("HGET", keys.key("claims"), job.id)
            end = float(server.command("ZSCORE", keys.key("running"), job.id) or 0)
            return bool(claim and end) and end - firsts.setdefault(claim, end) >= 2 * lease_ms

        await aeventually(is_kept)
        assert await job.acancel()
        with pytest.raises(JobCancelled):
            await job.aresult(timeout=PATIENCE)
