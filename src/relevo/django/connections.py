"""What Django does around a request, done around an attempt: database connections, caches, the active translation.

A connection belongs to its thread. Around each attempt those that are too old or broken are closed, as at the start and
the end of a request: with `CONN_MAX_AGE = 0` (the default) an idle worker holds none.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.cache import close_caches
from django.db import connections, reset_queries

#: Connections of a test by alias, used by all attempts while the test drains its queue. Set by `relevo.django.testing`.
shared: dict[str, Any] = {}


def around(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a task, with Django's housekeeping around each call."""
    if getattr(func, "_relevo_around", False):
        return func
    wrapped = _async_around(func) if iscoroutinefunction(func) else _sync_around(func)
    wrapped._relevo_around = True  # type: ignore[attr-defined]
    return wrapped


def original(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function as it was given."""
    return func.__wrapped__ if getattr(func, "_relevo_around", False) else func  # type: ignore[attr-defined]


def _sync_around(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def attempt(*args: Any, **kwargs: Any) -> Any:
        begin()
        try:
            # In a copy of the context: a translation or time zone that it activates ends with it.
            return contextvars.copy_context().run(func, *args, **kwargs)
        finally:
            end()

    return attempt


def _async_around(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    async def attempt(*args: Any, **kwargs: Any) -> Any:
        async with OwnThread():
            if shared:
                await sync_to_async(begin)()
            return await func(*args, **kwargs)

    return attempt


class OwnThread(ThreadSensitiveContext):
    """The thread of one attempt for `sync_to_async`, made when first used, as Django's ASGI handler has per request.

    Its connections are closed with it. Unlike asgiref's, it does not block the event loop until a hanging call returns.
    """

    async def __aexit__(self, *_: object) -> None:
        executor: Executor | None = SyncToAsync.context_to_thread_executor.pop(self, None)
        if executor is not None:
            executor.submit(_leave)
            executor.shutdown(wait=bool(shared))
        if self.token:
            SyncToAsync.thread_sensitive_context.reset(self.token)


def begin() -> None:
    """Before an attempt, in its thread."""
    if shared:
        _use(shared)
        return
    reset_queries()  # which DEBUG would collect without end
    _close_old()


def end() -> None:
    """After an attempt, in its thread."""
    if shared:
        _forget(shared)
        return
    _close_old()
    close_caches()


def _leave() -> None:
    """The thread ends, and its connections with it."""
    if shared:
        _forget(shared)
        return
    connections.close_all()
    close_caches()


def _close_old() -> None:
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:  # the attempt was stopped in a transaction: nothing may go on in it
            _discard(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def _discard(connection: Any) -> None:
    if connection.connection is not None:
        connection.connection.close()
    del connections[connection.alias]


def _use(given: Mapping[str, Any]) -> None:
    for alias, connection in given.items():
        connections[alias] = connection


def _forget(given: Mapping[str, Any]) -> None:
    for alias in given:
        del connections[alias]
