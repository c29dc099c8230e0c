"""One attempt of a job at a worker, from the claim to its settlement."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct

from relevo.engine.context import JobContext
from relevo.engine.settle import Held
from relevo.engine.task import Task
from relevo.worker.capture import Capture

if TYPE_CHECKING:
    from relevo.worker.event_sender import EventSender
    from relevo.worker.executors.executor import Executor
    from relevo.worker.job_notes import JobNotes
    from relevo.worker.settlements import Settlements
    from relevo.worker.timings import Timings

#: Why a run is being stopped from outside.
Stopped = Literal["", "timeout", "cancel", "shutdown", "lost"]


class Origin(Protocol):
    """The queue of a worker that a run came from, and where its end is noted and settled."""

    @property
    def queue(self) -> str:
        """Its name."""

    @property
    def number(self) -> int:
        """Its place among the worker's queues."""

    @property
    def settlements(self) -> Settlements:
        """Decides what becomes of runs."""

    @property
    def notes(self) -> JobNotes:
        """Collects their output and progress."""

    @property
    def timings(self) -> Timings:
        """Measures them."""

    @property
    def events(self) -> EventSender:
        """Publishes what happens to them."""

    def now_ms(self) -> int:
        """The server's clock."""


class Run(Struct, eq=False):
    """One attempt. Mutable on purpose: shared by the loop, the threads and the lease renewer."""

    origin: Origin
    held: Held
    task: Task[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    context: JobContext
    capture: Capture
    #: time limit in seconds; 0: none
    limit: float = 0.0
    #: seconds its result is kept; 0: not at all
    result_ttl: float = 0.0
    #: monotonic time when it began; 0: still waiting for a slot
    started: float = 0.0
    #: monotonic time by which it must end; 0: no limit
    deadline: float = 0.0
    stopped: Stopped = ""
    stopped_at: float = 0.0
    #: its outcome is decided; its function's later result is ignored
    settled: bool = False
    #: the executor that has it; None: it waits for the end of an earlier run of the same job
    executor: Executor | None = None
    #: on the loop: its asyncio task
    future: asyncio.Task[None] | None = None
    #: on the loop: its coroutine has taken its first step
    entered: bool = False
    #: in threads: the one that runs it
    thread: threading.Thread | None = None
    #: it is a request: a caller waits for the reply
    is_asked: bool = False
    #: it took results of its parents, passes its own on although none is kept, or has written checkpoints
    carries: bool = False
    #: its cell in the ledger; -1: none
    cell: int = -1
    #: the same job, claimed again by this process after this run lost its lease: it starts when this one has ended
    follower: Run | None = None
    #: OpenTelemetry span, if tracing is on
    span: Any = None
    noted_progress: tuple[float, str] | None = None
    #: its output or progress was written to the server
    is_noted: bool = False

    @property
    def is_too_late(self) -> bool:
        """Whether the deadline of a request has passed."""
        return self.context.deadline_at != 0.0 and time.monotonic() > self.context.deadline_at

    @property
    def passes(self) -> bool:
        """Whether another job takes its result."""
        return self.held.envelope is not None and self.held.envelope.passes

    @property
    def is_waiting(self) -> bool:
        """Whether its function has not been called yet."""
        return not (self.started if self.future is None else self.entered)

    def hangs(self, now: float) -> bool:
        """Whether it was interrupted and should have ended by now."""
        return self.stopped != "" and self.executor is not None and now - self.stopped_at > self.executor.patience


class Encoded(Struct, frozen=True, gc=False):
    """A result that was encoded where the function ran, in another process."""

    result: bytes
    not_kept: str = ""


class RemoteFailure(Exception):
    """An error raised in another process, as text: exception objects are not transferred."""

    def __init__(self, error: str, message: str, traceback: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.error = error
        self.message = message
        self.traceback = traceback
        #: No retry, by the task's filters (`retry_on`, `give_up_on`), which were applied in that process.
        self.permanent = permanent


class DeadlinePassed(Exception):
    """The deadline of a request passed before it started."""


class ProcessDied(Exception):
    """The process that ran the job was killed or crashed, because of this job or another one in it."""

    def __init__(self, message: str, *, among: int = 1) -> None:
        super().__init__(message)
        #: number of jobs in that process
        self.among = among
