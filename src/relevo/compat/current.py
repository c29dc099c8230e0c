"""The app that the functions of `relevo.compat` use, and the functions that it may run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from relevo.app import Relevo
from relevo.compat.failure_handlers import install_handler
from relevo.engine.backoff import Backoff
from relevo.engine.task import Task
from relevo.errors import ConfigurationError
from relevo.text.durations import Duration

__all__ = ["allow", "configure", "current_app"]

#: How long what is known of a finished task is kept: the seven days after which IFDB cleans up.
KEEP: Duration = "7d"
#: An import of games takes longer than the ten minutes that other tasks of relevo have.
TIMEOUT: Duration = "6h"


class _Current:
    """The app in use."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._app: Relevo | None = None
        self._tasks: dict[Callable[..., Any], Task[..., Any]] = {}
        self._options: dict[str, Any] = {}
        self.tz = "UTC"

    def use(self, app: Relevo, *, backoff: Backoff, tz: str, keep: Duration, timeout: Duration | None) -> None:
        options = {"backoff": backoff, "timeout": timeout, "result_ttl": keep, "failure_ttl": keep}
        with self._lock:
            self._app, self._options, self._tasks, self.tz = app, options, {}, tz
            app.engine.logs_done = True
            install_handler(app)

    @property
    def app(self) -> Relevo:
        with self._lock:
            if self._app is None:
                self.use(Relevo("default"), backoff=Backoff(), tz="UTC", keep=KEEP, timeout=TIMEOUT)
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
                known = app.function(func, trusted=not app.settings.allow).using(**self._options)
            self._tasks[func] = known
        return known


_current = _Current()


def current() -> _Current:
    """What `configure` has set."""
    return _current


def configure(
    app: Relevo | None = None,
    *,
    backoff: Any = None,
    tz: str = "UTC",
    keep: Duration = KEEP,
    timeout: Duration | None = TIMEOUT,
    **settings: Any,
) -> Relevo:
    """Set the app that `Enqueue`, `EnqueueOrGet` and `Worker` use; or the settings of a new app.

    By default it is an app named "default", with the settings of files and environment. `backoff` is the pause before
    a retry: the default doubles from 2 seconds, `Backoff.exponential("2000m", cap="60d")` is that of IFDB. `tz`
    is the time zone of `cron`, `keep` how long finished tasks are kept, `timeout` how long one may run (None: no
    limit).
    """
    if app is not None and settings:
        raise ConfigurationError(f"an app has its settings already; found also {', '.join(sorted(settings))}")
    _current.use(
        app or Relevo("default", **settings),
        backoff=Backoff() if backoff is None else Backoff.of(backoff),
        tz=tz,
        keep=keep,
        timeout=timeout,
    )
    return _current.app


def current_app() -> Relevo:
    """The app in use, for everything that this module does not offer: dead letters, stats, results."""
    return _current.app


def allow(*modules: str) -> None:
    """Let workers of this process run functions of these modules and their submodules, and no others."""
    engine = _current.app.engine
    engine.settings = msgspec.structs.replace(engine.settings, allow=(*engine.settings.allow, *modules))
