"""The app that is measured: the smallest jobs there are, so that only the queue is seen."""

from __future__ import annotations

import os
import time

from relevo import Relevo

app = Relevo("bench", url=os.environ.get("BENCH_URL"), env="bench")


@app.task(result_ttl=0)
async def noop(number: int, text: str) -> None:
    """An async job that leaves nothing."""


@app.task
async def noop_kept(number: int, text: str) -> int:
    """An async job whose result is kept."""
    return number


@app.task(result_ttl=0)
def noop_plain(number: int, text: str) -> None:
    """A plain function: runs in a thread."""


@app.task
async def clock() -> float:
    """Tells when it started."""
    return time.time()
