"""The worker's log when many jobs fail alike: some lines, and a count of the others."""

from __future__ import annotations

import re

import pytest

from relevo import Relevo
from relevo.worker.failure_log import LINES
from tests.working import drain


async def test_many_failures_alike_are_counted(
    app: Relevo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.worker.failure_log.WINDOW", 3600.0)  # what is left out is told at the end

    @app.task(name="charge", retries=0)
    async def charge(n: int) -> None:
        raise (ValueError if n else KeyError)(f"no {n}")

    charge.enqueue_many(((n,), {}) for n in range(LINES + 30))
    with caplog.at_level("INFO", "relevo.worker"):
        await drain(app)
    said = [record.getMessage() for record in caplog.records if "charge" in record.getMessage()]
    assert (
        sum(
            bool(re.search(r" is dead \(retries_exhausted\): ValueError no \d+; see: relevo job \w{20}$", line))
            for line in said
        )
        == LINES
    )
    assert sum("KeyError" in line for line in said) == 1
    assert said[-1] == "charge: 29 more jobs like these: each is dead (retries_exhausted): ValueError"
    assert len(said) == LINES + 2


async def test_the_log_of_a_job_is_its_own(app: Relevo) -> None:
    @app.task(name="charge", retries=0)
    async def charge() -> None:
        raise ValueError("no")

    job = await charge.aenqueue()
    await drain(app)
    text = await job.alogs()
    assert text.startswith("Traceback") and text.endswith("ValueError: no\n")
