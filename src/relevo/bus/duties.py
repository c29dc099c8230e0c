"""What the bus gives workers of services to do: announce what they serve, store spans, relay events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relevo.bus.aftermath import Aftermath
from relevo.bus.bus import Bus
from relevo.bus.event_store import relay_events
from relevo.bus.serving import offered
from relevo.bus.subscription_store import subscribe, unsubscribe
from relevo.engine.duty import Duty, Host
from relevo.engine.engine import Engine
from relevo.engine.offers_store import SERVE_EVERY, serve


def duties(worker: Host) -> Iterator[Duty[Any]]:
    """Write spans of messages; announce services and relay events if the worker serves queues of the bus."""
    yield worker.part(Aftermath)
    services = ServiceDuty(worker)
    if services.is_needed:
        yield services
        yield EventRelayDuty(worker.engine)


class ServiceDuty(Duty[None]):
    """Announces the actions and subscriptions that a worker serves."""

    name = "services"
    interval = SERVE_EVERY
    is_registration = True

    def __init__(self, worker: Host) -> None:
        self._worker = worker
        self._engine = worker.engine
        #: queue -> action -> description
        self._offers = offered(worker.engine, worker.queues)
        self._subscriptions = [
            one
            for subscribed in worker.engine.part(Bus).subscriptions.values()
            if (one := subscribed.registered(worker.id)).queue in worker.queues
        ]
        self._is_serving = True

    @property
    def is_needed(self) -> bool:
        """Whether the worker serves a queue of the bus."""
        return bool(self._offers)

    async def run_once(self) -> None:
        """Announce them; without a renewal the announcement expires."""
        if not self._is_serving:
            return
        about = self._worker.about()
        if self._subscriptions:
            await self._perform(subscribe(self._engine.bus_keys, self._subscriptions))
        for queue, actions in self._offers.items():
            if self._is_serving:
                await self._perform(serve(self._engine.keys_of(queue), about, self._worker.known(queue), actions))

    async def withdraw(self) -> None:
        """Announce nothing more; the worker itself withdraws what it offered."""
        self._is_serving = False

    async def close(self) -> None:
        """End the subscriptions of this process only."""
        bus = self._engine.part(Bus)
        if bus.worker == self._worker.id:
            bus.worker = ""
        for one in self._subscriptions:
            if one.lease_ms:
                await self._perform(unsubscribe(self._engine.bus_keys, one.queue))

    async def _perform(self, plan: Any) -> None:
        await self._engine.client.arun(plan, patience=0)


class EventRelayDuty(Duty[None]):
    """Delivers events whose publisher died before it had delivered them to all subscriptions."""

    name = "event relay"
    interval = SERVE_EVERY
    first = 0.0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run_once(self) -> None:
        """Deliver what is left of any publisher on the bus."""
        engine = self._engine
        await engine.client.arun(relay_events(engine.bus_keys, engine.keys_of, engine.settings.dead_max), patience=0)
