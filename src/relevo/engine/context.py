"""The context of a running job, for its task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from msgspec import Struct

from relevo.checkpoints.keeping import Home, Keeping
from relevo.checkpoints.loops import Iteration, Source
from relevo.checkpoints.steps import Step
from relevo.engine.job import Attempt
from relevo.engine.lifespan import Lifespan
from relevo.engine.message import Headers, Message
from relevo.errors import ConfigurationError, OptionError
from relevo.text.durations import Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class JobContext(Struct, eq=False):
    """The job that is running here. Given by `current_job()`."""

    # Every attempt has one and few use it: a struct is created in a tenth of the time.
    id: str
    queue: str
    target: str
    #: 1 for the first run, one more for each run after it.
    attempt: int = 1
    #: The earlier attempts.
    history: tuple[Attempt, ...] = ()
    worker: str = ""
    name: str = ""
    #: The tenant of the job (the option `tenant`).
    tenant: str = ""
    tags: tuple[str, ...] = ()
    #: How many failures of this job, this attempt's included, would still be retried. 0: the last attempt.
    retries_left: int = 0
    #: The workflow it belongs to: its id and its queue; '': none.
    flow: str = ""
    #: The tick of the schedule that made it, in milliseconds of Unix time.
    tick_ms: int | None = None
    #: Of a bus message; see `message`.
    message_headers: Headers | None = None
    #: Deadline of a request, by the server's clock.
    deadline_ms: int | None = None
    #: The same by this machine's monotonic clock; 0: none.
    deadline_at: float = 0.0
    _headers: dict[str, str] | None = None
    _progress: tuple[float, str] | None = None
    _stop_asked: bool = False
    #: Called when the job must stop.
    _wakers: tuple[Callable[[], None], ...] = ()
    #: The worker is stopping: the job should end at its next checkpoint.
    _pause_asked: bool = False
    #: For checkpoints: the app, and the token of the lease.
    _engine: Any = None
    _token: int = 0
    _keeping: Keeping | None = None

    @property
    def fence(self) -> int:
        """A fencing token: grows with every delivery of this job (retry, hand-over, lost lease, revived dead letter).

        A database that refuses a smaller number than it has seen for this job also refuses a run that has lost its
        lease without having noticed.
        """
        return self._token

    @property
    def headers(self) -> dict[str, str]:
        """What middleware gave it where it was enqueued: texts by their names. What it makes has the same ones."""
        if self._headers is None:
            self._headers = {}
        return self._headers

    @property
    def state(self) -> Any:
        """What the app's lifespan gave to this worker process (`@app.lifespan`); None: the app has none."""
        return None if self._engine is None else self._engine.part(Lifespan).states.get(self.worker)

    @property
    def message(self) -> Message | None:
        """The bus message that is being handled; None in a plain task."""
        if self.message_headers is None:
            return None
        return Message(
            id=self.id,
            type=self.target,
            attempt=self.attempt,
            tenant=self.tenant,
            deadline_ms=self.deadline_ms,
            headers=self.message_headers,
        )

    @property
    def cancel_requested(self) -> bool:
        """Whether the job was asked to stop. It is also interrupted; clean-up code can find the reason here."""
        return self._stop_asked

    def ask_to_stop(self) -> None:
        """Called by the worker when the job must stop."""
        self._stop_asked = True
        for wake in self._wakers:
            wake()

    def when_stopped(self, wake: Callable[[], None]) -> None:
        """Register a callback for waiting code, called when the job must stop; at once if it must already."""
        self._wakers = (*self._wakers, wake)
        if self._stop_asked:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Remove the callback after the wait."""
        self._wakers = tuple(one for one in self._wakers if one != wake)

    def progress(self, fraction: float, message: str = "") -> None:
        """Report the progress of the job, from 0 to 1. Cheap: it is written at most once a second."""
        if not _is_share(fraction):
            raise OptionError(f"progress: a share from 0 to 1 is needed, found {fraction!r:.80}")
        self._progress = (float(fraction), str(message)[:500])

    # checkpoints
    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` once per job: its result is stored, and when the job runs again it is returned without a call.

        The result is stored as JSON, typed by the return annotation of `fn`; PayloadError if it would not come back
        equal. The name must be unique in this job.

        >>> pages = current_job().step("fetch", fetch, url)  # doctest: +SKIP
        """
        result: R = Step(self._checkpoints(), name, fn).run(args, kwargs)
        return result

    @overload
    async def astep(self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def astep(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def astep(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`step` for async code; `fn` may be a coroutine function or a plain one, called on the event loop."""
        return await Step(self._checkpoints(), name, fn).arun(args, kwargs)

    def iterate(
        self, source: Source[T], *, key: Callable[[T], Any] | None = None, name: str = "items", every: Duration = "1s"
    ) -> Iteration[T]:
        """Loop over a source and store the position: when the job runs again, it continues after the last item.

        For `for` and for `async for`. The source is an iterable, or a function that gets the last position (None at
        first) and returns the items after it. `key` gives the position of an item; without it items are counted. An
        item is finished when the next one is requested; the position is written at most once per `every` (0: after
        each item), when the job must stop, and at the end. When the worker stops, the loop ends after the current
        item, and the job is handed back without spending an attempt.

        >>> for row in current_job().iterate(rows_after, key=lambda row: row.id): ...  # doctest: +SKIP
        """
        return Iteration(self._checkpoints(), source, key, name, every)

    def ask_to_pause(self) -> None:
        """Called when the worker is stopping: loops with checkpoints end after the current item."""
        self._pause_asked = True
        if self._keeping is not None:
            self._keeping.wake()

    def _checkpoints(self) -> Keeping:
        if self._keeping is None:
            self._keeping = Keeping(self._home(), self.id, self._token, self._must_stop)
        return self._keeping

    def _home(self) -> Home:
        if self._engine is None:
            raise ConfigurationError(
                f"job {self.id} has no checkpoints here, where no worker runs it; step and iterate need a worker"
            )
        return Home(self._engine.client, self._engine.keys_of(self.queue), self._engine.settings.max_payload)

    def _must_stop(self) -> bool:
        return self._stop_asked or self._pause_asked

    def __repr__(self) -> str:
        return f"<JobContext {self.target} {self.id} attempt {self.attempt}>"


def _is_share(given: Any) -> bool:
    return isinstance(given, int | float) and 0 <= given <= 1


running: ContextVar[JobContext | None] = ContextVar("relevo_job", default=None)


def current_job() -> JobContext:
    """The job that is running here.

    >>> current_job().progress(0.5, "half of the files")  # doctest: +SKIP
    """
    job = running.get()
    if job is None:
        raise ConfigurationError(
            "current_job() was called outside a job; it works in code that a worker runs, "
            "and in tests inside `with relevo.testing.job_context():`"
        )
    return job
