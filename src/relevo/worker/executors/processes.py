"""Runs CPU-bound functions in child processes, which can be killed: time limits hold, a crash costs one attempt.

One thread per child sends it runs and receives the results; it starts the child with the first run and replaces one
that died. The children run `relevo.worker.executors.process_child`.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
import time
from typing import assert_never

from relevo.bus.actions import ActionSignature
from relevo.checkpoints.keeping import Interruption
from relevo.engine.verdicts import Cancel, Retry, Snooze
from relevo.worker.executors.executor import OnEnd, OnStart
from relevo.worker.executors.handover import Ended, Handover
from relevo.worker.executors.process_link import Child, Gone, Late
from relevo.worker.executors.process_messages import (
    PARENTS_SIGNALS,
    Answer,
    Answered,
    Decided,
    Done,
    Failed,
    Function,
    KeptAt,
    Order,
    Output,
    Paused,
    Progressed,
    Ready,
)
from relevo.worker.run import DeadlinePassed, Encoded, ProcessDied, RemoteFailure, Run

log = logging.getLogger("relevo.worker")

#: Seconds for a child to start, and to import a module: enough for the largest.
START_PATIENCE = 120.0
#: Seconds to wait for the children when the pool closes: more than LEAVE_PATIENCE. Killed ones need milliseconds.
CLOSE_PATIENCE = 5.0


class Processes:
    """A pool of child processes; each runs one attempt at a time."""

    patience = 5.0

    def __init__(self, size: int, on_start: OnStart, on_end: OnEnd) -> None:
        self._size = size
        self._on_start = on_start
        self._inbox: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._handover = Handover(on_end)
        self._threads: list[threading.Thread] = []
        # Guards the fields below: a child is killed only while it works, and not after it was reaped.
        self._lock = threading.Lock()
        #: the child of each run; None: waiting for one
        self._places: dict[Run, Child | None] = {}
        self._children: set[Child] = set()
        self._is_closed = False

    def submit(self, run: Run) -> None:
        """Run it as soon as a child is free."""
        with self._lock:
            self._places[run] = None
            if len(self._places) > len(self._threads) and len(self._threads) < self._size:
                thread = threading.Thread(target=self._work, name=f"relevo child {len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        self._inbox.put(run)

    def interrupt(self, run: Run) -> None:
        """Kill the child that runs it; the run ends with ProcessDied. No effect if it has ended already."""
        with self._lock:
            if run not in self._places:
                return
            child = self._places[run]
            if child is not None:
                child.kill()
                return
            del self._places[run]
        self._handover.put(
            (run, None, ProcessDied(f"{run.task.target}: it was stopped before a process was free for it"))
        )

    def ask_to_pause(self, run: Run) -> None:
        """Notify the child that runs it that the worker is stopping."""
        with self._lock:
            child = self._places.get(run)
        if child is not None:
            child.pause()

    def abandon(self, run: Run) -> bool:
        """The same as `interrupt`: a child can always be killed."""
        self.interrupt(run)
        return False

    def close(self) -> None:
        """Dismiss idle children that are in the app's lifespan, kill all others, and wait for the threads."""
        with self._lock:
            self._is_closed = True
            busy = set(self._places.values())
            for child in self._children:
                if child in busy or not child.has_lifespan:
                    child.kill()
        for _ in self._threads:
            self._inbox.put(None)
        deadline = time.monotonic() + CLOSE_PATIENCE
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # in the threads
    def _work(self) -> None:
        # Inherited by the child: until it has its handlers, a signal meant for the parent must not end it.
        signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        child: Child | None = None
        while (run := self._inbox.get()) is not None:
            if self._is_closed or run.settled or run not in self._places:  # given back or stopped while it waited
                with self._lock:
                    self._places.pop(run, None)
                continue
            child, ended = self._one(run, child)
            if ended is not None and not self._handover.put(ended):
                break  # the loop is closed: the worker has ended
        if child is not None:
            child.dismiss()
            self._bury(child)

    def _one(self, run: Run, child: Child | None) -> tuple[Child | None, Ended | None]:
        """One attempt; returns the child for the next one, and the end of this one."""
        if child is not None and child.has_died:
            log.warning("an idle process %s; another one takes its place", self._bury(child))
            child = None
        try:
            if child is None:
                child = Child()
        except Exception as error:  # noqa: BLE001  # no memory, too many processes …: the run must end in any case
            self._leave(run)
            return None, (run, None, failure(run, f"no process could be started for it: {error}", error))
        with self._lock:
            self._children.add(child)
            is_wanted = run in self._places
            if is_wanted:
                self._places[run] = child
            if self._is_closed:
                child.kill()
        try:
            if is_wanted and run.is_too_late:
                self._leave(run)
                return child, (run, None, DeadlinePassed())
            ended = self._attempt(run, child) if is_wanted else None
        except Gone:
            self._leave(run)
            how = f"{run.task.target}: the process that ran it {self._bury(child)}"
            if child.is_ready or child.was_killed:
                return None, (run, None, ProcessDied(how))
            return None, (run, None, failure(run, f"{how} before it was ready; its standard error says why"))
        except Late:
            self._leave(run)
            child.kill()
            self._bury(child)
            module = run.task.func.__module__
            text = f"a process did not start and import {module} within {START_PATIENCE:g} s; was it waiting?"
            return None, (run, None, failure(run, text))
        except BaseException as error:  # noqa: BLE001  # of `on_start`
            ended = run, None, error
        self._leave(run)
        if child.was_killed:  # while its answer was in transit
            self._bury(child)
            return None, ended
        return child, ended

    def _attempt(self, run: Run, child: Child) -> Ended | None:
        function = function_of(run)
        if isinstance(function, RemoteFailure):
            return run, None, function
        if not child.is_ready:
            self._listen(child, START_PATIENCE)
            child.is_ready = True
        if function not in child.knows:
            child.send(function)
            answer = self._listen(child, START_PATIENCE)
            if isinstance(answer, Failed):
                return run, None, remote_failure(answer)
            child.has_lifespan = isinstance(answer, Ready) and answer.has_lifespan
            child.knows.add(function)
        if run.settled:  # given back in the meantime
            return None
        self._on_start(run)
        number = child.next_number()
        child.order(order_of(run, function, number))
        if run.context._pause_asked:  # before it was sent to the child
            child.pause()
        answer = self._listen(child, None, run, number)
        return ended_with(run, answer)

    def _listen(self, child: Child, patience: float | None, run: Run | None = None, number: int = 0) -> Answer:
        """The child's answer; output and progress received before it go to the run."""
        while True:
            match child.receive(patience):
                case Output(of, data):
                    if run is not None and of == number:
                        run.capture.write_bytes(data)
                case Progressed(of, fraction, message):
                    if run is not None and of == number:
                        run.context._progress = (fraction, message)
                case Answered():
                    raise Gone  # this child runs one at a time: other code wrote to its pipe
                case answer:
                    return answer

    def _leave(self, run: Run) -> None:
        with self._lock:
            self._places.pop(run, None)

    def _bury(self, child: Child) -> str:
        with self._lock:
            self._children.discard(child)
        return child.bury()


def ended_with(run: Run, answer: Answer) -> Ended:
    """The end of a run, from its child's answer."""
    match answer:
        case Done(result, not_kept, carries):
            run.carries = run.carries or carries
            if not_kept:
                log.warning("%s: the result of job %s cannot be kept: %s", run.task.target, run.held.id, not_kept)
            return run, Encoded(result, not_kept), None
        case Failed():
            return run, None, remote_failure(answer)
        case Decided("retry", reason, delay):
            return run, None, Retry(reason, delay=delay)
        case Decided("snooze", reason, delay):
            return run, None, Snooze(delay or 0.0, reason)
        case Decided(_, reason):
            return run, None, Cancel(reason)
        case Paused(message):
            return run, None, Interruption(message)
        case Ready():
            raise Gone  # not an answer to an order: other code wrote to its pipe
        case _:
            assert_never(answer)


def function_of(run: Run) -> Function | RemoteFailure:
    """The function that a child imports to run it, or why it cannot."""
    func, target = run.task.func, run.task.target
    if func.__module__ == "__main__":
        text = (
            f"{target} is defined in the script that is running, which a process of its own cannot import; "
            'move it to a module, or do not give it executor="process"'
        )
        # Not permanent: a worker that has the same task from a module can run it.
        return RemoteFailure("relevo.errors.TargetError", text, "", permanent=False)
    is_action = isinstance(run.task.signature, ActionSignature)
    name = getattr(func, "__qualname__", "")
    return Function(func.__module__, name, target, is_action, run.task.engine.home)


def order_of(run: Run, function: Function, number: int) -> Order:
    """The order to a child to run it."""
    envelope, job = run.held.envelope, run.context
    assert envelope is not None, "a run has been read"
    return Order(
        number=number,
        function=function,
        args=bytes(envelope.args),
        kwargs=bytes(envelope.kwargs),
        id=job.id,
        queue=job.queue,
        attempt=job.attempt,
        history=job.history,
        worker=job.worker,
        job_name=job.name,
        tenant=job.tenant,
        tags=job.tags,
        retries_left=job.retries_left,
        flow=job.flow,
        message_headers=job.message_headers,
        headers=job._headers,
        deadline_ms=job.deadline_ms,
        deadline_at=job.deadline_at,
        result_max=run.task.engine.settings.max_payload if run.result_ttl > 0 or run.passes else None,
        token=run.held.token,
        kept_at=_kept_at(run),
        traceparent=run.task.engine.telemetry.carried(run.span)
        if run.span is not None and run.task.engine.telemetry is not None
        else "",
        on_loop=run.task.executor == "loop",
    )


def _kept_at(run: Run) -> KeptAt:
    engine = run.task.engine
    source, keys = engine.client.source, engine.keys_of(run.context.queue)
    return KeptAt(
        source.url,
        str(source.data_dir),
        keys.address,
        source.connect_timeout,
        source.call_timeout,
        engine.settings.max_payload,
        engine.settings.signing_keys,
        keys.place,
    )


def failure(run: Run, text: str, error: BaseException | None = None) -> RemoteFailure:
    """A failure of the executor itself, which costs the run an attempt."""
    name = type(error).__name__ if error is not None else "RuntimeError"
    return RemoteFailure(name, f"{run.task.target}: {text}", "", permanent=False)


def remote_failure(answer: Failed) -> RemoteFailure:
    """The error that a child reported."""
    return RemoteFailure(answer.error, answer.message, answer.traceback, permanent=answer.permanent)


def _span_of(run: Run) -> str:
    telemetry = run.task.engine.telemetry
    return telemetry.carried(run.span) if run.span is not None and telemetry is not None else ""
