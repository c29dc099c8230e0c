"""The asyncio driver: performs plans on one connection per server, shared by all tasks of a loop."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

from relevo.store.endpoint import Endpoint
from relevo.store.plan import Call, Plan
from relevo.store.replies import ConnectionLost, NotNow, ScriptMissing, WrongNode, refusal
from relevo.store.source import Source, Tries
from relevo.store.wire import Wire, open_wire

T = TypeVar("T")


class AsyncDriver:
    """For one event loop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._wires: dict[Endpoint, Wire] = {}
        self._opening = asyncio.Lock()

    async def perform(self, plan: Plan[T], *, patience: float | None = None) -> T:
        """Carry a plan out. `patience`: seconds to go on trying while the server is away."""
        if isinstance(plan, Call):
            return await self._call(plan, patience)
        steps = plan
        try:
            call = next(steps)
            while True:
                call = steps.send(await self._call(call, patience))
        except StopIteration as stop:
            return cast("T", stop.value)

    async def _call(self, call: Call[T], patience: float | None) -> T:
        tries: Tries | None = None
        while True:
            try:
                return call.decode(await self._ask(call, tries is not None and tries.repeated))
            except (ConnectionLost, NotNow, WrongNode) as error:
                tries = tries or Tries(call, self._source, patience)
                await asyncio.sleep(tries.pause_after(error))

    async def _ask(self, call: Call[T], repeated: bool) -> Any:
        endpoint = self._source.known(call.route)
        wire = self._wires.get(endpoint) if endpoint is not None else None
        if wire is None or wire.closed is not None:
            wire = await self._wire(call.route)
        reply = await wire.send(call.command(repeated=repeated))
        if isinstance(reply, Exception):
            error = refusal(str(reply))
            if not isinstance(error, ScriptMissing):
                raise error
            return await wire.request(call.command(repeated=repeated, text=True))
        return reply

    async def _wire(self, route: bytes | None) -> Wire:
        async with self._opening:
            endpoint = await self._locate(route)
            wire = self._wires.get(endpoint)
            if wire is None or wire.closed is not None:
                wire = self._wires[endpoint] = await self.open(route)
            return wire

    async def open(self, route: bytes | None, *, timeout: float | None = None) -> Wire:
        """A connection of its own, for blocking reads and subscriptions."""
        endpoint = await self._locate(route)
        return await open_wire(
            endpoint,
            connect_timeout=self._source.connect_timeout,
            timeout=self._source.call_timeout if timeout is None else timeout,
        )

    async def _locate(self, route: bytes | None) -> Endpoint:
        known = self._source.known(route)
        return known if known is not None else await asyncio.to_thread(self._source.locate, route)

    def forget(self) -> None:
        """The server did not answer somebody: find out anew where it is, and trust no connection that may be dead."""
        self._source.forget()
        for wire in self._wires.values():
            wire.doubt()

    def close(self) -> None:
        """Close all connections of this loop."""
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()
