"""Somebody sets the server's clock while workers run: jobs, delays and schedules go on."""

from __future__ import annotations

import asyncio
import logging

import pytest

from relevo.worker.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import working

STEPS = [MINUTE, -MINUTE, HOUR, -HOUR]


@pytest.fixture
def times(server: Server, app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch) -> Times:
    monkeypatch.setattr("relevo.worker.consumer.REST_EVERY", 0.5)
    return Times(server, app_factory)


async def resting(worker: Worker) -> None:
    await aeventually(lambda: worker.consumers and worker.consumers[0].is_resting, what="the worker rests")


@pytest.mark.parametrize("step", STEPS)
async def test_idle_workers_schedules_and_delays_go_on(
    times: Times, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = times.app
    ran: list[str] = []

    @app.task
    async def note(what: str = "tick") -> None:
        ran.append(what)

    async with working(app) as worker:
        await app.aschedule("often", note, every="1s")
        await aeventually(lambda: ran, what="the first tick")
        await note.using(delay="3s").aenqueue("soon")
        await note.using(delay="10h").aenqueue("much later")
        ticks = ran.count("tick")
        times.step(step)
        await aeventually(lambda: "soon" in ran, what="the delayed job")
        await aeventually(lambda: ran.count("tick") > ticks + 1, what="the schedule")
        await resting(worker)
        await (await note.using(result_ttl=60).aenqueue("now")).aresult()
        steps = [record for record in caplog.records if "clock was set" in record.getMessage()]
        await app.schedules.get("often").aremove()
    assert [(record.levelno, record.name) for record in steps] == [(logging.WARNING, "relevo.worker")]
    assert ran.count("soon") == ran.count("now") == 1
    assert "much later" not in ran


@pytest.mark.parametrize("step", STEPS)
async def test_jobs_that_run_do_not_run_twice(times: Times, step: int) -> None:
    app, ends = times.app, asyncio.Event()
    started: list[int] = []

    @app.task(result_ttl=60)
    async def wait(n: int) -> None:
        started.append(n)
        await ends.wait()

    async with working(app):
        handles = [await wait.aenqueue(n) for n in range(5)]
        await aeventually(lambda: len(started) == 5, what="all run")
        times.step(step)
        async with working(app) as another:
            await resting(another)
            ends.set()
            for handle in handles:
                await handle.aresult()
    assert sorted(started) == list(range(5))
