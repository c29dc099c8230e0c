"""Errors and traces of jobs for Sentry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relevo.engine.verdicts import Verdict
from relevo.errors import ConfigurationError
from relevo.middleware.middleware import Call, Middleware

#: Headers that Sentry's own integrations use.
_HEADERS = ("sentry-trace", "baggage")
#: Seconds for a child process, which may be killed when it has nothing to do, to send what it captured.
_FLUSH = 2.0


class Sentry(Middleware):
    """Reports to Sentry the errors by which jobs fail for good, and continues the trace in which they were enqueued.

    >>> sentry_sdk.init(dsn=…, traces_sample_rate=0.1)                     # doctest: +SKIP
    >>> app.middleware(Sentry())                                           # doctest: +SKIP

    `each_attempt`: also errors after which the job is retried. `Retry`, `Snooze` and `Cancel` are none. Each attempt
    has a scope of its own with task, queue and job; what a task sets, such as `sentry_sdk.set_user(…)`, ends with it.
    """

    def __init__(self, *, each_attempt: bool = False) -> None:
        try:
            import sentry_sdk
        except ImportError as error:
            raise ConfigurationError("Sentry needs sentry-sdk: pip install sentry-sdk") from error
        self._sdk: Any = sentry_sdk
        self._each_attempt = each_attempt

    def enqueue(self, call: Call) -> Iterator[None]:
        """Take the trace."""
        sdk = self._sdk
        with sdk.start_span(op="queue.publish", name=call.target) as span:
            span.set_data("messaging.destination.name", call.queue)
            for name, text in zip(_HEADERS, (sdk.get_traceparent(), sdk.get_baggage()), strict=True):
                if text:
                    call.headers[name] = text
                else:
                    call.headers.pop(name, None)
            yield

    def attempt(self, call: Call) -> Iterator[None]:
        """Continue it, and report an error."""
        sdk = self._sdk
        with sdk.isolation_scope() as scope:
            self._describe(scope, call)
            found = {name: call.headers[name] for name in _HEADERS if name in call.headers}
            transaction = sdk.continue_trace(found, op="queue.process", name=call.target, source="task")
            with sdk.start_transaction(transaction):
                try:
                    yield
                except Exception as error:
                    if self._is_wanted(call, error):
                        sdk.capture_exception(error)
                    raise
                finally:
                    if call.task is not None and call.task.executor == "process":
                        sdk.flush(_FLUSH)

    @staticmethod
    def _describe(scope: Any, call: Call) -> None:
        job = call.job
        assert job is not None
        scope.clear_breadcrumbs()
        scope.set_tag("relevo.task", call.target)
        scope.set_tag("relevo.queue", call.queue)
        scope.set_context("relevo", {"job": job.id, "attempt": job.attempt, "retries_left": job.retries_left})

    def _is_wanted(self, call: Call, error: Exception) -> bool:
        assert call.job is not None
        if isinstance(error, Verdict):
            return False
        return self._each_attempt or call.job.retries_left <= 0 or _is_permanent(call, error)


def _is_permanent(call: Call, error: Exception) -> bool:
    """Whether no retry follows, whatever is left."""
    if call.task is None:
        return False
    options = call.task.options
    return isinstance(error, options.give_up_on) or not isinstance(error, options.retry_on or BaseException)
