"""What `Enqueue` returns: the id of the task, as text, and what is known of it."""

from __future__ import annotations

from typing import Any

from relevo.compat.current import current_app
from relevo.engine.handle import Job
from relevo.engine.job import State
from relevo.schedules.handle import Schedule


class QueuedTask(str):
    """A task in the queue, as `Enqueue` returns it and `onfail` receives it.

    It is its id: it equals it, and `json`, templates and databases write it. It can be pickled.
    """

    __slots__ = ("_job", "_queue", "name")

    _job: Job[Any] | None
    _queue: str
    #: The name it was given, or that of its function.
    name: str

    def __new__(cls, job: Job[Any], name: str) -> QueuedTask:
        """Of a job, by the name that people know."""
        return _queued(job.id, job.queue, name, job)

    def __repr__(self) -> str:
        return f"<QueuedTask {self.name} {self.id}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _queued, (self.id, self._queue, self.name)

    @property
    def id(self) -> str:
        """Its id. In a transaction, `EnqueueOrGet` may find at the commit that another task took the name before it:
        this is that one's id then.
        """
        return str(self) if self._job is None else self._job.id

    @property
    def job(self) -> Job[Any]:
        """For everything else that can be done with a job."""
        if self._job is None:
            self._job = Job(current_app().engine, str(self), self._queue)
        return self._job

    @property
    def status(self) -> str:
        """The state: scheduled, waiting, ready, running, done, dead, cancelled, expired, or unknown."""
        return self.job.state().value

    @property
    def pending(self) -> bool:
        """Whether it will run, or run again."""
        state = self.job.state()
        return not state.has_ended and state is not State.UNKNOWN

    @property
    def success(self) -> bool:
        """Whether it succeeded, as long as its record is kept."""
        return self.job.state() is State.DONE

    @property
    def fail(self) -> bool:
        """Whether it was dead-lettered, as long as its record is kept."""
        return self.job.state() is State.DEAD

    @property
    def log(self) -> str:
        """Its output and log lines, and its tracebacks."""
        return self.job.logs()


def _queued(id: str, queue: str, name: str, job: Job[Any] | None = None) -> QueuedTask:
    made = str.__new__(QueuedTask, id)
    made._queue, made.name, made._job = queue, name, job
    return made


class CronTask(str):
    """A repeated task, as `Enqueue(…, cron=…)` returns it. It is its name, by which its schedule is known."""

    __slots__ = ()

    def __new__(cls, schedule: Schedule) -> CronTask:
        """Of a schedule."""
        return str.__new__(cls, schedule.name)

    def __repr__(self) -> str:
        return f"<CronTask {self.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _repeated, (self.name,)

    @property
    def id(self) -> str:
        """Its name."""
        return str(self)

    @property
    def name(self) -> str:
        """The name of its schedule."""
        return str(self)

    @property
    def schedule(self) -> Schedule:
        """For everything else that can be done with a schedule."""
        return current_app().schedules.get(self.name)

    @property
    def status(self) -> str:
        """scheduled or paused."""
        return "scheduled" if self.schedule.info().paused_ms is None else "paused"

    @property
    def pending(self) -> bool:
        """Always: it repeats until it is removed, whatever its runs do."""
        return True


def _repeated(name: str) -> CronTask:
    return str.__new__(CronTask, name)


def plain(value: Any) -> Any:
    """An argument of a task: what `Enqueue` returned goes as the id that it is."""
    return str(value) if isinstance(value, QueuedTask | CronTask) else value
