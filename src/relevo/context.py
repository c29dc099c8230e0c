"""What a running task can know about itself."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from relevo.errors import ConfigurationError, OptionError
from relevo.model.job import Attempt


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
    _progress: tuple[float, str] | None = None
    _stop_asked: bool = False

    @property
    def tenant(self) -> str:
        """The group, by its other name."""
        return self.group

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wants this job to stop. Plain functions that run long should look now and then."""
        return self._stop_asked

    def ask_to_stop(self) -> None:
        """Called by the worker when the job is to stop."""
        self._stop_asked = True

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far the job is, from 0 to 1. Cheap: it is written at most once a second."""
        if not _is_share(fraction):
            raise OptionError(f"progress: a share from 0 to 1 is needed, found {fraction!r:.80}")
        self._progress = (float(fraction), str(message)[:500])

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
