"""The running jobs of a worker: starts each in its executor, stops it on request, settles it at its end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NotRequired, TypedDict, Unpack

from relevo.engine.engine import Engine
from relevo.engine.outcome import CancelAsked, Happened, Interrupted, Returned
from relevo.worker import kill_points as faults
from relevo.worker.attempt_record import NOTHING, encoded
from relevo.worker.done_log import log_done
from relevo.worker.executors.executor import Place
from relevo.worker.executors.registry import Executors
from relevo.worker.failure_log import FailureLog
from relevo.worker.happened import happened_in, is_failure
from relevo.worker.job_log import JobLog, LogJobs
from relevo.worker.ledger import Ledger
from relevo.worker.run import Encoded, Origin, Run, Stopped
from relevo.worker.tracing import begin_span, end_span

log = logging.getLogger("relevo.worker")


class Sizes(TypedDict):
    """How many attempts each executor of a runner runs at once, and what is called and logged after each."""

    concurrency: int
    threads: int
    processes: int
    on_settled: Callable[[], None]
    log_jobs: NotRequired[LogJobs]


class Runner:
    """An attempt goes `accept` → `_place` → `_begin` → the task's function → `_ended` → `_settle`.

    All of it happens on the event loop, except that `_begin` is called where the function is.
    """

    def __init__(self, engine: Engine, **sizes: Unpack[Sizes]) -> None:
        self._engine = engine
        #: called whenever runs have been settled or dropped
        self.on_settled = sizes["on_settled"]
        log_jobs = sizes.get("log_jobs", "none")
        #: None, and no step of an attempt looks at it: jobs that go well are not logged.
        self._job_log = None if log_jobs == "none" else JobLog(log_jobs)
        begin, ended = (self._begin, self._ended) if self._job_log is None else (self._begin_logged, self._ended_logged)
        self._executors = Executors(Place(sizes["concurrency"], sizes["threads"], sizes["processes"], begin, ended))
        self._telemetry = engine.telemetry
        #: claimed and not yet settled, by id and token: a job whose lease was lost may be claimed again by this worker
        self.runs: dict[tuple[Origin, str, int], Run] = {}
        self._newest: dict[tuple[Origin, str], Run] = {}
        #: shared with the supervisor; None: no supervisor
        self.ledger: Ledger | None = None
        #: newly claimed jobs are given back at once
        self.is_closing = False
        self.done = self.failed = 0
        self.failure_log = FailureLog(_look(engine), tracebacks=log_jobs != "none")
        self._logs_done = engine.logs_done and log.isEnabledFor(logging.INFO)

    # in
    def accept(self, run: Run) -> None:
        """Start it as soon as there is a slot."""
        origin, held = run.origin, run.held
        job = origin, held.id
        before = self._newest.get(job)
        self.runs[origin, held.id, held.token] = self._newest[job] = run
        if self.is_closing:
            self.give_back(run)
        elif before is None:
            self._place(run)
        else:  # never twice at once in one process: starts when the run that lost its lease has ended
            before.follower = run
            self.lose(before)

    def _place(self, run: Run) -> None:
        executor = None if run.held.story.crashes else self._executors.made.get(run.task.executor)
        run.executor = executor = executor or self._executors.of(run)
        executor.submit(run)

    def _begin(self, run: Run) -> None:
        """Mark it as started. Also called from the threads of the executors."""
        now = run.started = time.monotonic()
        if run.limit:
            run.deadline = now + run.limit
            if run.context.deadline_at:
                run.deadline = min(run.deadline, run.context.deadline_at)
        if self.ledger is not None:
            run.cell = self.ledger.write(run.origin.number, run.held.token, run.held.id, now, run.deadline)
        if run.origin.events.is_on:
            run.origin.events.started(run)
        if self._telemetry is not None:
            run.span = begin_span(self._telemetry, run)
        if faults.ACTIVE:
            faults.at("started")

    def _begin_logged(self, run: Run) -> None:
        assert self._job_log is not None
        self._begin(run)
        self._job_log.started(run)

    def _ended_logged(self, run: Run, result: Any, error: BaseException | None) -> None:
        assert self._job_log is not None
        before = self.done
        self._ended(run, result, error)
        if self.done > before and not self._logs_done:
            self._job_log.done(run)

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
            self._settle(run, happened_in(run, error))

    def _settle(self, run: Run, happened: Happened, result: Encoded = NOTHING) -> None:
        self._forget(run)
        origin = run.origin
        outcome = origin.settlements.conclude_run(run, happened, result.result, result.not_kept)
        if happened is _RETURNED:
            self.done += 1
            origin.timings.note(run)
            if self._logs_done:
                log_done(run)
        elif not isinstance(happened, Interrupted):
            self.failed += 1
            origin.timings.note(run, is_failure=is_failure(happened))
            if outcome is not None:
                self.failure_log.note(run, outcome)
        if run.capture.changed or run.is_noted or run.context._progress is not None:
            origin.notes.add_end(run, run.capture.text() if run.capture.changed else "", ended_well=outcome is None)
        if run.span is not None:
            end_span(run, happened)
        self.on_settled()

    def forget(self, runs: Iterable[Run]) -> None:
        """Drop runs without settling: another worker has them, or they were handed back while the loop was blocked."""
        for run in runs:
            self._forget(run)
            if run.span is not None:
                end_span(run, None)
        self.on_settled()

    def _forget(self, run: Run) -> None:
        run.settled = True
        if run.capture.lines is not None:
            run.capture.end()
        origin, held = run.origin, run.held
        self.runs.pop((origin, held.id, held.token), None)
        job = origin, held.id
        newest = self._newest.pop(job, None)
        if newest is not run and newest is not None:
            self._newest[job] = newest
        if run.follower is not None:
            follower, run.follower = run.follower, None
            if not follower.settled:
                self._place(follower)
        if self.ledger is not None and run.cell >= 0:
            self.ledger.clear(run.cell)
            run.cell = -1

    def waits_for_place(self, run: Run) -> bool:  # noqa: ARG002  # only runs of several queues wait here
        """Whether it was not submitted to its executor, because places are kept for other queues."""
        return False

    # stopping
    def ask_to_pause(self) -> None:
        """The worker is stopping: loops with checkpoints end after the current item."""
        for run in self.runs.values():
            run.context.ask_to_pause()
            if run.executor is not None:
                run.executor.ask_to_pause(run)

    def held_of(self, origin: Origin) -> list[tuple[str, int]]:
        """Ids and tokens of the unsettled jobs of a queue. Also called from the lease renewer's thread."""
        runs = list(self.runs.values())
        return [(run.held.id, run.held.token) for run in runs if run.origin is origin and not run.settled]

    def heed(
        self, origin: Origin, held: Iterable[tuple[str, int]], lost: Collection[str], cancelled: Iterable[str]
    ) -> None:
        """Act on the result of renewing these leases: stop cancelled jobs and jobs whose lease is lost."""
        for id in cancelled:
            self.cancel(origin, id)
        for id, token in held:
            run = self.runs.get((origin, id, token))
            if id in lost and run is not None:
                self.lose(run)

    def cancel(self, origin: Origin, id: str) -> None:
        """The job was cancelled: stop it."""
        run = self._newest.get((origin, id))
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
        if run.executor is not None:
            run.executor.interrupt(run)

    def give_back(self, run: Run) -> None:
        """Return a job to its queue as if it had not been claimed."""
        if not run.settled:
            run.stopped = "shutdown"
            self._settle(run, Interrupted())

    def give_up_on(self, run: Run) -> bool:
        """Settle a run that does not stop. True if the worker must start anew."""
        log.error("%s: job %s does not stop; it is abandoned", run.task.target, run.held.id)
        follower, run.follower = run.follower, None
        self._ended(run, None, TimeoutError("asked to stop, and did not"))
        too_many_hang = run.executor is not None and run.executor.abandon(run)
        if follower is not None:  # must not run beside the one that hangs: another process runs it
            self.give_back(follower)
            return True
        return too_many_hang

    def close(self) -> None:
        """End threads and processes."""
        self.failure_log.flush()
        if self._job_log is not None:
            self._job_log.flush()
        self._executors.close()


def _look(engine: Engine) -> str:
    """The command that shows a job, `{}` in the place of its id."""
    is_given = not engine.loaded_from or "RELEVO_APP" in os.environ
    return "relevo job {}" if is_given else f"relevo job {{}} -A {engine.loaded_from}"


_RETURNED = Returned()
