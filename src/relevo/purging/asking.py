"""Somebody else's code is asked whether an entity still exists. Who cannot say has not said that it is gone."""

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
from relevo.model.legible import short, words_of
from relevo.pools import Pool
from relevo.purging.run import Ask, LockLost, Run
from relevo.store.plan import Call
from relevo.store.pools import Entity
from relevo.store.purging import hold

log = logging.getLogger("relevo.purge")

#: Seconds until a question counts as not answered: half of the time for which the lock is held without a word.
ANSWER = 30.0
#: So many questions in a row without an answer, and a pool's others are not asked in this run: each may take as long as
#: its time limit, and the purge of thousands would take hours.
PATIENCE = 5


class Asking:
    """The questions about one pool in one run."""

    def __init__(self, run: Run, pool: Pool) -> None:
        self._run = run
        self._pool = pool
        self._unanswered = 0

    def is_there(self, entity: Entity) -> Generator[Call[Any] | Ask, Any, bool | None]:
        """Whether it still exists; None: nobody knows."""
        if self._pool.still_there is None:
            return True
        if self._unanswered >= PATIENCE:
            return None
        answer: bool | None = yield Ask(self._pool, entity)
        if not self._run.dry_run and not (yield hold(self._pool.keys, self._run.me)):
            raise LockLost  # the answer took so long that somebody else purges by now
        self._unanswered = self._unanswered + 1 if answer is None else 0
        if self._unanswered == PATIENCE:
            text = "pool %s: still_there failed %d times in a row; the others are left alone in this run"
            log.warning(text, self._pool.name, PATIENCE)
        return answer


def asked(ask: Ask) -> bool | None:
    """Ask, and block meanwhile."""
    future = _in_a_thread(_said, ask)
    try:
        if not wait([future], ANSWER).done:
            raise _no_answer()
        return _answer(future.result())
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # somebody's code may raise anything
        _tell(ask, error)
        return None


async def aasked(ask: Ask) -> bool | None:
    """Ask on the running event loop; a plain function in a thread, for it may block."""
    limit = asyncio.timeout(ANSWER)
    try:
        async with limit:
            is_async = inspect.iscoroutinefunction(ask.hook)
            said = ask.hook(ask.entity) if is_async else await asyncio.wrap_future(_in_a_thread(ask.hook, ask.entity))
            return _answer(await said if inspect.isawaitable(said) else said)
    except (Exception, asyncio.CancelledError) as error:  # as above
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # it is us who shall end; else it was something the hook waited for
            raise
        _tell(ask, _no_answer() if limit.expired() else error)
        return None


def _said(ask: Ask) -> Any:
    said = ask.hook(ask.entity)
    return asyncio.run(_awaited(said)) if inspect.isawaitable(said) else said


async def _awaited(said: Any) -> Any:
    """It ends with its time, and its thread with it: nobody waits for it any longer."""
    limit = asyncio.timeout(ANSWER)
    try:
        async with limit:
            return await said
    except TimeoutError as error:
        raise (_no_answer() if limit.expired() else error) from None


def _in_a_thread(function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Call a function in a thread that nobody waits for: one that hangs must not keep the process from ending."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            future.set_result(context.run(function, *args))
        except BaseException as error:  # noqa: BLE001  # for whoever waits
            future.set_exception(error)

    threading.Thread(target=call, name="relevo still_there", daemon=True).start()
    return future


def _no_answer() -> TimeoutError:
    return TimeoutError(f"no answer in {ANSWER:g} s")


def _answer(said: Any) -> bool:
    if not isinstance(said, bool):
        raise OptionError(f"still_there says True or False, found {said!r:.60}")
    return said


def _tell(ask: Ask, error: BaseException) -> None:
    why = short(f"{type(error).__name__}: {words_of(error)}", 500)
    log.warning("pool %s: nobody knows whether %s still exists: %s", ask.pool.name, ask.entity.id, why)
    log.debug("its traceback", exc_info=error)
