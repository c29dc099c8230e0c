"""The wake-up read: an idle worker blocks on the server and starts the job it is handed, without asking for it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from relevo.errors import StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.plan import Call
from relevo.store.replies import WrongNode, refusal
from relevo.store.wire import Wire
from relevo.worker.consumer import Consumer

log = logging.getLogger("relevo.worker")

#: Seconds one read blocks. With the margin and up to a second before the next connection, a worker whose connections
#: went silent works again within 14 s.
BLOCK = 10
MARGIN = 3.0


class Bell:
    """Listens for some consumers on a connection of its own: a blocked read would delay all other calls."""

    def __init__(
        self,
        driver: AsyncDriver,
        worker: str,
        consumers: Sequence[Consumer],
        on_open: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._driver = driver
        #: Called with whether there was a connection before.
        self._on_open = on_open
        self._consumers = {consumer.keys.bell(worker): consumer for consumer in consumers}
        self._read: tuple[bytes | int, ...] = (b"BLPOP", *self._consumers, BLOCK)
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        #: Why the present connection serves no longer.
        self._ended: asyncio.Future[None] = self._loop.create_future()
        #: Set when the last message that was on its way has been read.
        self._drained: asyncio.Event | None = None

    async def run(self) -> None:
        """Listen until cancelled."""
        try:
            while True:
                begun = self._loop.time()
                try:
                    await self._listen()
                except StoreError as error:
                    log.debug("bell: %s", error)
                    if not isinstance(error, WrongNode):
                        self._driver.forget()
                    elif self._driver.heed(error) and self._loop.time() - begun > 1:
                        continue  # at once; but not in a circle, as long as nodes disagree
                await asyncio.sleep(random.uniform(0.1, 1.0))
        finally:
            if self._wire is not None:
                self._wire.close()

    async def _listen(self) -> None:
        """Until the connection breaks, or the server refuses the read."""
        self._ended, was_open = self._loop.create_future(), self._wire is not None
        wire = self._wire = await self._driver.open(next(iter(self._consumers)), timeout=BLOCK + MARGIN)
        wire.on_reply = self._rung
        wire.on_closed = lambda: self._end(wire.closed)
        wire.post(self._read)
        self._on_open(was_open)
        for consumer in self._consumers.values():
            consumer.wake()  # it may have rung while no connection listened
        self._end(wire.closed)
        await self._ended

    def _end(self, error: StoreError | None) -> None:
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def drain(self) -> None:
        """Wait until nothing that was handed to us is on its way: no consumer gets anything after this."""
        if self._wire is None or self._wire.closed is not None:
            return
        self._drained = asyncio.Event()
        key = next(iter(self._consumers))
        try:
            await self._driver.perform(Call([b"RPUSH", key, b""]), patience=0)
            await self._driver.perform(Call([b"PEXPIRE", key, 1000]), patience=0)
            async with asyncio.timeout(1):
                await self._drained.wait()
        except (StoreError, TimeoutError):
            log.debug("bell: messages may still be on their way")

    def _rung(self, reply: list[bytes] | Exception | None) -> None:
        """Called by the connection itself: a job that was handed over starts without a detour by a task of ours."""
        assert self._wire is not None
        if isinstance(reply, Exception):
            self._end(refusal(str(reply)))
            self._wire.close()
            return
        if reply is not None:
            try:
                self._consumers[reply[0]].bell(reply[1])
            except Exception:  # a strange message must not end the connection
                log.exception("bell: %.60r cannot be taken", reply)
        if reply is not None and not reply[1] and self._drained is not None:
            self._drained.set()
        if reply is not None and reply[1][:1] == b"j":
            # No other job is handed over before the next turn has put this worker back on the list. That turn, which
            # settles a short job, is to leave first.
            self._loop.call_later(0.001, self._wire.post, self._read)
        else:
            self._wire.post(self._read)
