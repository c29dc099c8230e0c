"""The task queue of IFDB on relevo: `Enqueue`, `EnqueueOrGet` and `Worker`, as their callers know them.

    from relevo.compat import Enqueue, EnqueueOrGet, Worker, allow

    allow("games.tasks")                       # modules whose functions the worker may run
    Enqueue(CloneFile, 7, name="CloneUrl(7)", onfail=MarkBroken)

Options stand among the task's own keywords, as in IFDB; the rest of relevo keeps the two apart. A task with keywords of
these names is called by `Enqueue.using(priority=50)(func, name="its own")`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.engine.backoff import Backoff
from relevo.engine.handle import Job
from relevo.engine.job import State
from relevo.engine.settle import Failure
from relevo.engine.task import Task
from relevo.errors import ConfigurationError, OptionError, TargetError
from relevo.schedules.handle import Schedule
from relevo.text.nearest import did_you_mean
from relevo.worker.child import START_ANEW, Order, run_on_loop, work
from relevo.workflows.steps import Step

__all__ = ["CronTask", "Enqueue", "EnqueueOrGet", "QueuedTask", "Worker", "allow", "configure", "current_app"]

HANDLER = "relevo.compat.on_failure"
_ONFAIL = "onfail:"  # tag that holds the name of a job's failure handler
_OPTIONS = ("cron", "dependency", "name", "onfail", "priority", "retries", "scheduled_time")


class QueuedTask:
    """A task in the queue, as `Enqueue` returns it and `onfail` receives it."""

    __slots__ = ("id", "job", "name")

    def __init__(self, job: Job[Any], name: str) -> None:
        self.id = job.id
        self.job = job
        self.name = name

    def __repr__(self) -> str:
        return f"<QueuedTask {self.name} {self.id}>"

    def __str__(self) -> str:
        return self.id

    @property
    def status(self) -> str:
        """The state: scheduled, ready, running, done, dead, cancelled, expired, or unknown."""
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


class CronTask:
    """A repeated task, as `Enqueue(…, cron=…)` returns it."""

    __slots__ = ("id", "name", "schedule")

    def __init__(self, schedule: Schedule) -> None:
        self.id = self.name = schedule.name
        self.schedule = schedule

    def __repr__(self) -> str:
        return f"<CronTask {self.name}>"

    def __str__(self) -> str:
        return self.id

    @property
    def status(self) -> str:
        """scheduled or paused."""
        return "scheduled" if self.schedule.info().paused_ms is None else "paused"

    @property
    def pending(self) -> bool:
        """Always: it repeats until it is removed, whatever its runs do."""
        return True


class _Current:
    """The app that the functions of this module use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._app: Relevo | None = None
        self._tasks: dict[Callable[..., Any], Task[..., Any]] = {}
        self._backoff = Backoff()
        self.tz = "UTC"

    def use(self, app: Relevo, backoff: Backoff, tz: str) -> None:
        self._app, self._backoff, self._tasks, self.tz = app, backoff, {}, tz
        _install_handler(app)

    @property
    def app(self) -> Relevo:
        with self._lock:
            if self._app is None:
                self.use(Relevo("default"), Backoff(), "UTC")
            assert self._app is not None
            return self._app

    def task(self, func: Callable[..., Any] | Task[..., Any]) -> Task[..., Any]:
        """A function as a task, cached: reading a signature takes a while."""
        app = self.app
        if isinstance(func, Task):
            return func
        known = self._tasks.get(func)
        if known is None:
            known = next((task for task in app.tasks.values() if task.func is func), None)
            if known is None:
                # If `allow` is set, a job that no worker would run fails here, in its caller.
                known = app.function(func, trusted=not app.settings.allow).using(backoff=self._backoff)
            self._tasks[func] = known
        return known


_current = _Current()


def configure(app: Relevo | None = None, *, backoff: Any = None, tz: str = "UTC", **settings: Any) -> Relevo:
    """Set the app that `Enqueue`, `EnqueueOrGet` and `Worker` use; or the settings of a new app.

    By default it is an app named "default", with the settings of files and environment. `backoff` is the pause before
    a retry: the default doubles from 2 seconds, `Backoff.exponential("2000m", cap="60d")` is that of IFDB. `tz`
    is the time zone of `cron`.
    """
    if app is not None and settings:
        raise ConfigurationError(f"an app has its settings already; found also {', '.join(sorted(settings))}")
    _current.use(app or Relevo("default", **settings), Backoff() if backoff is None else Backoff.of(backoff), tz)
    return _current.app


def current_app() -> Relevo:
    """The app in use, for everything that this module does not offer: dead letters, stats, results."""
    return _current.app


def allow(*modules: str) -> None:
    """Let workers of this process run functions of these modules and their submodules, and no others."""
    engine = _current.app.engine
    engine.settings = msgspec.structs.replace(engine.settings, allow=(*engine.settings.allow, *modules))


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
        task = _current.task(func).using(**_read(options))
        name = options.get("name") or ""
        label = name or task.target.replace(":", ".")
        if options.get("cron") is not None:
            # One schedule of this name, however often it is declared; it first runs at its next tick.
            timed = re.sub(r"[\s:]+", "-", label)
            call: Step[Any, Any] = Step(task, argv, kwarg, takes_result=False)
            return CronTask(_current.app.schedule(timed, call, cron=options["cron"], tz=_current.tz))
        job = (task.using(name=name) if name else task).enqueue(*argv, **kwarg)
        if name and not job.created and not self._get:
            # Only EnqueueOrGet avoids a second job. The name stays with the first one, which it finds.
            job = task.using(name=name, unique=False).enqueue(*argv, **kwarg)
        return QueuedTask(job, label)


Enqueue = _Enqueue(get=False)
EnqueueOrGet = _Enqueue(get=True)


def Worker() -> None:  # noqa: N802  # the name callers know
    """Run tasks in this process until SIGTERM or SIGINT, then finish running jobs. Only from the main thread."""
    app = _current.app
    if not app.settings.allow and app.tasks.keys() <= {HANDLER}:
        raise ConfigurationError(
            "this worker can run nothing: it calls functions of allowed modules only, and there are none. "
            'Call relevo.compat.allow("games.tasks") before Worker(), or set RELEVO_ALLOW=games.tasks'
        )
    while run_on_loop(work(app, Order(app=app.name))) == START_ANEW:
        pass


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under relevo's names."""
    read: dict[str, Any] = {name: options[name] for name in ("priority", "retries") if options.get(name) is not None}
    if options.get("dependency") is not None:
        read["depends_on"] = [_job_of(options["dependency"])]
    if options.get("scheduled_time") is not None:
        read["eta"] = options["scheduled_time"]
    if options.get("onfail") is not None:
        read["on_failure"] = HANDLER
        read["tags"] = (_ONFAIL + _path_of(options["onfail"]),)
    return read


def _job_of(dependency: Any) -> Any:
    """The job that a task waits for: what `Enqueue` returned, or its id. An unknown job is refused."""
    if isinstance(dependency, CronTask):
        raise OptionError(f"dependency: {dependency.name} is repeated, so it never ends")
    return _current.app.job(dependency) if isinstance(dependency, str) else dependency


def _path_of(handler: Any) -> str:
    app = _current.app
    func = handler.func if isinstance(handler, Task) else handler
    return app.function(func, trusted=not app.settings.allow).target


def _install_handler(app: Relevo) -> None:
    @app.task(name=HANDLER, give_up_on=(TargetError,))
    def on_failure(failure: Failure) -> None:
        path = next((tag.removeprefix(_ONFAIL) for tag in failure.tags if tag.startswith(_ONFAIL)), "")
        handler = _handler(app, path)
        label = failure.name or failure.task.replace(":", ".")
        given = (QueuedTask(Job(app.engine, failure.job, failure.queue), label), _context(failure, label))
        result = handler(*given[: _takes(handler)])
        if inspect.iscoroutine(result):
            asyncio.run(result)


def _handler(app: Relevo, path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    if not app.engine.allows(module):
        raise TargetError(f"onfail {path!r:.100} is not in a module this app allows; add {module!r:.80} to `allow`")
    found = getattr(import_module(module), name)
    func: Callable[..., Any] = found.func if isinstance(found, Task) else found
    return app.function(func).func  # refuses a function that the module only imported


def _context(failure: Failure, label: str) -> dict[str, Any]:
    """The failure as a dict, with the arguments under both spellings that were in use."""
    module, _, function = failure.task.rpartition(":" if ":" in failure.task else ".")
    argv, kwarg = msgspec.json.decode(failure.args), msgspec.json.decode(failure.kwargs)
    return {
        "id": failure.job,
        "name": label,
        "module": module,
        "function": function,
        "argv": argv,
        "kwarg": kwarg,
        "args": argv,
        "kwargs": kwarg,
        "reason": failure.reason,
        "error": failure.message,
        "error_type": failure.error,
        "message": failure.message,
        "traceback": failure.traceback,
        "attempts": len(failure.attempts),
    }


def _takes(handler: Callable[..., Any]) -> int:
    """How many of (task, context) a handler takes."""
    count = 0
    for one in inspect.signature(handler).parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            return 2
        count += one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    return min(count, 2)
