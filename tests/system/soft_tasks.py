"""Tasks with a soft limit, for every executor. In a module of their own: a child process imports it."""

from __future__ import annotations

import asyncio
import time

from relevo import Relevo, SoftTimeout, current_job

app = Relevo("soft", url="redis://127.0.0.1:1")
SOFT = "50ms"


@app.task(soft_timeout=SOFT, retries=0)
async def on_loop(kind: str) -> str:
    return await _waiting(kind)


@app.task(soft_timeout=SOFT, retries=0, executor="thread")
def in_thread(kind: str) -> str:
    return _busy(kind)


@app.task(soft_timeout=SOFT, retries=0, executor="process")
def in_process(kind: str) -> str:
    return _busy(kind)


@app.task(soft_timeout=SOFT, retries=0, executor="thread")
async def loop_in_thread(kind: str) -> str:
    return await _waiting(kind)


@app.task(soft_timeout=SOFT, retries=0, executor="process")
async def loop_in_process(kind: str) -> str:
    return await _waiting(kind)


@app.task(soft_timeout="10ms", timeout="100ms", retries=0)
async def stubborn() -> str:
    while True:
        try:
            await asyncio.sleep(60)
        except SoftTimeout:
            continue


@app.task(soft_timeout=SOFT, retries=0)
async def in_task_group() -> list[str]:
    ended: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("child")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())
    except SoftTimeout:
        ended.append("soft")
    return ended


@app.task(soft_timeout="5m")
async def quick() -> str:
    return "quick"


@app.task(soft_timeout="5m", executor="thread")
def quick_in_thread() -> str:
    return "quick"


async def _waiting(kind: str) -> str:
    try:
        await asyncio.Event().wait()
    except SoftTimeout as error:
        if kind == "catch":
            await asyncio.sleep(0)
            return f"{error}, attempt {current_job().attempt}"
        raise
    raise AssertionError


def _busy(kind: str) -> str:
    try:
        while True:
            time.sleep(0.001)
    except SoftTimeout as error:
        if kind == "catch":
            return f"{error}, attempt {current_job().attempt}"
        raise
