"""What a running task can know about itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, overload

from msgspec import Struct

from relevo.checkpoints import Home, Iteration, Keeping
from relevo.checkpoints.loops import Source
from relevo.checkpoints.steps import Step
from relevo.errors import ConfigurationError, OptionError
from relevo.model.durations import Duration
from relevo.model.job import Attempt
from relevo.model.message import Headers, Message, message_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class JobContext(Struct, eq=False):
    """The job that is running here. Given by `current_job()`."""

    # Every attempt has one and few ask for it: a struct is made in a tenth of the time.
    id: str
    queue: str
    target: str
    #: 1 for the first run, one more for each run after it.
    attempt: int = 1
    #: What became of the runs before.
    history: tuple[Attempt, ...] = ()
    worker: str = ""
    name: str = ""
    group: str = ""
    tags: tuple[str, ...] = ()
    #: The workflow it belongs to: its id, and the queue in which that is kept; '': none.
    flow: str = ""
    #: The tick of the schedule that made it, in milliseconds of Unix time.
    tick_ms: int | None = None
    #: Of a message of the bus; see `message`.
    headers: Headers | None = None
    #: When a request must be answered, by the server's clock.
    deadline_ms: int | None = None
    #: The same by this machine's monotonic clock; 0: none.
    deadline_at: float = 0.0
    _progress: tuple[float, str] | None = None
    _stop_asked: bool = False
    #: Called when the job is to stop.
    _wakers: tuple[Callable[[], None], ...] = ()
    #: The worker is stopping: a good moment to end is welcome.
    _pause_asked: bool = False
    #: What checkpoints are written with: the app, and the token of the lease.
    _app: Any = None
    _token: int = 0
    _keeping: Keeping | None = None

    @property
    def tenant(self) -> str:
        """The group, by its other name."""
        return self.group

    @property
    def fence(self) -> int:
        """A number that is larger with every delivery of this job, whoever got it and why: a retry, a hand-over, a lost
        lease, a revival of the dead letter. A store that refuses a smaller number than it has seen for this job refuses
        a run that lost its lease and does not know it yet.
        """
        return self._token

    @property
    def message(self) -> Message | None:
        """The message of the bus that is being worked on; None in a plain task."""
        if self.headers is None:
            return None
        return message_of(self.id, self.target, self.attempt, self.group, self.deadline_ms, self.headers)

    @property
    def cancel_requested(self) -> bool:
        """Whether the job was asked to stop. It is interrupted at the same time; this tells clean-up code why."""
        return self._stop_asked

    def ask_to_stop(self) -> None:
        """Called by the worker when the job is to stop."""
        self._stop_asked = True
        for wake in self._wakers:
            wake()

    def when_stopped(self, wake: Callable[[], None]) -> None:
        """Have something called when the job is to stop, for code that waits: at once if it is already."""
        self._wakers = (*self._wakers, wake)
        if self._stop_asked:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """The wait is over."""
        self._wakers = tuple(one for one in self._wakers if one != wake)

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the job is, from 0 to 1. Cheap: it is written at most once a second."""
        if not _is_share(fraction):
            raise OptionError(f"progress: a share from 0 to 1 is needed, found {fraction!r:.80}")
        self._progress = (float(fraction), str(message)[:500])

    # checkpoints
    def step(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `fn` once per job: its result is kept, and when the job runs again it is returned without a call.

        The result travels as JSON, typed by the return annotation of `fn`, and is refused with a PayloadError if it
        would not come back equal. The name is the step's own in this job.

        >>> pages = current_job().step("fetch", fetch, url)  # doctest: +SKIP
        """
        result: R = Step(self._checkpoints(), name, fn).run(args, kwargs)
        return result

    @overload
    async def astep(self, name: str, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def astep(self, name: str, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    async def astep(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`step` for async code; `fn` may be a coroutine function or a plain one, which is called right here."""
        return await Step(self._checkpoints(), name, fn).arun(args, kwargs)

    def iterate(
        self, source: Source[T], *, key: Callable[[T], Any] | None = None, name: str = "items", every: Duration = "1s"
    ) -> Iteration[T]:
        """Loop over a source and keep the position: when the job runs again, it goes on after the last item.

        For `for` and for `async for`. The source is something to iterate over, or a function that is given the last
        position (None at first) and gives what comes after it. `key` gives the position of an item; without it items
        are counted. An item counts as worked on when the next one is asked for; the position is written at most once
        per `every` (0: after each item), when the job is to stop, and at the end. When the worker stops, the loop
        ends at once after the item in hand, and the job is handed back without spending an attempt.

        >>> for row in current_job().iterate(rows_after, key=lambda row: row.id): ...  # doctest: +SKIP
        """
        return Iteration(self._checkpoints(), source, key, name, every)

    def ask_to_pause(self) -> None:
        """Called when the worker is stopping: loops that keep their position end after the item in hand."""
        self._pause_asked = True
        if self._keeping is not None:
            self._keeping.wake()

    def _checkpoints(self) -> Keeping:
        if self._keeping is None:
            self._keeping = Keeping(self._home(), self.id, self._token, self._must_stop)
        return self._keeping

    def _home(self) -> Home:
        if self._app is None:
            raise ConfigurationError(
                f"job {self.id} has no checkpoints here, where no worker runs it; step and iterate need a worker"
            )
        return Home(self._app.client, self._app.keys_of(self.queue), self._app.settings.max_payload)

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
        raise ConfigurationError("current_job() was called outside a job; it works in code that a worker runs")
    return job
