"""The store as the rest of relevo sees it: performs plans, blocking or on asyncio, and waits for jobs to end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from relevo.engine.inbox import Asked, AsyncInbox, Begin, BlockingInbox, End, Send
from relevo.engine.job import Record
from relevo.engine.job_store import attach
from relevo.errors import RelevoError
from relevo.store.aio import AsyncDriver
from relevo.store.blocking import BlockingDriver
from relevo.store.keys import AppKeys, QueueKeys
from relevo.store.plan import Plan
from relevo.store.source import Source

T = TypeVar("T")


class _OfLoop(NamedTuple):
    driver: AsyncDriver
    inbox: AsyncInbox
    #: Closing it closes the connections.
    end: AsyncGenerator[None, None]


class Client:
    """Opens connections when they are first used; each thread and each event loop has its own."""

    def __init__(
        self,
        url: str | None,
        keys: AppKeys,
        *,
        data_dir: Path,
        connect_timeout: float,
        call_timeout: float,
        server_check: str = "warn",
    ) -> None:
        self.source = Source(
            url,
            data_dir=data_dir,
            connect_timeout=connect_timeout,
            call_timeout=call_timeout,
            server_check=server_check,
        )
        self.blocking = BlockingDriver(self.source)
        self._keys = keys
        self._inbox = BlockingInbox(self.blocking, keys)
        self._pid = os.getpid()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _OfLoop] = weakref.WeakKeyDictionary()
        #: The loop of the last call: most programs have one.
        self._last: tuple[weakref.ref[asyncio.AbstractEventLoop], _OfLoop] | None = None

    def run(self, plan: Plan[T], *, patience: float | None = None, within: float | None = None) -> T:
        """Carry out a plan and block until it is done."""
        return self.blocking.perform(plan, patience=patience, within=within)

    def arun(self, plan: Plan[T], *, patience: float | None = None) -> Coroutine[Any, Any, T]:
        """Carry out a plan on the running event loop."""
        return self._here().driver.perform(plan, patience=patience)

    def wait(self, queue: QueueKeys, id: str, timeout: float | None, begin: Begin = attach) -> Record:
        """Block until a job has ended."""
        return self._inbox.wait(queue, id, timeout, begin)

    def await_end(
        self, queue: QueueKeys, id: str, timeout: float | None, begin: Begin = attach
    ) -> Coroutine[Any, Any, Record]:
        """Wait on the running event loop until a job has ended."""
        return self._here().inbox.wait(queue, id, timeout, begin)

    def ends(self, jobs: Sequence[tuple[QueueKeys, str]], timeout: float | None) -> Iterator[End]:
        """The ends of many jobs as they come, until the time is up."""
        return self._inbox.ends(jobs, timeout)

    def await_ends(self, jobs: Sequence[tuple[QueueKeys, str]]) -> AsyncGenerator[End, None]:
        """The same on the running event loop."""
        return self._here().inbox.ends(jobs)

    def inbox(self) -> AsyncInbox:
        """Where the running event loop waits for jobs."""
        return self._here().inbox

    def ask(self, queue: QueueKeys, asked: Asked, timeout: float, send: Send) -> Coroutine[Any, Any, Record | None]:
        """Send a plain request on the running event loop and wait for its record; None: no worker serves it."""
        return self._here().inbox.ask(queue, asked, timeout, send)

    def stop_waiting(self, id: str, thread: int, error: RelevoError | None = None) -> None:
        """Stop a thread's wait for a job, as if its timeout had passed, or with an error."""
        self._inbox.stop_waiting(id, thread, error)

    @property
    def late_replies(self) -> int:
        """Results that this process received when no caller waited for them any more."""
        return self._inbox.late + sum(here.inbox.late for here in self._loops.values())

    def driver(self) -> AsyncDriver:
        """The driver of the running event loop."""
        return self._here().driver

    def _here(self) -> _OfLoop:
        loop = asyncio.get_running_loop()
        if self._last is not None and self._last[0]() is loop and self._pid == os.getpid():
            return self._last[1]
        here = self._loops.get(loop)
        if here is None or self._pid != os.getpid():
            if self._pid != os.getpid():  # a forked child must not use its parent's sockets
                self._loops = weakref.WeakKeyDictionary()
                self._pid = os.getpid()
            driver = AsyncDriver(self.source)
            inbox = AsyncInbox(driver, self._keys)
            here = self._loops[loop] = _OfLoop(driver, inbox, self._until_end(loop, driver, inbox))
            with contextlib.suppress(StopIteration):  # up to its yield: from here on the loop closes it
                here.end.__anext__().send(None)
        self._last = weakref.ref(loop), here
        return here

    async def _until_end(
        self, loop: asyncio.AbstractEventLoop, driver: AsyncDriver, inbox: AsyncInbox
    ) -> AsyncGenerator[None, None]:
        """Closes the connections with the loop if `aclose` was not called: asyncio closes its async generators."""
        try:
            yield
        finally:
            self._loops.pop(loop, None)
            self._last = None
            await inbox.close()
            driver.close()
            await asyncio.sleep(0)  # the sockets are closed one step later

    def close(self) -> None:
        """Close the blocking connections."""
        self._inbox.close()
        self.blocking.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        here = self._loops.get(asyncio.get_running_loop())
        if here is not None:
            await here.end.aclose()
