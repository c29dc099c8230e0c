"""An app with a lifespan, and tasks for every executor. In a module of its own: a child process imports it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from relevo import Relevo, current_job

app = Relevo("lifespans", url="redis://127.0.0.1:1")


def note(what: str) -> None:
    """Write down what happened, for the test."""
    with open(os.environ["LIFESPAN_FILE"], "a") as file:
        file.write(f"{what}\n")


def noted() -> list[str]:
    """What happened."""
    path = Path(os.environ["LIFESPAN_FILE"])
    return path.read_text().splitlines() if path.exists() else []


class Pool:
    """Belongs to an event loop, as pools of connections do."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.loop = asyncio.get_running_loop()


@app.lifespan
async def lifespan(given: Relevo) -> AsyncIterator[Pool]:
    assert given is app
    if os.environ.get("LIFESPAN_WORKS_IN", str(os.getpid())) != str(os.getpid()):
        raise OSError("the database does not answer")
    note("entered")
    yield Pool()
    note("left")


def _is_here(pool: object) -> bool:
    assert isinstance(pool, Pool)
    return pool.process == os.getpid()


@app.task(retries=0)
async def on_loop() -> bool:
    state = current_job().state
    return _is_here(state) and state.loop is asyncio.get_running_loop()


@app.task(retries=0)
def in_thread() -> bool:
    return _is_here(current_job().state)


@app.task(retries=0, executor="process")
def in_process() -> bool:
    return _is_here(current_job().state)


@app.task(retries=0, executor="process")
async def loop_in_process() -> bool:
    state = current_job().state
    return _is_here(state) and state.loop is asyncio.get_running_loop()
