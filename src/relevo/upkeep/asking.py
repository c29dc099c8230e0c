"""Calls the user's `still_there` hook of a pool. No answer does not count as "gone"."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from msgspec import Struct

from relevo.errors import OptionError
from relevo.pools.pool import Pool, StillThere
from relevo.pools.store import Entity
from relevo.store.plan import Ask, Steps
from relevo.text.legible import short, words_of
from relevo.upkeep.run import Run

log = logging.getLogger("relevo.purge")

#: Time limit of a call, in seconds: half of the time for which the lead lasts.
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

    def is_there(self, entity: Entity) -> Steps[bool | None]:
        """Whether the entity still exists; None: unknown."""
        hook = self._pool.still_there
        if hook is None:
            return True
        if self._unanswered >= PATIENCE:
            return None
        one = HookCall(self._pool.name, hook, entity)
        answer: bool | None = yield Ask(one.call, one.acall)
        yield from self._run.keep_lead(self._pool.keys)
        self._unanswered = self._unanswered + 1 if answer is None else 0
        if self._unanswered == PATIENCE:
            text = "pool %s: still_there failed %d times in a row; the others are left alone in this run"
            log.warning(text, self._pool.name, PATIENCE)
        return answer


class HookCall(Struct, frozen=True):
    """One call of a hook. None where it failed or did not answer."""

    pool: str
    hook: StillThere
    entity: Entity

    def call(self) -> bool | None:
        """Call the hook, blocking."""
        future = _in_a_thread(self._run)
        try:
            if not wait([future], ANSWER).done:
                raise _no_answer()
            return _answer(future.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # user code may raise anything
            self._log_failure(error)
            return None

    async def acall(self) -> bool | None:
        """Call the hook on the running event loop, or in a thread if it is a plain function, which may block."""
        limit = asyncio.timeout(ANSWER)
        try:
            async with limit:
                is_async = inspect.iscoroutinefunction(self.hook)
                in_a_thread = partial(_in_a_thread, self.hook, self.entity)
                answer = self.hook(self.entity) if is_async else await asyncio.wrap_future(in_a_thread())
                return _answer(await answer if inspect.isawaitable(answer) else answer)
        except (Exception, asyncio.CancelledError) as error:  # as above
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # this task is cancelled; else something the hook awaited was
                raise
            self._log_failure(_no_answer() if limit.expired() else error)
            return None

    def _run(self) -> Any:
        answer = self.hook(self.entity)
        return asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer

    def _log_failure(self, error: BaseException) -> None:
        why = short(f"{type(error).__name__}: {words_of(error)}", 500)
        log.warning("pool %s: unknown whether %s still exists: %s", self.pool, self.entity.id, why)
        log.debug("its traceback", exc_info=error)


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
