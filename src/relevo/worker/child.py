"""One worker process, started by its supervisor: `python -m relevo.worker.child <order>`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from typing import Any

import msgspec
from msgspec import Struct

from relevo.app import Relevo
from relevo.engine.duty import Duty
from relevo.engine.lifespan import Lifespan
from relevo.errors import RelevoError, StoreError
from relevo.store.server_facts import gather
from relevo.store.server_verdicts import Level, judge
from relevo.worker.announcement import announce
from relevo.worker.imports import BrokenModule
from relevo.worker.job_log import JobFormatter, LogJobs
from relevo.worker.ledger import Ledger
from relevo.worker.loading import home_of, load_app
from relevo.worker.pulse import Pulse
from relevo.worker.reload import CHANGED, Reload, wait_after
from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: Exit codes the supervisor understands.
STOPPED = 0
CANNOT_START = 2
START_ANEW = 75


class Order(Struct, frozen=True, kw_only=True):
    """The start parameters of a worker process."""

    app: str
    queues: tuple[str, ...] = ()
    concurrency: int | None = None
    threads: int | None = None
    burst: bool = False
    max_jobs: int | None = None
    #: MiB of resident memory above which the process restarts.
    max_memory: int | None = None
    log_level: str = "INFO"
    #: Jobs that start and go well in the log; with any, failed ones with their traceback, and output with its job.
    log_jobs: LogJobs = "none"
    #: Whether it logs what is the same for all processes of a command: the names of tasks and schedules.
    is_first: bool = True
    #: Whether it ends, to be started anew, when a file of the project changes.
    reload: bool = False
    #: Whether to report to the supervisor that the event loop runs and the server answers.
    pulse: bool = False
    #: Descriptors: shared memory, and pipes to and from the supervisor. -1: none.
    ledger_fd: int = -1
    ledger_cells: int = 0
    life_fd: int = -1
    word_fd: int = -1


class Contact(Struct, frozen=True, kw_only=True):
    """Data for the supervisor, which does not load the app: how to renew leases, the grace time for a shutdown."""

    url: str | None
    data_dir: str
    queues: tuple[str, ...]
    lease_ms: int
    grace: float
    worker: str
    #: For the app's metrics.
    app: str = ""
    prefix: str = ""
    env: str = ""
    #: For its health in metrics: limits may be set in its code.
    health_limits: dict[str, Any] = {}


def run_on_loop(main: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop if it is installed: half the time per wake-up."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    result: int = uvloop.run(main)
    return result


def contact_of(app: Relevo, worker: Worker) -> Contact:
    """The contact data of a worker."""
    source = app.engine.client.source
    addresses = tuple(app.engine.keys_of(queue).address for queue in worker.queues)
    settings = app.settings
    return Contact(
        url=source.url,
        data_dir=str(source.data_dir),
        queues=addresses,
        lease_ms=app.engine.lease_ms,
        grace=settings.grace,
        worker=worker.id,
        app=app.name,
        prefix=settings.prefix,
        env=settings.env,
        health_limits=settings.health_limits,
    )


async def _warn_of_an_ill_server(app: Relevo) -> None:
    """Log at the start what may lose jobs later: eviction, no AOF, a full disk."""
    try:
        facts = await asyncio.to_thread(gather, lambda call: app.engine.client.run(call, patience=0))
    except StoreError:
        return  # the consumers log the lost connection and retry
    for verdict in judge(facts):
        if verdict.name == "eviction" and not app.engine.client.source.check.is_off:
            continue  # logged when the worker connected
        if verdict.level in (Level.WARNING, Level.CRITICAL):
            level = logging.ERROR if verdict.level is Level.CRITICAL else logging.WARNING
            log.log(level, "the server's %s: %s. %s", verdict.name, verdict.found, verdict.what_to_do)


async def work(app: Relevo, order: Order, started: float = 0.0) -> int:
    """Work until stopped; returns the exit code. `started`: when the process began, by the clock of files."""
    ledger = Ledger(order.ledger_fd, order.ledger_cells) if order.ledger_fd >= 0 else None
    worker = Worker(
        app,
        queues=order.queues or None,
        concurrency=order.concurrency,
        threads=order.threads,
        burst=order.burst,
        max_jobs=order.max_jobs,
        ledger=ledger,
        log_jobs=order.log_jobs,
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, worker.stop)
    # Ctrl-C reaches the whole process group; the supervisor turns it into one SIGTERM for each worker process.
    loop.add_signal_handler(signal.SIGINT, worker.stop if order.life_fd < 0 else lambda: None)
    for harmless in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(harmless, log.info, "%s is ignored; SIGTERM stops the worker", harmless.name)
    if order.life_fd >= 0:
        threading.Thread(target=_stop_with_supervisor, args=(order.life_fd, loop, worker), daemon=True).start()
    if order.word_fd >= 0:
        os.write(order.word_fd, msgspec.json.encode(contact_of(app, worker)) + b"\n")
        os.close(order.word_fd)
    if order.max_memory:
        worker.add_duty(MemoryDuty(worker, order.max_memory))
    if order.pulse and ledger is not None:
        worker.add_duty(Pulse(app.engine, ledger))
    if app.engine.part(Lifespan).is_declared or app.engine.middleware:  # which child processes need, too
        app.engine.home = app.engine.home or home_of(app, order.app)
    announce(worker, in_full=order.is_first)
    reload = Reload(worker, started) if order.reload else None
    # Imported objects are never freed; frozen, they are not scanned by the garbage collector.
    gc.collect()
    gc.freeze()
    warning = asyncio.create_task(_warn_of_an_ill_server(app))
    try:
        await worker.run()
    finally:
        warning.cancel()
        await app.aclose()
    log.info("worker %s has stopped: %d done, %d failed", worker.id, worker.done, worker.failed)
    if reload is not None and reload.has_changed:
        return CHANGED
    return START_ANEW if worker.wants_recycling else STOPPED


def _stop_with_supervisor(fd: int, loop: asyncio.AbstractEventLoop, worker: Worker) -> None:
    """Stop the worker when the pipe closes, that is when the supervisor has died for any reason."""
    os.read(fd, 1)
    loop.call_soon_threadsafe(worker.stop)


class MemoryDuty(Duty[float]):
    """Lets the worker restart when it uses too much memory."""

    name = "memory"
    interval = 2.0

    def __init__(self, worker: Worker, most_mib: int) -> None:
        self._worker = worker
        self._most_mib = most_mib

    async def run_once(self) -> float:
        """Compare; returns the MiB in use."""
        used = _resident_mib()
        if used > self._most_mib and not self._worker.is_stopping:
            log.warning("memory: %d MiB used, %d allowed; the worker restarts", used, self._most_mib)
            self._worker.start_anew()
        return used


def _resident_mib() -> float:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:  # not on Linux: only the peak value is available
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def main(order: Order) -> int:
    """Load the app and work."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JobFormatter(f"%(asctime)s %(levelname)-7s [{os.getpid()}] %(name)s: %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=order.log_level.upper(), handlers=[handler])
    started = time.time()
    try:
        app = load_app(order.app)
        gc.collect()
        gc.freeze()  # loaded modules are never freed: do not scan them again and again
        return run_on_loop(work(app, order, started))
    except RelevoError as error:
        trace = f"\n{_own_frames(error.__cause__)}" if isinstance(error, BrokenModule) else ""
        log.error("%s%s", error, trace)
        if order.reload:
            return wait_after(error, started, lambda: _end_with_supervisor(order.life_fd))
        return CANNOT_START


def _end_with_supervisor(fd: int) -> None:
    if fd >= 0:
        os.read(fd, 1)
        os._exit(CANNOT_START)


def _own_frames(error: BaseException | None) -> str:
    """The traceback of an error in the user's code, without ours above it."""
    trace = error.__traceback__ if error is not None else None
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(("relevo.", "importlib")):
        trace = trace.tb_next
    return "" if error is None else "".join(traceback.format_exception(type(error), error, trace)).rstrip()


if __name__ == "__main__":
    code = main(msgspec.json.decode(sys.argv[1], type=Order))
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    # Threads of jobs that do not stop must not delay the exit: their jobs were handed back.
    os._exit(code)
