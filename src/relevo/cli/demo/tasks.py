"""The app that `relevo demo` runs."""

from __future__ import annotations

import asyncio
import time

from relevo import Failure, Relevo, current_job

app = Relevo("demo")


@app.task(result_ttl="10m")
async def pack(parcel: str) -> float:
    """Runs for a while, so that the order in which jobs start can be seen."""
    started = time.time()
    await asyncio.sleep(0.05)
    return started


@app.task
async def deliver(parcel: str) -> float:
    """Returns when it ran."""
    return time.time()


@app.task(retries=4, backoff="400ms")
async def call_shaky_service(order: int) -> str:
    """Fails twice, then works."""
    attempt = current_job().attempt
    if attempt <= 2:
        raise ConnectionError(f"service answered 503 (attempt {attempt})")
    return f"order {order} confirmed at attempt {attempt}"


@app.task
def mark_broken(failure: Failure) -> None:
    """Runs once a job has been dead-lettered."""
    print(f"marked as broken: {failure.task} because of {failure.error}")


@app.task(retries=1, backoff="300ms", on_failure="relevo.cli.demo.tasks.mark_broken")
def charge_expired_card(card: str) -> None:
    """Never works: becomes a dead letter."""
    raise ValueError(f"card {card} has expired")


@app.task
def long_report(seconds: float) -> str:
    """Long enough to kill its worker."""
    job = current_job()
    for step in range(20):
        job.progress(step / 20, f"page {step} of 20")
        time.sleep(seconds / 20)
    return f"report of 20 pages, written at attempt {job.attempt}"


@app.task(result_ttl=0)
async def tick(number: int) -> None:
    """The smallest possible job."""
