"""relevo's app for the benchmarks: the job that does nothing, and jobs that do something."""

from __future__ import annotations

import asyncio
import time

from bench.adapters.contract import KEEPS_RESULTS, URL
from bench.bare import burn
from bench.probe import hit
from relevo import Relevo

app = Relevo("bench", url=URL, env="bench")
_TTL = "10m" if KEEPS_RESULTS else 0


@app.task(name="noop", result_ttl=_TTL)
async def noop(i: int, s: str) -> int:
    """Runs on the worker's loop."""
    hit(i)
    return i


@app.task(name="noop_plain", result_ttl=_TTL)
def noop_plain(i: int, s: str) -> int:
    """Runs in a thread of the worker."""
    hit(i)
    return i


@app.task(name="nap", result_ttl=_TTL)
async def nap(i: int, seconds: float) -> None:
    """Waits and lets others run."""
    hit(i)
    await asyncio.sleep(seconds)


@app.task(name="block", result_ttl=_TTL)
def block(i: int, seconds: float) -> None:
    """Waits and keeps its thread."""
    hit(i)
    time.sleep(seconds)


@app.task(name="spin", result_ttl=_TTL)
async def spin(i: int, rounds: int) -> None:
    """Keeps the worker's loop busy."""
    hit(i)
    burn(rounds)


@app.task(name="spin_plain", result_ttl=_TTL)
def spin_plain(i: int, rounds: int) -> None:
    """Keeps a thread of the worker busy."""
    hit(i)
    burn(rounds)
