"""What jobs print, log and say of their progress lives as long as their record, and not longer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from relevo import Job, Relevo, current_job
from relevo.errors import JobFailed
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.working import drain, working


def ttl_ms(server: Server, job: Job[Any]) -> int:
    """How long the notes of a job are kept; -2: there are none."""
    key = job._engine.keys_of(job.queue).own("notes", job.id)
    return int(server.command("PTTL", key))


def noted(server: Server, app: Relevo) -> list[bytes]:
    found: list[bytes] = server.command("KEYS", f"*{app.name}*notes:*")
    return found


async def test_nothing_is_left_of_jobs_that_print_and_keep_no_result(server: Server, app: Relevo) -> None:
    @app.task(result_ttl=0)
    async def talk(number: int) -> None:
        print("working on", number)
        logging.getLogger("shop").warning("slow")
        current_job().progress(0.5)

    await talk.aenqueue_many([((number,), {}) for number in range(50)])
    worker = await drain(app)
    assert worker.done == 50
    assert noted(server, app) == []


async def test_nothing_is_left_of_messages_whose_handler_prints(server: Server, bus_factory: AppFactory) -> None:
    app = bus_factory("talkative")
    service = app.service("mail")

    @service.action("deliver")
    async def deliver(number: int) -> None:
        print("delivering", number)

    for number in range(20):
        await app.service("web").asend("mail.deliver", {"number": number})
    worker = await drain(app)
    assert worker.done == 20
    assert noted(server, app) == []
    assert server.command("KEYS", f"*{app.settings.prefix}*notes:*") == []


@pytest.mark.parametrize("result_ttl", [0, 60])
async def test_notes_of_a_running_job_are_shortened_when_it_ends(
    server: Server, app: Relevo, result_ttl: float
) -> None:
    """They are written while it runs, when its end is not known yet."""
    may_end = asyncio.Event()

    @app.task(result_ttl=result_ttl)
    async def talk() -> None:
        print("working")
        await may_end.wait()

    async with working(app):
        job = await talk.aenqueue()
        await aeventually(lambda: ttl_ms(server, job) > 3_600_000, what="it is noted, for long")
        may_end.set()
        await aeventually(lambda: ttl_ms(server, job) < 3_600_000, what="it has ended")
    assert ttl_ms(server, job) == -2 if not result_ttl else 0 < ttl_ms(server, job) <= result_ttl * 1000


async def test_notes_of_a_dead_letter_live_as_long_as_it_does(server: Server, app: Relevo) -> None:
    @app.task(retries=1, backoff=0.001, failure_ttl=60)
    async def fail() -> None:
        print("about to fail")
        raise ValueError("no")

    async with working(app):
        job = await fail.aenqueue()
        with pytest.raises(JobFailed):
            await job.aresult(timeout=PATIENCE)
    assert 0 < ttl_ms(server, job) <= 60_000
    assert "about to fail" in await job.alogs(1)
    assert "ValueError: no" in await job.alogs(2)
