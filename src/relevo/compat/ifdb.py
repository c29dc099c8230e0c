"""The task queue of IFDB on relevo: `Enqueue`, `EnqueueOrGet` and `Worker`, as their callers know them.

    from relevo.compat import Enqueue, EnqueueOrGet, Worker, allow

    allow("games.tasks")                       # modules whose functions the worker may run
    Enqueue(CloneFile, 7, name="CloneUrl(7)", onfail=MarkBroken)

Options stand among the task's own keywords, as in IFDB; the rest of relevo keeps the two apart. A task with keywords of
these names is called by `Enqueue.using(priority=50)(func, name="its own")`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from relevo.compat import failure_handlers
from relevo.compat.current import allow, configure, current, current_app
from relevo.compat.one_by_one import TakenTask, execute_task, get_next_task
from relevo.compat.queued_task import CronTask, QueuedTask, plain
from relevo.engine.handle import Job
from relevo.engine.job_store import holder
from relevo.engine.task import Task
from relevo.errors import ConfigurationError, OptionError
from relevo.text.nearest import did_you_mean
from relevo.worker.child import START_ANEW, Order, run_on_loop, work
from relevo.workflows.steps import Step

__all__ = [
    "CronTask",
    "Enqueue",
    "EnqueueOrGet",
    "QueuedTask",
    "RedisTaskQueue",
    "TakenTask",
    "Worker",
    "allow",
    "configure",
    "current_app",
    "execute_task",
    "get_next_task",
    "task_queue",
]

_OPTIONS = ("cron", "dependency", "name", "onfail", "priority", "retries", "scheduled_time")


class _Enqueue:
    """`Enqueue` and `EnqueueOrGet`: called like functions."""

    def __init__(self, *, get: bool) -> None:
        self._get = get

    def __call__(self, func: Callable[..., Any], /, *argv: Any, **kwarg: Any) -> Any:
        """Enqueue a call: returns a QueuedTask; with `cron`, schedule it: returns a CronTask.

        `name`, `priority`, `retries`, `onfail`, `scheduled_time`, `dependency` and `cron` are options.
        """
        options = {name: kwarg.pop(name) for name in _OPTIONS if name in kwarg}
        if options:
            own = options.keys() & inspect.signature(func).parameters.keys()
            if own:
                raise ConfigurationError(
                    f"{', '.join(sorted(own))}: an option, and a parameter of {func.__name__} as well. "
                    f"Say which with Enqueue.using(<options>)({func.__name__}, <its own arguments>)"
                )
        return self._put(options, func, *argv, **kwarg)

    def using(self, **options: Any) -> Callable[..., Any]:
        """The same with the options given here; all keywords of the call are then the task's own."""
        for name in options:
            if name not in _OPTIONS:
                raise OptionError(f"unknown option {name!r}{did_you_mean(name, _OPTIONS)}")
        return partial(self._put, options)

    def _put(self, options: Mapping[str, Any], func: Callable[..., Any], /, *argv: Any, **kwarg: Any) -> Any:
        task = current().task(func).using(**_read(options))
        args, kwargs = tuple(map(plain, argv)), {name: plain(value) for name, value in kwarg.items()}
        name = options.get("name") or ""
        label = name or task.target.replace(":", ".")
        if options.get("cron") is not None:
            # One schedule of this name, however often it is declared; it first runs at its next tick.
            timed = re.sub(r"[\s:]+", "-", label)
            call: Step[Any, Any] = Step(task, args, kwargs, takes_result=False)
            return CronTask(current_app().schedule(timed, call, cron=options["cron"], tz=current().tz))
        if name:
            # Only EnqueueOrGet avoids a second job. The name stays with the first one, which it finds.
            task = task.using(name=name, on_conflict="keep" if self._get else "add")
        found = self._found(task, name)
        return QueuedTask(task.enqueue(*args, **kwargs) if found is None else found, label)

    def _found(self, task: Task[..., Any], name: str) -> Job[Any] | None:
        """The task of that name, where a new one would wait for a transaction: its id must be known now."""
        if not self._get or not name or not task.is_postponed:
            return None
        engine, queue = task.engine, task.options.queue
        id = engine.run(holder(engine.keys_of(queue), name))
        if not id:
            return None
        job: Job[Any] = Job(engine, id, queue, created=False)
        return job if QueuedTask(job, name).pending else None


Enqueue = _Enqueue(get=False)
EnqueueOrGet = _Enqueue(get=True)


def Worker(concurrency: int = 1) -> None:  # noqa: N802  # the name callers know
    """Run tasks in this process until SIGTERM or SIGINT, then finish the running one. Only from the main thread.

    One at a time, as the tasks of IFDB expect; `concurrency` is how many at once.
    """
    app = current_app()
    if not app.settings.allow and app.tasks.keys() <= {failure_handlers.HANDLER}:
        raise ConfigurationError(
            "this worker can run nothing: it calls functions of allowed modules only, and there are none. "
            'Call relevo.compat.allow("games.tasks") before Worker(), or set RELEVO_ALLOW=games.tasks'
        )
    while run_on_loop(work(app, Order(app=app.name, concurrency=concurrency, threads=concurrency))) == START_ANEW:
        pass


class RedisTaskQueue:
    """The same functions as methods of one object, under the names of IFDB's second task queue."""

    enqueue = staticmethod(Enqueue)
    enqueue_or_get = staticmethod(EnqueueOrGet)
    get_next_task = staticmethod(get_next_task)
    execute_task = staticmethod(execute_task)
    worker = staticmethod(Worker)


task_queue = RedisTaskQueue()


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under relevo's names."""
    read: dict[str, Any] = {name: options[name] for name in ("priority", "retries") if options.get(name) is not None}
    if options.get("dependency") is not None:
        read["depends_on"] = [_job_of(options["dependency"])]
    if options.get("scheduled_time") is not None:
        read["eta"] = options["scheduled_time"]
    if options.get("onfail") is not None:
        read |= failure_handlers.options_for(current_app(), options["onfail"])
    return read


def _job_of(dependency: Any) -> Any:
    """The job that a task waits for: what `Enqueue` returned, or its id. An unknown job is refused."""
    if isinstance(dependency, CronTask):
        raise OptionError(f"dependency: {dependency.name} is repeated, so it never ends")
    if isinstance(dependency, QueuedTask):
        return dependency.job
    return current_app().job(dependency) if isinstance(dependency, str) else dependency
