"""Waiting for jobs to end: woken, not polled, on one connection per process whatever the number of waiters.

A waiter leaves the name of this process' channel with the job (`engine/wait_for_end.lua`), in the same step that looks
whether the job has ended already, so that no end can fall between looking and waiting. The script that ends the job
publishes its record there. A channel keeps nothing: when the connection breaks, all waiters attach
again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from relevo.engine.job import Record, State, read_record
from relevo.engine.job_events import MARK, RENEW_AFTER, Listeners
from relevo.engine.job_store import attach, attach_all
from relevo.engine.turn import fitting
from relevo.errors import OutcomeUnknown, RelevoError, ResultTimeout, ServerUnavailable, StoreError, UnknownJob
from relevo.store.aio import AsyncDriver
from relevo.store.blocking import BlockingDriver
from relevo.store.keys import AppKeys, QueueKeys
from relevo.store.link import Link
from relevo.store.plan import Call, Plan
from relevo.store.replies import ConnectionLost
from relevo.store.wire import Wire

log = logging.getLogger("relevo.inbox")

Begin: TypeAlias = Callable[[QueueKeys, str, bytes], Plan[Record | bool | None]]
"""Takes the queue, the job and our channel; gives what `attach` gives: the record, True (wait), or None (no job)."""


class Asked(Protocol):
    """A plain request of the bus."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def body(self) -> bytes:
        """Its body, which bounds how many are sent together."""


Send: TypeAlias = Callable[[QueueKeys, bytes, Sequence[Any], str], Call[list[int]]]
"""Takes the queue, our channel, requests and the numbers of earlier tries; stores them (`bus.message_store.ask`)."""

#: The place of a job among those that are waited for, and its record; None: there is no such job.
End: TypeAlias = tuple[int, Record | None]

#: A connection that carries no message for so long is asked whether it still lives.
PING_EVERY = 5.0
ID_LENGTH = 20
#: What `ask` says of a request that was carried out and of which nothing is left.
GONE = 2
#: Seconds for an answer that is on its way on another connection.
LAST_WORD = 1.0
#: Requests that leave together, at the most.
TOGETHER = 100
#: Ends that do not count as late: a caller that gave up cancels the job, or the worker found the deadline passed.
_NO_ANSWER = (b'{"state":"cancelled"', b'{"state":"expired"')
_ANSWERS = (State.DONE, State.DEAD)


class AsyncInbox:
    """Waits on an event loop."""

    def __init__(self, driver: AsyncDriver, keys: AppKeys) -> None:
        self._driver = driver
        self._channel = keys.inbox(f"{os.getpid():x}{secrets.token_hex(4)}")
        self._waiting: dict[str, _Awaited] = {}
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._wire: Wire | None = None
        #: How often the connection was opened, and the last of these after which all waiters were attached again.
        self._openings = 0
        self._attached = 0
        self._broken = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        #: Who listens to events of jobs; and when workers were last called for them, by queue.
        self.listeners = Listeners()
        self._called: dict[str, float] = {}
        #: Requests that gather while others are being sent.
        self._crowds: dict[QueueKeys, _Crowd] = {}
        self._sending: set[asyncio.Task[None]] = set()
        #: Records that arrived after their waiters had gone.
        self.late = 0

    async def wait(self, queue: QueueKeys, id: str, timeout: float | None, begin: Begin = attach) -> Record:
        """The record of a job when it has ended. `begin` leaves our name with the job; it may make the job, too."""
        if self._wire is None or self._wire.closed is not None:
            await self._open_within(timeout, id)
        future: asyncio.Future[Record] = self._loop.create_future()
        awaited = self._waiting.setdefault(id, _Awaited(queue))
        awaited.futures.append(future)
        timer: asyncio.TimerHandle | None = None
        openings = self._openings
        try:
            if timeout is not None:
                timer = self._loop.call_later(timeout, _too_late, future, id, timeout)
            await self._begin(queue, id, begin, future, timeout)
            await self._has_begun(id, awaited, openings, timeout)
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            if future.done() and not future.cancelled():
                future.exception()  # retrieved, so that asyncio does not log it: another error was raised first
            awaited.futures.remove(future)
            if not awaited.futures:
                del self._waiting[id]

    @property
    def channel(self) -> bytes:
        """The channel of this process."""
        return self._channel

    async def ready(self) -> None:
        """Listen, if that is not so yet."""
        if self._wire is None or self._wire.closed is not None:
            await self._open()

    def calls_workers(self, queue: str) -> bool:
        """Whether it is time to call the workers of a watched queue: at first, and for those that came since."""
        now = self._loop.time()
        if now < self._called.get(queue, 0.0) + RENEW_AFTER / 2:
            return False
        self._called[queue] = now
        return True

    def forget_calls(self, queue: str) -> None:
        """A watch has ended: if it was the last one, workers stop publishing, and the next watch must call them."""
        if not self.listeners.any_of(queue):
            self._called.pop(queue, None)

    async def ends(self, jobs: Sequence[tuple[QueueKeys, str]]) -> AsyncGenerator[End, None]:
        """The ends of many jobs, as they come: the place of each in `jobs`, and its record; None: no such job."""
        await self.ready()
        ended: asyncio.Queue[int] = asyncio.Queue()
        futures: list[asyncio.Future[Record]] = [self._loop.create_future() for _ in jobs]
        openings = self._openings
        for place, ((queue, id), future) in enumerate(zip(jobs, futures, strict=True)):
            future.add_done_callback(partial(_note_end, ended, place))
            self._waiting.setdefault(id, _Awaited(queue)).futures.append(future)
        attaching = self._loop.create_task(self._attach_each(jobs, openings), name="relevo as_completed")
        attaching.add_done_callback(partial(_note_failure, ended))
        try:
            for _ in jobs:
                place = await ended.get()
                if place < 0:
                    await attaching  # raises what it failed with
                error = futures[place].exception()
                if error is not None and not isinstance(error, UnknownJob):
                    raise error
                yield place, None if error else futures[place].result()
        finally:
            attaching.cancel()
            for (_, id), future in zip(jobs, futures, strict=True):
                future.cancel()
                self._waiting[id].futures.remove(future)
                if not self._waiting[id].futures:
                    del self._waiting[id]

    async def _attach_each(self, jobs: Sequence[tuple[QueueKeys, str]], openings: int) -> None:
        for start in range(0, len(jobs), TOGETHER):
            part = [(queue, id) for queue, id in jobs[start : start + TOGETHER] if id in self._waiting]
            for (_, id), found in zip(part, await self._driver.perform(attach_all(part, self._channel)), strict=True):
                self._settle(id, found)
            for _, id in part:
                if id in self._waiting:
                    await self._has_begun(id, self._waiting[id], openings)

    async def ask(self, queue: QueueKeys, asked: Asked, timeout: float, send: Send) -> Record | None:
        """Send a plain request and wait for its record; None: no worker serves it.

        One call per queue is under way; requests made during it are sent together with the next.
        """
        if self._wire is None or self._wire.closed is not None:
            await self._open_within(timeout, asked.id)
        awaited = self._waiting[asked.id] = _Awaited(queue)
        future: asyncio.Future[Any] = self._loop.create_future()
        awaited.futures.append(future)
        timer = self._loop.call_later(timeout, _too_late, future, asked.id, timeout)
        crowd = self._crowds.get(queue)
        if crowd is None:
            crowd = self._crowds[queue] = _Crowd()
        row = _Asking(asked, future, awaited, self._loop.time() + timeout)
        try:
            crowd.rows.append(row)
            if not crowd.is_busy:
                crowd.is_busy = True
                self._go_on(queue, crowd, send)
            found: Record | None = await future
            return found
        finally:
            timer.cancel()
            if future.done() and not future.cancelled():
                future.exception()
            del self._waiting[asked.id]

    def _go_on(self, queue: QueueKeys, crowd: _Crowd, send: Send) -> None:
        """Send the requests that have gathered, if any."""
        if crowd.rows:
            count = fitting(len(row.asked.body) for row in crowd.rows[:TOGETHER])
            rows, crowd.rows = crowd.rows[:count], crowd.rows[count:]
            task = self._loop.create_task(self._send(queue, rows, send), name="relevo requests")
            task.add_done_callback(lambda _: self._go_on(queue, crowd, send))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        else:
            crowd.is_busy = False

    async def _send(self, queue: QueueKeys, rows: list[_Asking], send: Send) -> None:
        openings = self._openings
        before, give_up = "", None
        while rows := [row for row in rows if not row.future.done()]:
            # Not beyond the time of the first to give up: a request that no one waits for is not sent again.
            left = min(row.until for row in rows) - self._loop.time()
            try:
                call = send(queue, self._channel, [row.asked for row in rows], before)
                codes = await self._driver.perform(call, patience=min(max(0.0, left), self._driver.call_timeout))
                break
            except ServerUnavailable as error:
                before = error.tries if isinstance(error, OutcomeUnknown) else before
                give_up = give_up or self._loop.time() + self._driver.call_timeout
                if self._loop.time() < give_up:
                    await asyncio.sleep(random.uniform(0.02, 0.1))
                    continue
                for row in rows:
                    row.fail(error)
            except StoreError as error:
                for row in rows:
                    row.fail(error)
        else:
            return
        for row, code in zip(rows, codes, strict=True):
            row.awaited.has_begun = True
            if not code and not row.future.done():
                row.future.set_result(None)
        try:
            for row, code in zip(rows, codes, strict=True):
                if code == GONE:
                    await self._settle_gone(row.asked.id, row.future)
                elif openings != self._openings:
                    await self._has_begun(row.asked.id, row.awaited, openings)
        except StoreError as error:
            for row in rows:
                row.fail(error)

    async def _begin(
        self, queue: QueueKeys, id: str, begin: Begin, future: asyncio.Future[Record], timeout: float | None
    ) -> None:
        try:
            found = await self._driver.perform(begin(queue, id, self._channel), within=timeout)
        except ServerUnavailable:
            if future.done():  # the answer is here, only its acknowledgement is not
                return
            raise
        if found is None and begin is not attach:
            await self._settle_gone(id, future)
        else:
            self._settle(id, found)

    async def _settle_gone(self, id: str, future: asyncio.Future[Any]) -> None:
        """It was stored by an earlier try and has ended: the message that says so comes now, or never."""
        await asyncio.wait([future], timeout=LAST_WORD)
        self._settle(id, None)

    async def _has_begun(self, id: str, awaited: _Awaited, openings: int, timeout: float | None = None) -> None:
        """Note that our channel stands with the job.

        If the connection was opened again since `openings`, an end published before that was lost, and the other
        waiters were attached again without this one.
        """
        awaited.has_begun = True
        if openings != self._openings and not all(future.done() for future in awaited.futures):
            again = attach(awaited.queue, id, self._channel)
            self._settle(id, await self._driver.perform(again, within=timeout))

    def _settle(self, id: str, found: Record | bool | None) -> None:
        """Apply the answer of `attach`: a record, True (wait), or None (no such job)."""
        if found is True or id not in self._waiting:
            return
        for future in self._waiting[id].futures:
            if future.done():
                continue
            if isinstance(found, Record):
                future.set_result(found)
            else:
                future.set_exception(UnknownJob(f"no job {id}: it never was, or its record has ended"))

    def _message(self, _channel: bytes, payload: bytes) -> None:
        if payload.startswith(MARK):
            self.listeners.heard(payload)
            return
        id = payload[:ID_LENGTH].decode(errors="replace")
        if id in self._waiting:
            record = _readable(payload)
            if record is not None:
                self._settle(id, record)
        elif not payload.startswith(_NO_ANSWER, ID_LENGTH):
            self.late += 1

    async def _open_within(self, timeout: float | None, id: str) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._open()
        except TimeoutError:
            raise ResultTimeout(f"job {id}: the server did not answer within {timeout:g} s") from None

    async def _open(self) -> None:
        async with self._opening:
            if self._wire is not None and self._wire.closed is None:
                return
            wire = await self._driver.open(self._channel)
            wire.on_message = self._message
            wire.on_closed = self._broken.set
            await wire.request((b"SUBSCRIBE", self._channel))
            self._wire = wire
            self._openings += 1
            if not any(awaited.has_begun for awaited in self._waiting.values()):
                self._attached = self._openings  # no waiter missed anything while it was away
            if self._keeper is None or self._keeper.done():
                self._keeper = asyncio.create_task(self._keep(), name="relevo inbox")

    async def _keep(self) -> None:
        """While callers wait, check that the connection lives; after a break attach all of them again."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY):
                    await self._broken.wait()
            self._broken.clear()
            if not self._waiting and not self.listeners:
                continue
            try:
                if self._wire is None or self._wire.closed is not None:
                    self._driver.forget()
                    await self._open()
                elif self._attached == self._openings:
                    await self._wire.request((b"PING",))
                    if await self._driver.has_moved(self._wire, self._channel):
                        self._wire.close()  # a node without slots may leave the cluster, and receive no more messages
                    continue
                # Also if a new waiter opened it: earlier waiters do not know that it was away.
                openings = self._openings
                for id, awaited in list(self._waiting.items()):
                    if not awaited.has_begun:
                        continue  # its job may not be there yet
                    self._settle(id, await self._driver.perform(attach(awaited.queue, id, self._channel)))
                self._attached = openings
            except StoreError as error:
                log.debug("inbox: %s", error)
                await asyncio.sleep(random.uniform(0.1, 0.3))
                self._broken.set()

    async def close(self) -> None:
        """Stop listening."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._wire is not None:
            self._wire.close()


def _note_end(ended: asyncio.Queue[int], place: int, future: asyncio.Future[Record]) -> None:
    if not future.cancelled():
        future.exception()  # read later, or not at all
        ended.put_nowait(place)


def _note_failure(ended: asyncio.Queue[int], attaching: asyncio.Task[None]) -> None:
    if not attaching.cancelled() and attaching.exception() is not None:
        ended.put_nowait(-1)


class _Awaited:
    """A job that callers on this loop wait for."""

    __slots__ = ("futures", "has_begun", "queue")

    def __init__(self, queue: QueueKeys) -> None:
        self.queue = queue
        #: Our name stands with the job.
        self.has_begun = False
        #: One for each waiter: the first to give up must not cancel the others.
        self.futures: list[asyncio.Future[Record]] = []


def _readable(message: bytes) -> Record | None:
    """The content of a message about a job; None: another program wrote it, or a newer version."""
    try:
        message[:ID_LENGTH].decode()
        return read_record(message[ID_LENGTH:])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        log.warning("inbox: a message cannot be read and is left out: %.60r", message)
        return None


class _Asking(NamedTuple):
    """A request on its way."""

    asked: Asked
    future: asyncio.Future[Any]
    awaited: _Awaited
    #: When its caller gives up, by the loop's clock.
    until: float

    def fail(self, error: RelevoError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class _Crowd:
    """Requests to one queue."""

    __slots__ = ("is_busy", "rows")

    def __init__(self) -> None:
        #: One call is under way.
        self.is_busy = False
        self.rows: list[_Asking] = []


def _too_late(future: asyncio.Future[Record], id: str, timeout: float) -> None:
    if not future.done():
        future.set_exception(ResultTimeout(f"job {id} has not ended within {timeout:g} s; it goes on"))


class BlockingInbox:
    """Waits in threads; one daemon thread listens while there are waiters."""

    def __init__(self, driver: BlockingDriver, keys: AppKeys) -> None:
        self._driver = driver
        self._keys = keys
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._channel = self._keys.inbox(f"{os.getpid():x}{secrets.token_hex(4)}")
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: dict[str, list[_Slot]] = {}
        self._listener: threading.Thread | None = None
        self._subscribed = False
        #: How often the connection was opened.
        self._openings = 0
        #: Records that arrived after their waiters had gone.
        self.late = 0

    def wait(self, queue: QueueKeys, id: str, timeout: float | None, begin: Begin = attach) -> Record:
        """The record of a job when it has ended. `begin` leaves our name with the job; it may make the job, too."""
        if self._pid != os.getpid():
            self._renew()
        deadline = None if timeout is None else time.monotonic() + timeout
        slot = _Slot(queue)
        with self._lock:
            self._waiting.setdefault(id, []).append(slot)
            if not self._listens(deadline):
                self._leave(id, slot)
                raise ResultTimeout(f"job {id} has not ended within {timeout:g} s; it goes on")
            openings = self._openings
        try:
            self._begin(queue, id, begin, slot, deadline)
            with self._lock:
                slot.has_begun = True
                was_away = openings != self._openings and not slot.event.is_set()
            if was_away:  # and the listener did not attach this waiter again
                self._settle(id, self._driver.perform(attach(queue, id, self._channel), within=_left(deadline)))
            if not slot.event.wait(_left(deadline)) or slot.was_stopped:
                if slot.error is not None:
                    raise slot.error
                raise ResultTimeout(f"job {id} has not ended within {timeout:g} s; it goes on")
        finally:
            with self._lock:
                self._leave(id, slot)
        if slot.record is None:
            raise UnknownJob(f"no job {id}: it never was, or its record has ended")
        return slot.record

    def ends(self, jobs: Sequence[tuple[QueueKeys, str]], timeout: float | None) -> Iterator[End]:
        """The ends of many jobs, as they come: the place of each in `jobs`, and its record; None: there is no such job.

        Ends early when the time is up.
        """
        if self._pid != os.getpid():
            self._renew()
        deadline = None if timeout is None else time.monotonic() + timeout
        ended: SimpleQueue[int] = SimpleQueue()
        slots = [_Slot(queue, _Bell(ended, place)) for place, (queue, _) in enumerate(jobs)]
        with self._lock:
            for slot, (_, id) in zip(slots, jobs, strict=True):
                self._waiting.setdefault(id, []).append(slot)
            if not self._listens(deadline):
                self._leave_all(jobs, slots)
                return
            openings = self._openings
        try:
            for start in range(0, len(jobs), TOGETHER):
                part = jobs[start : start + TOGETHER]
                self._attach_part(part, slots[start : start + TOGETHER], openings)
            for _ in jobs:
                place = ended.get(timeout=_left(deadline))
                if slots[place].was_stopped:
                    if (error := slots[place].error) is not None:
                        raise error
                    return
                yield place, slots[place].record
        except Empty:
            return
        finally:
            with self._lock:
                self._leave_all(jobs, slots)

    def _attach_part(self, jobs: Sequence[tuple[QueueKeys, str]], slots: Sequence[_Slot], openings: int) -> None:
        for (_, id), found in zip(jobs, self._driver.perform(attach_all(jobs, self._channel)), strict=True):
            self._settle(id, found)
        with self._lock:
            for slot in slots:
                slot.has_begun = True
            was_away = openings != self._openings
        if was_away:  # and these were passed over when the others were attached again
            for (_, id), found in zip(jobs, self._driver.perform(attach_all(jobs, self._channel)), strict=True):
                self._settle(id, found)

    def _leave_all(self, jobs: Sequence[tuple[QueueKeys, str]], slots: Sequence[_Slot]) -> None:
        for slot, (_, id) in zip(slots, jobs, strict=True):
            self._leave(id, slot)

    def _listens(self, deadline: float | None) -> bool:
        """Start to listen, and wait until the server knows it; False: not before the deadline. Holds the lock."""
        if self._listener is None:
            self._listener = threading.Thread(target=self._listen, name="relevo inbox", daemon=True)
            self._listener.start()
        while not self._subscribed:
            if not self._changed.wait(_left(deadline)):
                return False
        return True

    def _begin(self, queue: QueueKeys, id: str, begin: Begin, slot: _Slot, deadline: float | None) -> None:
        try:
            found = self._driver.perform(begin(queue, id, self._channel), within=_left(deadline))
        except ServerUnavailable:
            if slot.event.is_set():  # the answer is here, only its acknowledgement is not
                return
            raise
        if found is None and begin is not attach:  # it has ended: the message that says so comes now, or never
            slot.event.wait(LAST_WORD)
        self._settle(id, found)

    def stop_waiting(self, id: str, thread: int, error: RelevoError | None = None) -> None:
        """Let a thread go that waits for a job, as if its time were up, or with an error."""
        with self._lock:
            for slot in self._waiting.get(id, []):
                if slot.thread == thread:
                    slot.was_stopped, slot.error = True, error
                    slot.event.set()

    def close(self) -> None:
        """Stop listening, unless there are waiters. The next waiter starts it again."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            if not self._waiting:
                self._listener = None  # the thread notices when its read ends, which is soon
                self._subscribed = False

    def _leave(self, id: str, slot: _Slot) -> None:
        slots = self._waiting.get(id, [])
        if slot in slots:
            slots.remove(slot)
        if not slots:
            self._waiting.pop(id, None)

    def _settle(self, id: str, found: Record | bool | None) -> None:
        if found is True:
            return
        with self._lock:
            self.late += id not in self._waiting and isinstance(found, Record) and found.state in _ANSWERS
            for slot in self._waiting.get(id, []):
                if not slot.event.is_set():
                    slot.record = found if isinstance(found, Record) else None
                    slot.event.set()

    def _listen(self) -> None:
        link: Link | None = None
        while self._listener is threading.current_thread():
            try:
                if link is None:
                    link = self._driver.open(self._channel)
                    link.request((b"SUBSCRIBE", self._channel))
                    self._attach_all()
                message = self._next(link)
                record = None if message is None else _readable(message)
                if message is not None and record is not None:
                    self._settle(message[:ID_LENGTH].decode(), record)
            except StoreError as error:
                log.debug("inbox: %s", error)
                link = None
                with self._lock:
                    if self._listener is threading.current_thread():
                        self._subscribed = False
                time.sleep(0.1)
        if link is not None:
            link.close()

    def _attach_all(self) -> None:
        with self._lock:
            if self._listener is not threading.current_thread():
                return
            self._subscribed = True
            self._openings += 1
            self._changed.notify_all()
            # of the others the job may not be there yet
            waiting = [(id, slots[0].queue) for id, slots in self._waiting.items() if any(s.has_begun for s in slots)]
        for id, queue in waiting:
            self._settle(id, self._driver.perform(attach(queue, id, self._channel)))

    def _next(self, link: Link) -> bytes | None:
        """The next message; None after a quiet time in which the connection was found alive."""
        try:
            reply: Any = link.wait(PING_EVERY)
        except TimeoutError:
            if self._driver.has_moved(
                link, self._channel
            ):  # a node without slots may leave the cluster, and receive nothing
                raise ConnectionLost(f"{self._channel!r} has moved", sent=False) from None
            link.send((b"PING",))
            reply = link.read()
        if isinstance(reply, list) and reply and reply[0] == b"message":
            return bytes(reply[2])
        return None


class _Slot:
    __slots__ = ("error", "event", "has_begun", "queue", "record", "thread", "was_stopped")

    def __init__(self, queue: QueueKeys, event: threading.Event | None = None) -> None:
        self.queue = queue
        #: Our name stands with the job.
        self.has_begun = False
        self.was_stopped = False
        #: What its wait raises then; None: that the time is up.
        self.error: RelevoError | None = None
        self.thread = threading.get_ident()
        self.event = event or threading.Event()
        self.record: Record | None = None


class _Bell(threading.Event):
    """The event of one job where a thread waits for many."""

    def __init__(self, ended: SimpleQueue[int], place: int) -> None:
        super().__init__()
        self._ended = ended
        self._place = place

    def set(self) -> None:
        super().set()
        self._ended.put(self._place)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())
