"""A worker: takes jobs from queues, runs them, tells what became of them.

Everything here happens on one event loop; plain functions run in threads, functions that compute in processes. The
parts: a `Lane` per queue asks and settles, `Bell`s wait to be called, the `Keeper` renews leases from a thread,
`Intake` decides what may run, and the sweep below watches time limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from relevo import context
from relevo.app import Relevo
from relevo.errors import OptionError, PayloadError, StoreError
from relevo.model.ids import Ids
from relevo.model.job import Attempt, write
from relevo.model.outcome import (
    CancelAsked,
    End,
    Happened,
    Interrupted,
    LeaseLost,
    Outcome,
    Raised,
    Returned,
    TimedOut,
    TryAgain,
    Unrunnable,
)
from relevo.model.verdicts import Retry, Snooze, Verdict
from relevo.store.workers import WorkerInfo, gone, present
from relevo.worker import capture, faults
from relevo.worker.bell import Bell
from relevo.worker.intake import Intake
from relevo.worker.keeper import Keeper
from relevo.worker.lane import Lane
from relevo.worker.ledger import Ledger
from relevo.worker.run import Encoded, ProcessDied, RemoteFailure, Run
from relevo.worker.threads import Ended, Threads

if TYPE_CHECKING:
    from relevo.worker.processes import Processes

log = logging.getLogger("relevo.worker")

#: Seconds between looks at time limits: how late a time-out may come.
SWEEP_EVERY = 0.1
#: Seconds between writing down progress and logs of running jobs.
NOTE_EVERY = 1.0
#: Seconds between signs of life.
PRESENT_EVERY = 15.0
#: A run that was told to stop and does not is given up after so many seconds: a coroutine may have to clean up, a
#: thread was interrupted between two steps of Python code or sits in a call that nothing can interrupt.
STOP_PATIENCE = 5.0
STOP_PATIENCE_THREAD = 1.0
#: Jobs are claimed ahead for this many seconds of work, so that a fast worker never waits for the server.
AHEAD = 0.02
AHEAD_MOST = 1000
TRACEBACK_MOST = 8_000


class Worker:
    """Runs an app's jobs until it is stopped.

    >>> await Worker(app, queues=["default", "mail"]).run()  # doctest: +SKIP
    """

    def __init__(
        self,
        app: Relevo,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        threads: int | None = None,
        burst: bool = False,
        max_jobs: int | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        settings = app.settings
        named = list(queues) if queues else [app.settings.queue, *(t.options.queue for t in app.tasks.values())]
        if len(named) > 255:
            raise OptionError(f"a worker serves at most 255 queues, found {len(named)}")
        self.app = app
        self.id = Ids()()
        self.queues = tuple(dict.fromkeys(named))
        self.concurrency = _positive("concurrency", settings.concurrency if concurrency is None else concurrency)
        self.burst = burst
        self.ledger = ledger
        #: jobs in hand by id: claimed, not yet settled here
        self.runs: dict[str, Run] = {}
        self.lanes: list[Lane] = []
        self.intake = Intake(app, self.id)
        self.notes_ttl_ms = max(60_000, round(max(settings.result_ttl, settings.failure_ttl) * 1000))
        self.is_stopping = False
        self.wants_recycling = False
        self.loop_ticked = time.monotonic()
        self.done = self.failed = self.refused = 0
        self._threads_size = _positive("threads", settings.threads if threads is None else threads)
        self._max_jobs = max_jobs
        self._started_ms = int(time.time() * 1000)
        self._waiting: deque[Run] = deque()
        self._on_loop = 0
        self._reserved = 0
        self._overdue: list[Run] = []
        self._stop = asyncio.Event()
        self._stop_fast = asyncio.Event()
        self._rate = 0.0
        self._rate_mark = (time.monotonic(), 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._threads: Threads | None = None
        self._processes: Processes | None = None
        #: With nothing but plain functions, what threads cannot start would only be kept from other workers.
        some_async = any(task.is_async for task in app.tasks.values()) or bool(settings.allow)
        self._slots = self.concurrency if some_async or not app.tasks else min(self.concurrency, self._threads_size)

    # life
    def stop(self, *, fast: bool = False) -> None:
        """Take no more jobs; finish or hand back what runs. Again, or `fast`: hand back at once."""
        if fast or self._stop.is_set():
            self._stop_fast.set()
        self._stop.set()

    async def run(self) -> None:
        """Work until stopped (in burst mode: until nothing is left to do)."""
        self._loop = asyncio.get_running_loop()
        driver = self.app.client.driver()
        self._threads = Threads(self._threads_size, self._begin, self._thread_ended)
        self.lanes = [Lane(self, queue, driver) for queue in self.queues]
        keeper = Keeper(self)
        with capture.Installed(forward=True):
            await self._list_queues()
            if self.ledger is not None:
                self.ledger.beat()
            keeper.start()
            lanes = [self._guard(lane.run, f"lane {lane.queue}") for lane in self.lanes]
            duties = [self._guard(bell.run, "bell") for bell in self._bells(driver)]
            duties += [self._guard(self._sweep, "sweep"), self._guard(self._say_present, "presence")]
            try:
                await self._stop.wait()
                await self._wind_down(lanes)
            finally:
                keeper.stop()
                for task in (*lanes, *duties):
                    task.cancel()
                await asyncio.gather(*lanes, *duties, return_exceptions=True)
                self._threads.close()
                if self._processes is not None:
                    self._processes.close()
                with contextlib.suppress(StoreError):
                    await driver.perform(gone(self.app.keys, self.id), patience=0)

    def _bells(self, driver: Any) -> list[Bell]:
        if self.app.client.source.is_cluster:  # keys of different slots cannot be read together
            return [Bell(driver, self.id, [lane]) for lane in self.lanes]
        return [Bell(driver, self.id, self.lanes)]

    def _guard(self, duty: Callable[[], Any], name: str) -> asyncio.Task[None]:
        async def go_on() -> None:
            while True:
                try:
                    await duty()
                    return
                except Exception:
                    log.exception("%s failed; it starts anew", name)
                    await asyncio.sleep(1)

        return asyncio.create_task(go_on(), name=f"relevo {name}")

    async def _list_queues(self) -> None:
        try:
            for queue in self.queues:
                await self.app.client.arun(self.app.list_queue(queue), patience=0)
        except StoreError as error:
            log.warning("the server is away at the start: %s", error)  # the lanes go on trying

    def lane_is_quiet(self) -> None:
        """A lane has nothing to ask or tell. In burst mode, when all are quiet, the work is done."""
        if self.burst and not self.runs and all(lane.is_resting and not len(lane.settled) for lane in self.lanes):
            self.stop()

    async def _wind_down(self, lanes: list[asyncio.Task[None]]) -> None:
        self.is_stopping = True
        if faults.ACTIVE:
            faults.at("stopping")
        for lane in self.lanes:
            try:
                await lane.leave()
            except StoreError as error:
                log.warning("%s: could not say goodbye: %s", lane.queue, error)
        for run in [run for run in self.runs.values() if not run.started]:
            self._give_back(run)
        if self.runs:
            log.info(
                "stopping: %d jobs are running, %.0f s for them to finish", len(self.runs), self.app.settings.grace
            )
        ended: asyncio.Future[Any] = asyncio.gather(*lanes)
        fast: asyncio.Future[Any] = asyncio.create_task(self._stop_fast.wait())
        for lane in self.lanes:
            lane.settle_soon()
        await asyncio.wait({ended, fast}, timeout=self.app.settings.grace, return_when=asyncio.FIRST_COMPLETED)
        if self.runs:
            log.warning("stopping: %d jobs are handed back unfinished", len(self.runs))
            for run in list(self.runs.values()):
                self._interrupt(run, "shutdown")
            await asyncio.wait({ended}, timeout=1.0)
            for run in list(self.runs.values()):
                self._give_back(run)
        with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
            await asyncio.wait_for(ended, 5.0)  # until what became of them is told
        fast.cancel()

    # room
    @property
    def in_hand(self) -> int:
        """Jobs claimed and not yet settled here."""
        return len(self.runs)

    def room(self) -> int:
        """How many more jobs one lane may claim now."""
        if self.is_stopping:
            return 0
        ahead = min(AHEAD_MOST, int(self._rate * AHEAD))
        free = self._slots + ahead - len(self.runs) - self._reserved
        if free <= 0:
            return 0
        hungry = sum(not lane.is_resting for lane in self.lanes) or 1
        return -(-free // hungry)

    def reserve(self, n: int) -> None:
        """Room that a turn under way will fill (or, negative, has filled)."""
        self._reserved += n

    # jobs in
    def accept(self, run: Run) -> None:
        """Run it as soon as there is a slot."""
        self.runs[run.held.id] = run
        if self.is_stopping:
            self._give_back(run)
            return
        executor = run.task.options.executor
        if executor == "process":
            if self._processes is None:
                from relevo.worker.processes import Processes  # most workers never need it

                size = self.app.settings.pool or os.cpu_count() or 1
                self._processes = Processes(size, self._begin, self._thread_ended)
            self._processes.submit(run)
        elif executor == "thread" or not run.task.is_async:
            assert self._threads is not None
            self._threads.submit(run)
        elif self._on_loop < self.concurrency:
            self._start(run)
        else:
            self._waiting.append(run)

    def _start(self, run: Run) -> None:
        assert self._loop is not None
        self._on_loop += 1
        self._begin(run)
        run.future = self._loop.create_task(self._attempt(run))

    def _begin(self, run: Run) -> None:
        now = run.started = time.monotonic()
        limit = self.intake.time_limit(run)
        if limit:
            run.deadline = now + limit
        if self.ledger is not None:
            lane = self.lanes.index(run.lane) if len(self.lanes) > 1 else 0
            run.cell = self.ledger.write(lane, run.held.token, run.held.id, now, run.deadline)
        if faults.ACTIVE:
            faults.at("started")

    async def _attempt(self, run: Run) -> None:
        context.running.set(run.context)
        capture.current.set(run.capture)
        result: Any = None
        error: BaseException | None = None
        try:
            result = await run.task.func(*run.args, **run.kwargs)
        except BaseException as raised:  # noqa: BLE001  # SystemExit and its like are failures of the task
            error = raised
        self._on_loop -= 1
        self._ended(run, result, error)
        if self._waiting:
            self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._on_loop < self.concurrency:
            run = self._waiting.popleft()
            if not run.settled:
                self._start(run)

    # jobs out
    def _thread_ended(self, ended: Ended) -> None:
        self._ended(*ended)

    def _ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        if faults.ACTIVE:
            faults.at("returned")
        if run.settled:
            return
        if error is None:
            encoded = self._encoded(run, result)
            self._settle(run, Returned(), encoded)
            return
        match run.stopped:
            case "timeout":
                limit = self.intake.time_limit(run)
                self._settle(run, TimedOut(self._told(run, "timed_out", error, f"took longer than {limit:g} s")))
            case "cancel":
                self._settle(run, CancelAsked())
            case "shutdown":
                self._settle(run, Interrupted())
            case "lost":
                self._forget(run)
            case _ if isinstance(error, ProcessDied):
                self._settle(run, LeaseLost(self._told(run, "lost", error)))
            case _ if isinstance(error, RemoteFailure) and error.permanent:
                self._settle(run, Unrunnable("permanent", self._told(run, "failed", error)))
            case _:
                how = "snoozed" if isinstance(error, Snooze) else "retried" if isinstance(error, Retry) else "failed"
                self._settle(run, Raised(error, self._told(run, how, error)))

    def _encoded(self, run: Run, result: Any) -> Encoded:
        if isinstance(result, Encoded):
            return result
        envelope = run.held.envelope
        ttl = envelope.result_ttl if envelope is not None and envelope.result_ttl is not None else None
        if (run.task.options.result_ttl if ttl is None else ttl) <= 0:
            return Encoded(b"")
        try:
            return Encoded(run.task.signature.encode_result(result, limit=self.app.settings.max_payload))
        except PayloadError as refused:
            # The work is done and must not be done again because of how it is told.
            log.warning("%s: the result of job %s cannot be kept: %s", run.task.target, run.held.id, refused)
            return Encoded(b"", str(refused)[:2000])

    def _settle(self, run: Run, happened: Happened, encoded: Encoded = Encoded(b"")) -> None:  # noqa: B008
        self._forget(run)
        lane: Lane = run.lane
        outcome = lane.conclude(run, happened, encoded.result, encoded.not_kept)
        if outcome is None or isinstance(happened, Returned):
            self.done += 1
        elif not isinstance(happened, Interrupted):
            self.failed += 1
            self._report(run, outcome)
        if run.capture.changed or isinstance(happened, Raised | TimedOut | LeaseLost | Unrunnable):
            lane.note(run.held.id, "", f"log:{run.context.attempt}", self._log_text(run, happened))
        if run.context._progress is not None and run.context._progress != run.told_progress:
            self._note_progress(run, "")
        for other in self.lanes:
            if other is not lane and not other.is_resting:
                other.settle_soon()  # there is room again
        if self._max_jobs is not None and self.done + self.failed >= self._max_jobs and not self.is_stopping:
            self.wants_recycling = True
            self.stop()

    def _forget(self, run: Run) -> None:
        run.settled = True
        self.runs.pop(run.held.id, None)
        if self.ledger is not None and run.cell >= 0:
            self.ledger.clear(run.cell)
            run.cell = -1

    def _told(self, run: Run, how: str, error: BaseException, message: str = "") -> Attempt:
        if isinstance(error, RemoteFailure):
            name, text, trace = error.error, error.message, error.traceback
        else:
            kind = type(error)
            name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            text = str(error)
            if how == "timed_out":
                name = "TimeoutError"
            quiet = isinstance(error, Verdict | ProcessDied) or run.stopped
            frames = error.__traceback__ and error.__traceback__.tb_next  # without the worker's own
            trace = "" if quiet else "".join(traceback.format_exception(type(error), error, frames))
        lane: Lane = run.lane
        now_ms = lane.now_ms()
        began = now_ms - int((time.monotonic() - run.started) * 1000) if run.started else now_ms
        if len(trace) > TRACEBACK_MOST:
            trace = trace[: TRACEBACK_MOST // 4] + "\n… left out …\n" + trace[-TRACEBACK_MOST * 3 // 4 :]
        return Attempt(how, self.id, began, now_ms, name, (message or text)[:2000], trace)

    def _log_text(self, run: Run, happened: Happened) -> str:
        text = run.capture.text()
        if isinstance(happened, Raised | TimedOut | LeaseLost | Unrunnable):
            attempt = happened.attempt
            text += attempt.traceback or f"{attempt.error}: {attempt.message}\n"
        return text

    def _report(self, run: Run, outcome: Outcome) -> None:
        target, id = run.task.target, run.held.id
        match outcome:
            case TryAgain(delay, story):
                last = story.attempts[-1]
                log.info("%s %s: %s %s; again in %.1f s", target, id, last.error, last.message, delay)
            case End(state, reason, story):
                last = story.attempts[-1] if story.attempts else Attempt("")
                level = logging.ERROR if state == "dead" else logging.INFO
                log.log(level, "%s %s is %s (%s): %s %s", target, id, state, reason, last.error, last.message)
            case _:
                pass

    # stopping single runs
    def cancel(self, id: str) -> None:
        """Somebody wants this job to stop."""
        run = self.runs.get(id)
        if run is None or run.stopped:
            return
        if not run.started:
            self._settle(run, CancelAsked())
        else:
            self._interrupt(run, "cancel")

    def from_thread(self, lost: list[str], cancelled: list[str]) -> None:
        """What the keeper learned: leases that are gone, jobs to be cancelled."""

        def tell() -> None:
            for id in cancelled:
                self.cancel(id)
            for id in lost:
                run = self.runs.get(id)
                if run is not None:
                    log.warning("%s: job %s is not ours any more; it is stopped", run.task.target, id)
                    self._interrupt(run, "lost")

        if self._loop is not None:
            self._loop.call_soon_threadsafe(tell)

    def _interrupt(self, run: Run, why: Any) -> None:
        run.stopped = why
        run.stopped_at = time.monotonic()
        run.context.ask_to_stop()
        if run.future is not None:
            run.future.cancel()
        elif run.task.options.executor == "process" and self._processes is not None:
            self._processes.stop(run)
        elif self._threads is not None and run.started:
            self._overdue.append(run)
            self._threads.stop(run)

    def _give_back(self, run: Run) -> None:
        if not run.settled:
            run.stopped = "shutdown"
            self._settle(run, Interrupted())

    # watching
    async def _sweep(self) -> None:
        noted = time.monotonic()
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            now = self.loop_ticked = time.monotonic()
            for run in list(self.runs.values()):
                if run.deadline and now > run.deadline and not run.stopped:
                    self._interrupt(run, "timeout")
                elif run.stopped and now - run.stopped_at > (STOP_PATIENCE_THREAD if run.thread else STOP_PATIENCE):
                    self._give_up_on(run)
            since, count = self._rate_mark
            if now - since >= SWEEP_EVERY:
                finished = self.done + self.failed
                self._rate, self._rate_mark = (finished - count) / (now - since), (now, finished)
            if now - noted >= NOTE_EVERY:
                noted = now
                await self._note_all()

    def _give_up_on(self, run: Run) -> None:
        """It was told to stop and does not: its outcome is settled without it."""
        log.error("%s: job %s does not stop; it is left behind", run.task.target, run.held.id)
        if run.future is not None and run.future.done():
            self._on_loop -= 1  # stopped before its first step: it never came to count itself out
        self._ended(run, None, TimeoutError("told to stop, and did not"))
        if run in self._overdue and self._threads is not None:
            self._overdue.remove(run)
            self._threads.abandon(run)
            if self._threads.abandoned * 4 >= self._threads_size and not self.is_stopping:
                log.error("%d threads hang; the worker starts anew", self._threads.abandoned)
                self.wants_recycling = True
                self.stop()

    async def _note_all(self) -> None:
        for run in self.runs.values():
            if run.capture.changed:
                run.lane.note(run.held.id, run.held.token, f"log:{run.context.attempt}", run.capture.text())
            if run.context._progress is not None and run.context._progress != run.told_progress:
                self._note_progress(run, run.held.token)
        for lane in self.lanes:
            await lane.flush_notes()

    def _note_progress(self, run: Run, token: int | str) -> None:
        run.told_progress = run.context._progress
        assert run.told_progress is not None
        fraction, message = run.told_progress
        text = write({"fraction": fraction, "message": message}).decode()
        run.lane.note(run.held.id, token, "progress", text)

    async def _say_present(self) -> None:
        from relevo import __version__

        driver = self.app.client.driver()
        while True:
            info = WorkerInfo(
                self.id,
                socket.gethostname(),
                os.getpid(),
                self.queues,
                self.concurrency,
                self._started_ms,
                len(self.runs),
                self.done,
                self.failed,
                __version__,
            )
            with contextlib.suppress(StoreError):
                await driver.perform(present(self.app.keys, info, int(time.time() * 1000)), patience=0)
            await asyncio.sleep(PRESENT_EVERY)


def _positive(what: str, value: int) -> int:
    if value < 1:
        raise OptionError(f"{what}: a whole number of at least 1 is needed, found {value!r}")
    return value
