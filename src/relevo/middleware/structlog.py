"""The context of structlog that arrives where the job runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

from relevo.errors import ConfigurationError
from relevo.middleware.middleware import Call, Middleware

_HEADER = "structlog"


class Structlog(Middleware):
    """Log lines of jobs carry what was bound with `structlog.contextvars` where they were enqueued, and the job itself.

    >>> app.middleware(Structlog("request_id", "user"))                   # doctest: +SKIP

    Names choose what travels; without any, all does. Jobs have `job`, `task` and `attempt` besides.
    """

    def __init__(self, *names: str) -> None:
        try:
            import structlog.contextvars
        except ImportError as error:
            raise ConfigurationError("Structlog needs structlog: pip install structlog") from error
        self._names = frozenset(names)
        self._bound = structlog.contextvars.bound_contextvars
        self._here = structlog.contextvars.get_contextvars

    def enqueue(self, call: Call) -> Iterator[None]:
        """Take what is bound here."""
        bound = {
            name: value
            for name, value in self._here().items()
            if (name in self._names if self._names else name not in _OF_JOBS)
        }
        if bound:
            call.headers[_HEADER] = json.dumps(bound, default=str, ensure_ascii=False)
        else:
            call.headers.pop(_HEADER, None)
        yield

    def attempt(self, call: Call) -> Iterator[None]:
        """Bind it."""
        assert call.job is not None
        with self._bound(**_read(call.headers.get(_HEADER, "")), **_of(call)):
            yield


_OF_JOBS = ("job", "task", "attempt")


def _of(call: Call) -> dict[str, object]:
    assert call.job is not None
    return dict(zip(_OF_JOBS, (call.job.id, call.target, call.job.attempt), strict=True))


def _read(text: str) -> dict[str, object]:
    """What travelled; other programs may have written anything there."""
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        return {}
    return {name: value for name, value in found.items() if name not in _OF_JOBS} if isinstance(found, dict) else {}
