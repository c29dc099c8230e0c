"""Calls the user's `still_there` hook of a pool. No answer does not count as "gone"."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any

from relevo.errors import OptionError
from relevo.pools.pool import Pool
from relevo.pools.store import Entity
from relevo.store.plan import Call
from relevo.text.legible import short, words_of
from relevo.upkeep.run import Ask, LockLost, Run
from relevo.upkeep.store import hold

log = logging.getLogger("relevo.purge")

#: Time limit of a call, in seconds: half of the TTL of the purge lock.
ANSWER = 30.0
#: After this many failed calls in a row the hook is not called again for the pool in this run: at up to the time limit
#: each, the purge of thousands would take hours.
PATIENCE = 5


class HookCalls:
    """The hook calls for one pool in one run."""

    def __init__(self, run: Run, pool: Pool) -> None:
        self._run = run
        self._pool = pool
        self._unanswered = 0

    def is_there(self, entity: Entity) -> Generator[Call[Any] | Ask, Any, bool | None]:
        """Whether the entity still exists; None: unknown."""
        if self._pool.still_there is None:
            return True
        if self._unanswered >= PATIENCE:
            return None
        answer: bool | None = yield Ask(self._pool, entity)
        if not self._run.dry_run and not (yield hold(self._pool.keys, self._run.me)):
            raise LockLost  # the hook took so long that another purge took over
        self._unanswered = self._unanswered + 1 if answer is None else 0
        if self._unanswered == PATIENCE:
            text = "pool %s: still_there failed %d times in a row; the others are left alone in this run"
            log.warning(text, self._pool.name, PATIENCE)
        return answer


def call_hook(ask: Ask) -> bool | None:
    """Call the hook, blocking."""
    future = _in_a_thread(_call, ask)
    try:
        if not wait([future], ANSWER).done:
            raise _no_answer()
        return _answer(future.result())
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # user code may raise anything
        _log_failure(ask, error)
        return None


async def acall_hook(ask: Ask) -> bool | None:
    """Call the hook on the running event loop, or in a thread if it is a plain function, which may block."""
    limit = asyncio.timeout(ANSWER)
    try:
        async with limit:
            is_async = inspect.iscoroutinefunction(ask.hook)
            answer = ask.hook(ask.entity) if is_async else await asyncio.wrap_future(_in_a_thread(ask.hook, ask.entity))
            return _answer(await answer if inspect.isawaitable(answer) else answer)
    except (Exception, asyncio.CancelledError) as error:  # as above
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # this task is cancelled; else something the hook awaited was
            raise
        _log_failure(ask, _no_answer() if limit.expired() else error)
        return None


def _call(ask: Ask) -> Any:
    answer = ask.hook(ask.entity)
    return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer


async def _awaited(answer: Any) -> Any:
    """Await with the time limit, so that the thread ends when no caller waits for it any longer."""
    limit = asyncio.timeout(ANSWER)
    try:
        async with limit:
            return await answer
    except TimeoutError as error:
        raise (_no_answer() if limit.expired() else error) from None


def _in_a_thread(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call a function in a daemon thread: a call that hangs must not keep the process from exiting."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            future.set_result(context.run(function, *args))
        except BaseException as error:  # noqa: BLE001  # passed to the caller
            future.set_exception(error)

    threading.Thread(target=call, name="relevo still_there", daemon=True).start()
    return future


def _no_answer() -> TimeoutError:
    return TimeoutError(f"no answer in {ANSWER:g} s")


def _answer(answer: Any) -> bool:
    if not isinstance(answer, bool):
        raise OptionError(f"still_there must return True or False, found {answer!r:.60}")
    return answer


def _log_failure(ask: Ask, error: BaseException) -> None:
    why = short(f"{type(error).__name__}: {words_of(error)}", 500)
    log.warning("pool %s: unknown whether %s still exists: %s", ask.pool.name, ask.entity.id, why)
    log.debug("its traceback", exc_info=error)
