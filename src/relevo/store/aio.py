"""The asyncio driver: performs plans on one connection per server, shared by all tasks of a loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

from relevo.errors import ServerRefused, StoreError
from relevo.store.call_numbers import Try
from relevo.store.endpoint import Endpoint
from relevo.store.plan import Ahead, Ask, Call, Plan, Steps
from relevo.store.replies import ConnectionLost, Late, NotNow, ScriptMissing, WrongNode, WrongType, refusal
from relevo.store.server_check import ASK
from relevo.store.source import Source, Tries
from relevo.store.wire import Wire, open_wire

T = TypeVar("T")


_Flight: TypeAlias = tuple[Call[Any], asyncio.Future[Any] | None, Try | None, Wire | None]


async def _landed(call: Call[T], reply: asyncio.Future[Any] | None) -> T:
    assert reply is not None  # it was sent
    found = await reply
    if isinstance(found, Exception):
        raise refusal(str(found))
    return call.decode(found)


def _unheard(reply: asyncio.Future[Any]) -> None:
    """Mark a reply that is not read, so that asyncio does not warn of an error that was never retrieved."""
    if not reply.cancelled():
        reply.exception()


class AsyncDriver:
    """For one event loop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._wires: dict[Endpoint, Wire] = {}
        self._opening = asyncio.Lock()

    @property
    def call_timeout(self) -> float:
        """Seconds for one answer, and as many to go on trying."""
        return self._source.call_timeout

    def perform(
        self, plan: Plan[T], *, patience: float | None = None, within: float | None = None
    ) -> Coroutine[Any, Any, T]:
        """Carry a plan out. `patience`: seconds to go on trying while the server is away.

        `within`: seconds for all of it, where the usual time for an answer is too long.
        """
        doing = self._call(plan, patience) if isinstance(plan, Call) else self._steps(plan, patience)
        return doing if within is None else self._within(doing, within)

    @staticmethod
    async def _within(doing: Coroutine[Any, Any, T], seconds: float) -> T:
        # A timer and not asyncio.timeout: most are done long before, and that costs three times as much.
        task = asyncio.current_task()
        assert task is not None
        late: list[bool] = []

        def stop() -> None:
            late.append(True)
            task.cancel()

        timer = asyncio.get_running_loop().call_later(seconds, stop)
        try:
            return await doing
        except asyncio.CancelledError:
            if late and task.uncancel() == 0:
                raise ConnectionLost(f"the server did not answer within {seconds:g} s", sent=True) from None
            raise
        finally:
            timer.cancel()

    async def _steps(self, steps: Steps[T], patience: float | None) -> T:
        try:
            step = next(steps)
            while True:
                try:
                    done = await (self._call(step, patience) if isinstance(step, Call) else self._step(step, patience))
                except BaseException as error:  # noqa: BLE001  # the plan cleans up, goes on, or raises it again
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as stop:
            return cast("T", stop.value)

    def _step(self, step: Ahead[Any] | Ask[Any], patience: float | None) -> Awaitable[Any]:
        return self._ahead(step, patience) if isinstance(step, Ahead) else step.wait()

    async def _call(self, call: Call[T], patience: float | None, tries: Tries | None = None) -> T:
        tried: Try | None = None
        while True:
            wire: Wire | None = None
            try:
                repeated, asked = (tries.repeated, tries.asked) if tries else (False, None)
                endpoint = asked or self._source.known(call.route)
                wire = self._wires.get(endpoint) if endpoint is not None else None
                if wire is None or wire.closed is not None:
                    wire = await self._wire(call.route, asked)
                if not wire.is_checked and call.script is not None and call.script.is_storing:
                    await self._check(wire)
                if call.numbered:
                    tried = tries.number(wire.numbers) if tries else wire.numbers.next(*call.numbering)
                reply = await wire.send(call.packed(tried, repeated=repeated), asking=asked is not None)
                if isinstance(reply, Exception):
                    error = refusal(str(reply))
                    if not isinstance(error, ScriptMissing):
                        raise error
                    if tried is not None:  # later calls may have been numbered after it
                        wire.numbers.refused(call.route, error)
                        tried = tries.number(wire.numbers) if tries else wire.numbers.next(*call.numbering)
                    whole = call.command(tried, repeated=repeated, text=True)
                    reply = await wire.request(whole, asking=asked is not None)
                return call.decode(reply)
            except StoreError as failure:
                if tried is not None and wire is not None:
                    wire.numbers.refused(call.route, failure)
                if isinstance(failure, WrongType) and call.script is None:
                    call = call.guarded()
                    continue
                if not isinstance(failure, ConnectionLost | NotNow | Late):
                    raise
                tries = tries or Tries(call, self._source, patience)
                await asyncio.sleep(tries.pause_after(failure, tried))

    async def _ahead(self, ahead: Ahead[T], patience: float | None) -> list[T]:
        calls = iter(ahead.calls)
        results = [await self._call(call, patience) for call in islice(calls, 1)]  # finds the server, loads the script
        flying: deque[_Flight] = deque()
        try:
            for call in calls:
                flying.append((call, None, None, None))  # kept, so that it is sent again when a connection is back
                wire = await self._wire(call.route)
                if not wire.is_checked and call.script is not None and call.script.is_storing:
                    await self._check(wire)
                tried = wire.numbers.next(*call.numbering) if call.numbered else None
                flying[-1] = call, wire.send(call.packed(tried)), tried, wire
                if len(flying) > ahead.depth:
                    results.append(await _landed(*flying[0][:2]))
                    flying.popleft()
            while flying:
                results.append(await _landed(*flying[0][:2]))
                flying.popleft()
        except BaseException as error:
            for call, unread, _, used in flying:
                if unread is not None:
                    unread.add_done_callback(_unheard)
                if used is not None:
                    used.numbers.refused(call.route, error)
            if not isinstance(error, ConnectionLost | NotNow | ScriptMissing | WrongType | Late):
                raise
            results += [
                await self._call(call, patience, self._lost(call, patience, tried)) for call, _, tried, _ in flying
            ]
            results += [await self._call(call, patience) for call in calls]
        return results

    def _lost(self, call: Call[T], patience: float | None, tried: Try | None) -> Tries:
        tries = Tries(call, self._source, patience)
        tries.lost(tried)
        return tries

    async def _wire(self, route: bytes | None, at: Endpoint | None = None) -> Wire:
        async with self._opening:
            endpoint = at or await self._locate(route)
            wire = self._wires.get(endpoint)
            if wire is None or wire.closed is not None:
                wire = self._wires[endpoint] = await self._open(endpoint, self._source.call_timeout)
            return wire

    async def check(self, route: bytes) -> None:
        """Warn of the server of a key, or refuse it, if it may delete jobs."""
        await self._check(await self._wire(route))

    async def _check(self, wire: Wire) -> None:
        check = self._source.check
        if not check.is_off:
            try:
                reply: bytes | StoreError = await wire.request(ASK)
            except ServerRefused as error:
                reply = error
            check.judge(wire.endpoint, reply)
        wire.is_checked = True

    async def open(self, route: bytes | None, *, timeout: float | None = None) -> Wire:
        """A connection of its own, for blocking reads and subscriptions."""
        return await self._open(await self._locate(route), timeout or self._source.call_timeout)

    async def _open(self, endpoint: Endpoint, timeout: float) -> Wire:
        return await open_wire(
            endpoint,
            connect_timeout=self._source.connect_timeout,
            timeout=timeout,
            numbers=self._source.numbers(endpoint),
        )

    async def has_moved(self, wire: Wire, route: bytes) -> bool:
        """Whether the slot of a key, for which a connection was opened, is on another node of the cluster now."""
        if not self._source.is_cluster:
            return False
        await self.perform(Call([b"EXISTS", route]))
        return await self._locate(route) != wire.endpoint

    async def _locate(self, route: bytes | None) -> Endpoint:
        known = self._source.known(route)
        return known if known is not None else await asyncio.to_thread(self._source.locate, route)

    def heed(self, error: WrongNode) -> bool:
        """Handle the refusal of a blocking read whose key is on another node; whether that node is known now."""
        return self._source.heed(error) is not None and not error.is_moving

    def forget(self) -> None:
        """After a missing answer: look the server up again, and check every connection that may be dead."""
        self._source.forget()
        for wire in self._wires.values():
            wire.verify()

    def close(self) -> None:
        """Close all connections of this loop."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()
