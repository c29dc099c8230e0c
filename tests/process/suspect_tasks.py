"""Tasks for the tests of the quarantine. In a module of their own: a child imports it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path

from relevo import Relevo, current_job

app = Relevo("suspects", url="redis://127.0.0.1:1")


@app.task
async def wait_on_loop(file: str) -> int:
    print(f"waiting for {Path(file).name}")
    current_job().progress(0.5, Path(file).name)
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return os.getpid()


@app.task
def wait_in_thread(file: str) -> int:
    print(f"waiting for {Path(file).name}")
    while not Path(file).exists():
        time.sleep(0.01)
    return os.getpid()


@app.task
def refuse_to_stop(file: str) -> int:
    while not Path(file).exists():
        try:
            time.sleep(0.01)
        except BaseException:
            pass
    return os.getpid()


@app.task
async def crash_on_loop(file: str) -> None:
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    ctypes.string_at(0)


@app.task
async def fail() -> None:
    raise ValueError("by itself")
