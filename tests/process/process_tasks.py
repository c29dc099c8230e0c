"""Tasks for the tests of child processes. In a module of their own: a child imports it."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from relevo import Cancel, Relevo, Retry, Snooze, current_job

app = Relevo("children", url="redis://127.0.0.1:1", max_payload=10_000)
#: Filled by jobs only: shows that a child is used again.
seen: list[int] = []
log = logging.getLogger("tests.process")


class OutOfStock(Exception):
    pass


class Grumpy(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@app.task(executor="process")
def add(a: int, b: int = 1, *, factor: int = 1) -> int:
    return (a + b) * factor


@app.task(executor="process")
async def add_slowly(a: int, b: int) -> int:
    await asyncio.sleep(0.01)
    return a + b


@app.task(executor="process")
def pid() -> int:
    return os.getpid()


@app.task(executor="process")
def environment() -> str:
    """All that this process shows of its environment, and that a program which it starts gets."""
    program = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    own = Path("/proc/self/environ").read_text() if sys.platform == "linux" else ""
    return f"{program}\n{own}\n{os.environ}"


@app.task(executor="process")
def count() -> int:
    seen.append(1)
    return len(seen)


@app.task(executor="process")
def about_me() -> list[Any]:
    job = current_job()
    return [job.id, job.queue, job.target, job.attempt, len(job.history), job.worker, job.tenant, list(job.tags)]


@app.task(executor="process")
def fail(kind: str) -> None:
    kinds: dict[str, BaseException] = {
        "stock": OutOfStock("none left"),
        "system_exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "memory": MemoryError("too much"),
        "cancelled": asyncio.CancelledError(),
        "grumpy": Grumpy(),
        "surrogate": ValueError("\udc80"),
    }
    if kind == "recursion":
        fail.func("recursion")
    raise kinds[kind]


@app.task(executor="process")
async def fail_async(kind: str) -> None:
    raise SystemExit(3) if kind == "system_exit" else KeyboardInterrupt


@app.task(executor="process", give_up_on=OutOfStock)
def sell(known: bool) -> None:
    raise OutOfStock("none left") if known else ValueError("odd")


@app.task(executor="process", retry_on=OutOfStock)
def restock(known: bool) -> None:
    raise OutOfStock("none left") if known else ValueError("odd")


def _hidden(known: bool) -> None:
    raise OutOfStock("none left")


hidden_in_a_call = app.task(name="hidden", executor="process", give_up_on=OutOfStock)(_hidden)


@app.task(executor="process")
def decide(what: str) -> None:
    raise {
        "retry": Retry("busy", delay=7),
        "retry_when": Retry("busy"),
        "snooze": Snooze("5m", "too early"),
        "cancel": Cancel("not needed"),
    }[what]


@app.task(executor="process")
def talk() -> None:
    print("said")
    print("complained", file=sys.stderr)
    log.warning("logged %d", 7)


@app.task(executor="process")
def talk_much(lines: int) -> None:
    for n in range(lines):
        print("line", n)


@app.task(executor="process")
def talk_then_hang() -> None:
    print("last words")
    current_job().progress(0.25, "a quarter")
    while True:
        pass


@app.task(executor="process")
def leave_a_talker() -> None:
    print("mine")

    def talk_on() -> None:
        for step in range(100):
            print("late")
            current_job().progress(step / 100, "late")
            time.sleep(0.01)

    # With the job's context, as `asyncio.to_thread` gives it: this is what makes its output the job's.
    threading.Thread(target=contextvars.copy_context().run, args=(talk_on,)).start()


@app.task(executor="process")
def wait_a_little() -> None:
    time.sleep(0.3)
    print("mine too")


@app.task(executor="process")
def far() -> None:
    for step in range(1001):
        current_job().progress(step / 1000, f"step {step}")


@app.task(executor="process")
def crash(how: str) -> None:
    print("before the crash")
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@app.task(executor="process")
def wait_for_file(file: str) -> int:
    while not os.path.exists(file):
        time.sleep(0.01)
    return os.getpid()


@app.task(executor="process")
def burn(seconds: float) -> int:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


@app.task(executor="process")
def start_a_program(file: str) -> None:
    program = subprocess.Popen(["sleep", "600"])
    Path(file).write_text(str(program.pid))
    program.wait()


@app.task(executor="process")
def end_a_program() -> int:
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    return program.wait()


@app.task(executor="process")
def fork_and_crash(file: str) -> None:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    Path(file).write_text(str(fork.pid))
    os._exit(3)


@app.task(executor="process")
def end_a_fork() -> int | None:
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    fork.start()
    fork.terminate()
    fork.join()
    return fork.exitcode


@app.task(executor="process")
def receive_signals() -> str:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    return "still here"


@app.task(executor="process")
def large() -> str:
    return "x" * 20_000


@app.task(executor="process", result_ttl=0)
def unwanted() -> object:
    return object()


def plain(a: int) -> int:
    return a * 2


def traceparent() -> str:
    """The current span, as it is sent to other services; '': there is none."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier.get("traceparent", "")


def fences() -> list[int]:
    """The numbers of both deliveries: the first attempt fails and says its own."""
    job = current_job()
    if job.attempt == 1:
        raise ValueError(job.fence)
    return [int(job.history[0].message), job.fence]
