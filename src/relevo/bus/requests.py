"""Requests: a message and its answer, on one connection per process however many are under way.

A request is a job. The step that stores it also stores the name of the sender's inbox, and the step that ends it
publishes the answer there. There is no key for a request and none for its answer, so nothing stays if the sender dies.
An answer that comes while the sender's connection is broken is kept for a moment.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from relevo.bus.bus import Bus
from relevo.bus.message_store import Asked, ask, lay_beside, send, take_away
from relevo.bus.outgoing import Outgoing, responses, track, tracked_by, with_reply_to
from relevo.codec.annotations import slot_of
from relevo.engine.context import running
from relevo.engine.inbox import Begin
from relevo.engine.job import Record, State
from relevo.engine.job_store import attach, cancel
from relevo.engine.replies import fault_of
from relevo.engine.signed_ends import verify_record
from relevo.engine.waits import Wait, noted, warn_on_loop
from relevo.errors import (
    NoResponders,
    OptionError,
    OutcomeUnknown,
    PayloadError,
    RelevoError,
    RemoteError,
    RequestTimeout,
    ResultTimeout,
    ServerUnavailable,
    StoreError,
    UnknownJob,
)
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def reader_of_answers(returns: Any) -> Callable[[bytes], Any]:
    """What decodes an answer to the type that the caller wants; None stands for any JSON."""
    try:
        return _made_reader(returns)
    except TypeError:  # a type that cannot be hashed
        return _made_reader.__wrapped__(returns)


@lru_cache(maxsize=256)
def _made_reader(returns: Any) -> Callable[[bytes], Any]:
    slot = slot_of("returns", Any if returns is None else returns)
    if slot.trouble:
        raise OptionError(f"returns: `{slot.annotation}` {slot.trouble}")
    return slot.decoder()


class _Taken(Exception):
    """Another message has this one's idempotency key."""

    def __init__(self, owner: str) -> None:
        self.owner = owner


class Request:
    """One request of a service, until its answer."""

    __slots__ = (
        "_engine",
        "_may_wait",
        "_owner",
        "_read",
        "_returns",
        "_sent",
        "_source",
        "_thread",
        "_until",
        "message",
    )

    def __init__(self, engine: Engine, source: str, message: Outgoing, returns: Any, may_wait: bool) -> None:
        assert message.timeout is not None
        self._engine = engine
        self._source = source
        self.message = message
        self._returns = returns
        self._read = reader_of_answers(returns)
        self._may_wait = may_wait
        self._until = time.monotonic() + message.timeout
        self._sent = False
        self._thread = 0
        #: The message whose answer we get: another one, if that has our idempotency key.
        self._owner = message.id

    def ask(self) -> Any:
        """Send it and block until it is answered."""
        warn_on_loop(self._engine, "await service.arequest(…)")
        slots = self._engine.part(Bus).slots
        if not slots.acquire(timeout=self._left()):
            raise self._too_many()
        job = running.get()
        self._thread = threading.get_ident()
        try:
            if job is not None:  # a waiting thread cannot be interrupted, but its wait can be ended
                job.when_stopped(self._let_go)
            while True:
                try:
                    record = self._wait(self.message.id, self._begin)
                    break
                except _Taken as taken:
                    self._owner = taken.owner
                    record = self._wait(taken.owner, attach)
                    if not self._must_ask_anew(record):
                        break
        except (ResultTimeout, UnknownJob, ServerUnavailable) as error:
            self._cancel()
            raise self._unanswered(error) from None
        except BaseException:
            self._cancel()
            raise
        finally:
            slots.release()
            if job is not None:
                job.forget(self._let_go)
        return self._answer(record)

    def _wait(self, id: str, begin: Begin) -> Record:
        with noted(self._engine, lambda: Wait(self.message.queue, id, self._left())):
            return self._engine.client.wait(self._keys, id, self._left(), begin)

    def _let_go(self) -> None:
        self._engine.client.stop_waiting(self._owner, self._thread)

    def _must_ask_anew(self, record: Record) -> bool:
        """Whether the first request with our key expired while we have time left."""
        if record.state is not State.EXPIRED or self._left() <= 0 or self._verify(record):
            return False
        self._owner = self.message.id
        return True

    def _verify(self, record: Record) -> str:
        """What is wrong with the signature of the answer; '': nothing."""
        signer = self._keys.signer
        return "" if signer is None else verify_record(signer, self._owner, record)

    async def aask(self) -> Any:
        """Send it and wait for the answer on the running event loop."""
        engine, slots = self._engine, self._engine.part(Bus).slots_here()
        if slots.locked():
            try:
                await asyncio.wait_for(slots.acquire(), self._left())
            except TimeoutError:
                raise self._too_many() from None
        else:
            await slots.acquire()
        try:
            while True:
                try:
                    if self._is_plain():
                        record = await self._ask_with_others()
                    else:
                        record = await engine.client.await_end(self._keys, self.message.id, self._left(), self._begin)
                    break
                except _Taken as taken:
                    self._owner = taken.owner
                    record = await engine.client.await_end(self._keys, taken.owner, self._left(), attach)
                    if not self._must_ask_anew(record):
                        break
        except (ResultTimeout, UnknownJob, ServerUnavailable) as error:
            self._acancel()
            raise self._unanswered(error) from None
        except asyncio.CancelledError:
            self._acancel()
            raise
        finally:
            slots.release()
        return self._answer(record)

    def _is_plain(self) -> bool:
        """Whether it can leave with others: it has no name and no conversation, and its data travels inside."""
        message, engine = self.message, self._engine
        is_more = message.name.name or message.headers.conversation or message.is_claimed(engine)
        return not is_more and engine.is_listed(message.queue)

    async def _ask_with_others(self) -> Record:
        engine, message = self._engine, self.message
        left = self._left()
        action = "" if self._may_wait else message.type.partition(".")[2]
        deadline_ms, left_ms = None, max(1, round(left * 1000))
        if engine.keyring:
            deadline_ms, left_ms = await engine.arun(message.timed(engine, left))
        asked = Asked(message.id, action, message.place, left_ms, self._body(deadline_ms))
        self._sent = True
        record = await engine.client.ask(self._keys, asked, left, partial(ask, lease_ms=engine.lease_ms))
        if record is None:
            raise self._no_responders()
        return record

    def _body(self, deadline_ms: int | None) -> bytes:
        engine, message = self._engine, self.message
        if not message.headers.reply_to:
            address = responses(engine.settings.prefix, engine.settings.env, self._source, message.headers.instance)
            return message.body(engine, with_reply_to(message.headers, address), deadline_ms)
        return message.body(engine, deadline_ms=deadline_ms)

    def _no_responders(self) -> NoResponders:
        self._sent = False
        message = self.message
        return NoResponders(
            f"no worker serves {message.type}: none with this action is alive on {message.queue}. Start one, or "
            "ask with wait=True to let the request wait for it"
        )

    @property
    def _keys(self) -> QueueKeys:
        return self._engine.keys_of(self.message.queue)

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _begin(self, queue: QueueKeys, id: str, inbox: bytes) -> Generator[Call[Any], Any, bool | None]:
        engine, message = self._engine, self.message
        is_claimed = message.is_claimed(engine)
        if is_claimed:
            yield from lay_beside(queue, id, message.data)
        if not engine.is_listed(message.queue):
            yield from engine.list_queue(message.queue)
        yield from track(engine, tracked_by(engine, message.headers), message.queue)
        deadline_ms, left_ms = yield from message.timed(engine, self._left())
        self._sent = True
        outcome, owner = yield send(
            queue,
            id,
            self._body(deadline_ms),
            message.place,
            lease_ms=engine.lease_ms,
            must_be_served="" if self._may_wait else message.type.partition(".")[2],
            waiter=inbox,
            timeout_ms=left_ms,
            name=message.name,
            tracked=tracked_by(engine, message.headers),
            is_claimed=is_claimed,
        )
        if outcome in ("unserved", "taken") and is_claimed:
            yield take_away(queue, id)
        if outcome == "unserved":
            raise self._no_responders()
        if outcome == "taken":
            self._sent = False
            raise _Taken(owner)
        return None if outcome == "gone" else True

    def _answer(self, record: Record) -> Any:
        type = self.message.type
        if wrong := self._verify(record):
            raise RemoteError(f"{type}: of the answer: {wrong}", type="BadSignature", reason="bad_signature")
        match record.state:
            case State.DONE:
                raw = bytes(record.result)
                if not raw:
                    why = record.not_kept or "its result was not kept"
                    raise RemoteError(f"{type} gave no answer: {why}", type="PayloadError", reason="result_not_kept")
                return self._read_answer(raw)
            case State.CANCELLED:
                why = f"{type} was cancelled there: {record.reason}"
                raise RemoteError(why, type="Cancel", reason="cancelled")
            case State.EXPIRED:
                raise RequestTimeout(f"{type}: it could not be answered within {self.message.timeout:g} s")
            case _:
                fault = fault_of(record)
                raise RemoteError(
                    f"{type} failed: {fault.type}: {fault.message}",
                    type=fault.type,
                    reason=fault.reason,
                    retryable=fault.retryable,
                    traceback=fault.traceback,
                )

    def _read_answer(self, raw: bytes) -> Any:
        try:
            return self._read(raw)
        except ValueError as error:
            raise PayloadError(f"{self.message.type}: the answer is not {self._returns}: {error}") from error

    def _unanswered(self, error: RelevoError) -> RelevoError:
        message = self.message
        if isinstance(error, ServerUnavailable):
            if self._left() > 0:
                return error
            return RequestTimeout(f"{message.type}: no answer within {message.timeout:g} s: {error}")
        if isinstance(error, UnknownJob):
            return OutcomeUnknown(
                f"{message.type}: the connection broke, and the answer was lost with it; "
                + ("it has an idempotency key: ask again" if message.name.name else "look before you repeat it"),
                is_safe=bool(message.name.name),
            )
        return RequestTimeout(
            f"{message.type}: no answer within {message.timeout:g} s from {message.queue}; the request was cancelled"
        )

    def _too_many(self) -> RequestTimeout:
        most = self._engine.settings.max_requests
        return RequestTimeout(
            f"{self.message.type} was not sent: {most:,} requests of this process wait for answers, and none came "
            f"within {self.message.timeout:g} s. Is the service down? Else raise `max_requests`"
        )

    # A request whose sender has stopped waiting need not run.
    def _cancelling(self) -> Generator[Call[Any], Any, None]:
        message = self.message
        outcomes = ["unknown"]
        if self._sent:
            outcomes, _ = yield cancel(self._keys, [(message.id, 0, "")], self._engine.settings.dead_max)
        if outcomes == ["unknown"] and message.is_claimed(self._engine):
            yield take_away(self._keys, message.id)

    def _is_to_be_cancelled(self) -> bool:
        is_begun = self._sent or self.message.is_claimed(self._engine)
        return is_begun and not self.message.name.name

    def _cancel(self) -> None:
        if self._is_to_be_cancelled():
            try:
                self._engine.client.run(self._cancelling(), patience=0, within=0.5)
            except StoreError:
                pass  # it expires

    def _acancel(self) -> None:
        if self._is_to_be_cancelled():
            self._engine.part(Bus).in_background(self._cancelling())
