"""The tasks that worker processes of these tests import, and the app they belong to.

Every task writes what it does to a file beside the server: what a server lost is still in the file.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import Any

from relevo import Relevo

#: The app's name, the file of effects, and the key of the clock that `Site.move` moves. A test sets them for its
#: workers; settings come as RELEVO_* as always.
APP, EFFECTS, CLOCK = "RELEVO_TEST_APP", "RELEVO_TEST_EFFECTS", "RELEVO_TEST_CLOCK_KEY"


def effect(what: str, n: int) -> None:
    """Write an effect down: one write of one line, which O_APPEND keeps whole among many processes."""
    fd = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{time.monotonic():.4f} {os.getpid()} {what} {n}\n".encode())
    finally:
        os.close(fd)


def ran_before(n: int) -> bool:
    """Whether any worker has started job number n: an attempt that was handed back is not in the job's history."""
    if not os.path.exists(os.environ[EFFECTS]):
        return False
    with open(os.environ[EFFECTS]) as file:
        return any(line.split()[2:] == ["start", str(n)] for line in file)


def is_open(n: int) -> bool:
    """Whether the test has called `site.open(n)`."""
    return os.path.exists(f"{os.environ[EFFECTS]}-open-{n}")


# Tasks that go well.
async def nap(n: int, seconds: float = 0.0) -> int:
    effect("start", n)
    await asyncio.sleep(seconds)
    effect("end", n)
    return n


def work(n: int, seconds: float = 0.0) -> int:
    effect("start", n)
    time.sleep(seconds)
    effect("end", n)
    return n


async def gated(n: int) -> int:
    """Run until the test opens its gate."""
    effect("start", n)
    while not is_open(n):
        await asyncio.sleep(0.01)
    effect("end", n)
    return n


def gated_thread(n: int) -> int:
    effect("start", n)
    while not is_open(n):
        time.sleep(0.01)
    effect("end", n)
    return n


async def nap_once(n: int, seconds: float) -> int:
    """Long the first time only, so that no test waits for the second."""
    return await nap(n, 0.0 if ran_before(n) else seconds)


def work_once(n: int, seconds: float) -> int:
    return work(n, 0.0 if ran_before(n) else seconds)


async def talk(n: int) -> int:
    """Print, before and after the test opens its gate."""
    print("halfway there")
    await gated(n)
    print("and done")
    return n


async def fail_once(n: int) -> int:
    from relevo import current_job

    effect("start", n)
    if current_job().attempt == 1:
        raise ValueError("the first time never works")
    effect("end", n)
    return n


async def plant(n: int, seconds: float) -> int:
    """Enqueue a nap for later, from where the worker's clock may be wrong."""
    effect("start", n)
    task = app.tasks["nap"].using(delay=seconds, expires=1.5 * seconds)
    await task.aenqueue(n + 1000, 0.0)
    effect("end", n)
    return n


async def tick() -> None:
    """Note which job ran for which tick of its schedule."""
    from relevo import current_job

    job = current_job()
    effect(f"ticked-{job.id}", job.tick_ms or 0)
    await asyncio.sleep(0.05)  # time to be killed in


# Tasks that do harm.
async def block(n: int) -> int:
    """Block the event loop until the test opens the gate."""
    return gated_thread(n)


_has_ended = asyncio.Event()


async def gated_before(n: int) -> int:
    """Run until the test opens the gate; then `block_after` blocks the event loop at once."""
    await gated(n)
    _has_ended.set()
    return n


async def block_after(n: int) -> int:
    """Block the event loop as soon as a job of `gated_before` has ended, before its worker can tell that."""
    await _has_ended.wait()
    _has_ended.clear()
    return gated_thread(n)


def hold_python(n: int) -> int:
    """Keep Python's lock inside one C call until the test opens the gate: no other thread of this process runs."""
    fifo = f"{os.environ[EFFECTS]}-fifo-{n}"
    os.mkfifo(fifo)
    effect("start", n)
    ctypes.PyDLL(None).open(fifo.encode(), os.O_RDONLY)  # a PyDLL does not release the lock while it calls
    effect("end", n)
    return n


def segfault(n: int) -> None:
    effect("start", n)
    ctypes.string_at(0)


async def vanish(n: int) -> None:
    effect("start", n)
    os._exit(3)


ERRORS: dict[str, type[BaseException]] = {
    error.__name__: error
    for error in (SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RecursionError, asyncio.CancelledError)
}


def _raise(n: int, name: str) -> None:
    effect("start", n)
    if name == "RecursionError":
        _raise_again(n)
    raise ERRORS[name]("of the task")


def _raise_again(n: int) -> None:
    _raise_again(n + 1)


def raise_in_thread(n: int, name: str) -> None:
    _raise(n, name)


async def raise_on_loop(n: int, name: str) -> None:
    await asyncio.sleep(0)
    _raise(n, name)


async def wait_for_ever(n: int) -> None:
    effect("start", n)
    await asyncio.Event().wait()


def spin_for_ever(n: int) -> None:
    effect("start", n)
    while True:
        pass


async def block_for_ever(n: int) -> None:
    """Stand still on the event loop, beyond its time limit."""
    effect("start", n)
    time.sleep(600)


def sleep_for_ever(n: int) -> None:
    effect("start", n)
    time.sleep(600)


def spin_in_process(n: int) -> None:
    effect("start", n)
    while True:
        pass


_TASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "nap": (nap, {}),
    "work": (work, {}),
    "gated": (gated, {}),
    "gated_thread": (gated_thread, {}),
    "nap_once": (nap_once, {}),
    "work_once": (work_once, {}),
    "talk": (talk, {}),
    "fail_once": (fail_once, {"retries": 1, "backoff": ["1h"]}),
    "stumble": (fail_once, {"retries": 1, "backoff": 0.01}),
    "plant": (plant, {}),
    "tick": (tick, {"max_crashes": 1000}),
    "block": (block, {}),
    "block_after": (block_after, {}),
    "gated_before": (gated_before, {}),
    "hold_python": (hold_python, {}),
    "segfault": (segfault, {}),
    "vanish": (vanish, {}),
    "raise_in_thread": (raise_in_thread, {"retries": 0}),
    "raise_on_loop": (raise_on_loop, {"retries": 0}),
    "wait_for_ever": (wait_for_ever, {"retries": 0, "timeout": 1}),
    "spin_for_ever": (spin_for_ever, {"retries": 0, "timeout": 1}),
    "block_for_ever": (block_for_ever, {"retries": 0, "timeout": 1, "max_crashes": 1}),
    "sleep_for_ever": (sleep_for_ever, {"retries": 0, "timeout": 1}),
    "work_apart": (work, {"executor": "process"}),
    "spin_in_process": (spin_in_process, {"retries": 0, "timeout": 1, "executor": "process"}),
}


def build(name: str, **settings: Any) -> Relevo:
    """An app with all tasks, for the worker processes and for the test itself."""
    made = Relevo(name, **settings)
    for target, (func, options) in _TASKS.items():
        made.task(name=target, **options)(func)
    return made


app = build(os.environ.get(APP, "process-tests"), _clock_key=os.environ.get(CLOCK, ""))
