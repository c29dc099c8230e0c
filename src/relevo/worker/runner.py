"""The running jobs of a worker: starts each in its executor, stops it on request, settles it at its end."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from relevo.checkpoints.keeping import is_interruption
from relevo.engine import context
from relevo.engine.engine import Engine
from relevo.engine.outcome import (
    CancelAsked,
    Failed,
    Happened,
    Interrupted,
    LeaseLost,
    Raised,
    Returned,
    TimedOut,
    TooLate,
)
from relevo.engine.verdicts import Cancel, Retry, Snooze
from relevo.worker import capture
from relevo.worker import kill_points as faults
from relevo.worker.attempt_record import NOTHING, encoded, failed_attempt
from relevo.worker.executors.threads import Threads
from relevo.worker.failure_log import FailureLog
from relevo.worker.ledger import Ledger
from relevo.worker.run import DeadlinePassed, Encoded, ProcessDied, RemoteFailure, Run, Stopped
from relevo.worker.tracing import begin_span, end_span

if TYPE_CHECKING:
    from relevo.worker.consumer import Consumer
    from relevo.worker.executors.processes import Processes
    from relevo.worker.executors.quarantine import Quarantine

log = logging.getLogger("relevo.worker")


class Runner:
    """Runs attempts on the loop, in threads, in processes. Everything but `begin` happens on the loop."""

    def __init__(self, engine: Engine, *, concurrency: int, threads: int, on_settled: Callable[[], None]) -> None:
        self._engine = engine
        self._concurrency = concurrency
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(threads, self._begin, self._ended)
        self._threads_size = threads
        self._processes: Processes | None = None
        self._quarantine: Quarantine | None = None
        self._waiting: deque[Run] = deque()
        self._on_loop = 0
        self._telemetry = engine.telemetry
        #: claimed and not yet settled, by id and token: a job whose lease was lost may be claimed again by this worker
        self.runs: dict[tuple[Consumer, str, int], Run] = {}
        self._newest: dict[tuple[Consumer, str], Run] = {}
        #: shared with the supervisor; None: no supervisor
        self.ledger: Ledger | None = None
        #: newly claimed jobs are given back at once
        self.is_closing = False
        self.done = self.failed = 0
        self.failure_log = FailureLog()

    # in
    def accept(self, run: Run) -> None:
        """Start it as soon as there is a slot."""
        consumer, held = run.consumer, run.held
        before = self._newest.get((consumer, held.id))
        self.runs[consumer, held.id, held.token] = self._newest[consumer, held.id] = run
        if self.is_closing:
            self.give_back(run)
        elif before is None:
            self._place(run)
        else:  # never twice at once in one process: starts when the run that lost its lease has ended
            before.follower = run
            self.lose(before)

    def _place(self, run: Run) -> None:
        executor = run.task.executor
        if executor == "process":
            run.apart = self._pool()
            run.apart.submit(run)
        elif run.held.story.crashes and _is_suspect(run):
            run.apart = self._suspects()
            run.apart.submit(run)
        elif executor == "thread":
            self._threads.submit(run)
        elif self._on_loop < self._concurrency:
            self._start(run)
        else:
            self._waiting.append(run)

    def _pool(self) -> Processes:
        if self._processes is None:
            from relevo.worker.executors.processes import Processes  # most workers never need it

            self._processes = Processes(self._engine.settings.pool or os.cpu_count() or 1, self._begin, self._ended)
        return self._processes

    def _suspects(self) -> Quarantine:
        if self._quarantine is None:
            from relevo.worker.executors.quarantine import Quarantine  # as above

            self._quarantine = Quarantine(self._concurrency, self._threads_size, self._begin, self._ended)
        return self._quarantine

    def _start(self, run: Run) -> None:
        self._on_loop += 1
        self._begin(run)
        run.future = self._loop.create_task(self._attempt(run))

    def _begin(self, run: Run) -> None:
        """Mark it as started. Also called from the threads of the executors."""
        now = run.started = time.monotonic()
        if run.limit:
            run.deadline = now + run.limit
            if run.context.deadline_at:
                run.deadline = min(run.deadline, run.context.deadline_at)
        if self.ledger is not None:
            run.cell = self.ledger.write(run.consumer.number, run.held.token, run.held.id, now, run.deadline)
        if self._telemetry is not None:
            run.span = begin_span(self._telemetry, run)
        if faults.ACTIVE:
            faults.at("started")

    async def _attempt(self, run: Run) -> None:
        result: Any = None
        error: BaseException | None = None
        if not run.settled:  # it may have been handed back before its first step
            run.entered = True
            context.running.set(run.context)
            capture.current.set(run.capture)
            if run.span is not None and self._telemetry is not None:
                self._telemetry.enter(run.span)  # never left: the context ends with the asyncio task
            try:
                if run.is_too_late:
                    raise DeadlinePassed
                result = await run.task.func(*run.args, **run.kwargs)
            except BaseException as raised:  # noqa: BLE001  # SystemExit and its like are failures of the task
                error = raised
        self._on_loop -= 1
        self._ended(run, result, error)
        while self._waiting and self._on_loop < self._concurrency:
            following = self._waiting.popleft()
            if not following.settled:
                self._start(following)

    # out
    def _ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        if faults.ACTIVE:
            faults.at("returned")
        if run.settled:
            return
        if error is None:
            self._settle(run, _RETURNED, encoded(run, result, self._engine.settings.max_payload))
        elif run.stopped == "lost":
            self.forget([run])
        else:
            self._settle(run, self._what_happened(run, error))

    def _what_happened(self, run: Run, error: BaseException) -> Happened:
        match run.stopped:
            case "timeout" if run.is_too_late:
                return TooLate()  # the caller no longer waits for the reply
            case "timeout":
                return TimedOut(failed_attempt(run, "timed_out", error, f"took longer than {run.limit:g} s"))
            case "cancel":
                return CancelAsked()
            case "shutdown":
                return Interrupted()
        if is_interruption(error):  # its position is stored for the next attempt
            log.info("%s: job %s is handed back: %s", run.task.target, run.held.id, error)
            return Interrupted()
        if isinstance(error, DeadlinePassed):
            return TooLate()
        if isinstance(error, ProcessDied):
            return LeaseLost(failed_attempt(run, "lost", error), error.among)
        if isinstance(error, RemoteFailure):
            return Failed(failed_attempt(run, "failed", error), error.permanent)
        how = "snoozed" if isinstance(error, Snooze) else "retried" if isinstance(error, Retry) else "failed"
        return Raised(error, failed_attempt(run, how, error))

    def _settle(self, run: Run, happened: Happened, result: Encoded = NOTHING) -> None:
        self._forget(run)
        consumer: Consumer = run.consumer
        outcome = consumer.conclude(run, happened, result.result, result.not_kept)
        if happened is _RETURNED:
            self.done += 1
            consumer.timings.note(run)
        elif not isinstance(happened, Interrupted):
            self.failed += 1
            consumer.timings.note(run, is_failure=_is_failure(happened))
            if outcome is not None:
                self.failure_log.note(run, outcome)
        if run.capture.changed or run.is_noted or run.context._progress is not None:
            consumer.note_end(run, run.capture.text() if run.capture.changed else "", ended_well=outcome is None)
        if run.span is not None:
            end_span(run, happened)
        self._on_settled()

    def forget(self, runs: Iterable[Run]) -> None:
        """Drop runs without settling: another worker has them, or they were handed back while the loop was blocked."""
        for run in runs:
            self._forget(run)
            if run.span is not None:
                end_span(run, None)
        self._on_settled()

    def _forget(self, run: Run) -> None:
        run.settled = True
        consumer, held = run.consumer, run.held
        self.runs.pop((consumer, held.id, held.token), None)
        if self._newest.get((consumer, held.id)) is run:
            del self._newest[consumer, held.id]
        follower, run.follower = run.follower, None
        if follower is not None and not follower.settled:
            self._place(follower)
        if self.ledger is not None and run.cell >= 0:
            self.ledger.clear(run.cell)
            run.cell = -1

    # stopping
    def ask_to_pause(self) -> None:
        """The worker is stopping: loops with checkpoints end after the current item."""
        for run in self.runs.values():
            run.context.ask_to_pause()
            if run.apart is not None:
                run.apart.pause(run)

    def held_of(self, consumer: Consumer) -> list[tuple[str, int]]:
        """Ids and tokens of the unsettled jobs of a consumer. Also called from the lease renewer's thread."""
        runs = list(self.runs.values())
        return [(run.held.id, run.held.token) for run in runs if run.consumer is consumer and not run.settled]

    def heed(
        self, consumer: Consumer, held: Iterable[tuple[str, int]], lost: Collection[str], cancelled: Iterable[str]
    ) -> None:
        """Act on the result of renewing these leases: stop cancelled jobs and jobs whose lease is lost."""
        for id in cancelled:
            self.cancel(consumer, id)
        for id, token in held:
            run = self.runs.get((consumer, id, token))
            if id in lost and run is not None:
                self.lose(run)

    def cancel(self, consumer: Consumer, id: str) -> None:
        """The job was cancelled: stop it."""
        run = self._newest.get((consumer, id))
        if run is None or run.stopped:
            return
        if run.started:
            self.interrupt(run, "cancel")
        else:
            self._settle(run, CancelAsked())

    def lose(self, run: Run) -> None:
        """The lease is lost, and another worker may run the job: stop it."""
        if run.stopped == "lost":
            return
        log.warning("%s: job %s has lost its lease; it is stopped", run.task.target, run.held.id)
        if run.started:
            self.interrupt(run, "lost")
        else:
            self.forget([run])

    def interrupt(self, run: Run, why: Stopped) -> None:
        """Stop a run."""
        run.stopped = why
        run.stopped_at = time.monotonic()
        run.context.ask_to_stop()
        if run.future is not None:
            run.future.cancel()
        elif run.apart is not None:
            run.apart.stop(run)
        elif run.started:
            self._threads.stop(run)

    def give_back(self, run: Run) -> None:
        """Return a job to its queue as if it had not been claimed."""
        if not run.settled:
            run.stopped = "shutdown"
            self._settle(run, Interrupted())

    def give_up_on(self, run: Run) -> bool:
        """Settle a run that does not stop. True if too many threads hang by now."""
        log.error("%s: job %s does not stop; it is abandoned", run.task.target, run.held.id)
        follower, run.follower = run.follower, None
        if run.future is not None and run.future.done():
            self._on_loop -= 1  # stopped before its first step, so it did not decrement this itself
        self._ended(run, None, TimeoutError("asked to stop, and did not"))
        if run.thread is not None:
            self._threads.abandon(run)
        elif run.apart is not None:
            run.apart.abandon(run)
        if follower is not None:  # must not run beside the one that hangs: another process runs it
            self.give_back(follower)
            return True
        return self._threads.abandoned * 4 >= self._threads_size

    def close(self) -> None:
        """End threads and processes."""
        self.failure_log.flush()
        self._threads.close()
        if self._processes is not None:
            self._processes.close()
        if self._quarantine is not None:
            self._quarantine.close()


def _is_suspect(run: Run) -> bool:
    """Whether one more crash of its worker would dead-letter it.

    Other jobs were running in those workers, so the culprit is unknown. Suspects run in separate processes, which they
    share by halves until the culprit is alone: see quarantine.py.
    """
    crashes = run.held.story.crashes
    if crashes + 1 < run.task.options.max_crashes:
        return False
    func = run.task.func
    if func.__module__ == "__main__" or "<locals>" in func.__qualname__:
        return False  # another process cannot import it
    text = "%s: job %s was running when its worker died, %d times; it runs in a separate process"
    log.debug(text, run.task.target, run.held.id, crashes)
    return True


def _is_failure(happened: Happened) -> bool:
    """Whether it is a failure, in contrast to cancelled, expired or snoozed by the task itself."""
    if isinstance(happened, Raised):
        return not isinstance(happened.error, Snooze | Cancel)
    return isinstance(happened, Failed | TimedOut | LeaseLost)


_RETURNED = Returned()
