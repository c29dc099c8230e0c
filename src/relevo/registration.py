"""Registration of tasks: what `@app.task` does with a function and its options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from relevo.engine.engine import Engine
from relevo.engine.options import ONE_JOB_ONLY, changed
from relevo.engine.targets import is_task_name, module_of, own_name, refuse_local
from relevo.engine.task import Task
from relevo.errors import ConfigurationError, TargetError
from relevo.limits import code_limits
from relevo.limits.code_limits import CodeLimits
from relevo.schedules.firing import Timetable, described
from relevo.schedules.schedule import TIMES

P = ParamSpec("P")
R = TypeVar("R")


class Decorator:
    """Only for type checkers: what `@app.task(...)` gives keeps the signature of the function."""

    @overload
    def __call__(self, func: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, func: Callable[..., Any], /) -> Any: ...


def registered(engine: Engine, func: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Task[..., Any]:
    """Register a function as a task, with its schedule and its limits."""
    if not callable(func):
        raise TargetError(f"@app.task needs a function, found {func!r:.80}")
    if isinstance(func, Task):
        raise TargetError(f"{func.target} is a task already; change its options with .using(…)")
    options = dict(options)  # a decorator may be used for several functions
    target = f"{module_of(func)}.{own_name(func)}" if name is None else name
    if not is_task_name(target):
        raise TargetError(f"a task's name is text without colons and spaces, found {target!r:.80}")
    times = {option: options.pop(option) for option in TIMES & options.keys()}
    limit = code_limits.taken(options)
    before = engine.tasks.get(target)
    if before is not None and getattr(before.func, "__qualname__", "") != getattr(func, "__qualname__", ""):
        raise ConfigurationError(f"two tasks are called {target!r}: give one of them another name=")
    chosen = changed(engine.default_options, options, refuse=ONE_JOB_ONLY)
    if chosen.executor == "process":
        refuse_local(func)
    task = engine.task_class(engine, func, target, chosen)
    if times:
        engine.part(Timetable).named[target] = described(engine, target, task, times, "code")
    engine.part(CodeLimits).add(task.options.queue, target, limit)
    engine.tasks[target] = task
    return task


def as_task(engine: Engine, func: Callable[..., Any]) -> Task[..., Any]:
    """The task that a caller means: a task, the function of one, or a plain function of an allowed module."""
    if isinstance(func, Task):
        if func.engine is not engine:
            raise TargetError(f"{func.target} is a task of the app {func.engine.name!r}: enqueue it there")
        return func
    known = next((task for task in engine.tasks.values() if task.func is func), None)
    return engine.function(func) if known is None else known
