"""Compute the interval of every sensor on all cores: python run.py [--name nightly]

Ctrl-C finishes what runs and stops. The same command goes on where it stopped, also after a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sqlite3
import sys
import time
from contextlib import closing

from tasks import DATABASE, KEPT, app, interval, save

from relevo import State, Workflow, WorkflowProgress, group
from relevo.errors import JobError
from relevo.worker import Worker


async def main(name: str) -> int:
    """Work here until all is done, something failed, or Ctrl-C was pressed."""
    worker = Worker(app)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, worker.stop)
    flow = await found_or_begun(name)
    working = asyncio.create_task(worker.run())
    ended = asyncio.create_task(flow.aresult())
    shown = asyncio.create_task(show(flow))
    await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
    worker.stop()
    await working
    shown.cancel()
    await asyncio.wait([shown])
    code = report(ended, await flow.aprogress())
    ended.cancel()
    await app.aclose()
    return code


async def found_or_begun(name: str) -> Workflow[str]:
    """The batch of this name: found, with its failed part to run again if it has failed; or a new one."""
    with closing(sqlite3.connect(DATABASE)) as database:
        sensors = [sensor for [sensor] in database.execute("SELECT id FROM sensors ORDER BY id")]
    batch = group((interval.s(sensor) for sensor in sensors), fail_fast=True)
    flow = await batch.then(save.s(name)).aenqueue(name=name, unique=KEPT)
    progress = await flow.aprogress()
    if flow.created:
        print(f"{name}: {progress.total:,} jobs")
    else:
        print(f"{name} is known: {progress.done:,} of {progress.total:,} are done")
    if await flow.astate() in (State.DEAD, State.CANCELLED):
        print(f"{await flow.aretry():,} run again")
    return flow


def report(ended: asyncio.Task[str], progress: WorkflowProgress) -> int:
    """Say how it ended; the exit code."""
    if not ended.done():
        print(f"stopped: {progress.done:,} of {progress.total:,} are done, and the same command goes on")
        return 130
    try:
        print(ended.result())
        return 0
    except JobError as error:
        print(f"{error}\n{progress.done:,} are done, and the others were cancelled: correct it and run this again")
        return 1


async def show(flow: Workflow[str]) -> None:
    """The progress bar; in a pipe, a line for each tenth. One look is one short call, however large the batch."""
    began, first, tenths = time.monotonic(), (await flow.aprogress()).done, -1
    try:
        while True:
            progress = await flow.aprogress()
            rate = (progress.done - first) / (time.monotonic() - began)
            if sys.stdout.isatty():
                print(f"\r{bar(progress, rate)}\x1b[K", end="", flush=True)
            elif int(progress.fraction * 10) > tenths:
                tenths = int(progress.fraction * 10)
                print(f"{progress.done:,} of {progress.total:,}, {rate:,.0f}/s", flush=True)
            await asyncio.sleep(0.2)
    finally:
        if sys.stdout.isatty():
            print()


def bar(progress: WorkflowProgress, rate: float) -> str:
    """Such as: ███████░░░ 35,000 of 50,001, 1,200/s, 13 s left."""
    left = f", {progress.open / rate:,.0f} s left" if rate else ""
    filled = "█" * int(progress.fraction * 30)
    return f"{filled:░<30} {progress.done:,} of {progress.total:,}, {rate:,.0f}/s{left}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="nightly", help="of the batch: another name begins another one")
    sys.exit(asyncio.run(main(parser.parse_args().name)))
