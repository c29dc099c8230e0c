"""The bus as a test handles it: subscriptions and events called by short names, in a time that the test moves."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from relevo import Relevo
from relevo.bus.delivery_store import Event
from relevo.bus.event_store import Relayed, publish, publish_and_deliver, relay_events
from relevo.bus.subscription_store import Subscription, subscribe, subscriptions
from tests.conftest import AppFactory, Runs
from tests.servers import Server
from tests.store.desk import Desk, new_id

BODY = b'{"t":"mail.sold","k":{"n":7}'
LEASE_MS = 30_000


def queue_of(name: str) -> str:
    """The queue of a subscription of the service `mail`."""
    return f"mail:notifications:{name}"


class Bus:
    """A bus of its own: everything under it has the test's name in its keys."""

    def __init__(self, app: Relevo, server: Server) -> None:
        self.app = app
        self.server = server
        self.run: Runs = app.engine.client.run
        self.keys = app.engine.bus_keys
        self.own = Desk(self.run, self.keys, server)

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.own.advance(ms)

    # subscriptions
    def subscribe(self, pattern: str, name: str = "", **options: Any) -> str:
        """Register or renew a subscription: what it was."""
        one = Subscription(pattern=pattern, service="mail", queue=queue_of(name or pattern), **options)
        (said,) = self.run(subscribe(self.keys, [one]))
        return str(said)

    def known(self) -> dict[str, Subscription]:
        """All subscriptions, by the last part of the names of their queues."""
        return {one.queue.rpartition(":")[2]: one for one in self.run(subscriptions(self.keys))}

    # events
    def publish(self, topic: str = "shop.sold", *, id: str = "", **more: Any) -> Event:
        """Only store an event: its publisher dies then."""
        event: Event = self.run(publish(self.keys, topic, id or new_id(), BODY, **more))
        return event

    def send(self, topic: str = "shop.sold", *, id: str = "", body: bytes = BODY, **more: Any) -> Event:
        """Publish an event and deliver it."""
        plan = publish_and_deliver(self.keys, self.app.engine.keys_of, topic, id or new_id(), body, **more)
        event: Event = self.run(plan)
        return event

    def relay(self) -> Relayed:
        """A relay of another process."""
        done: Relayed = self.run(relay_events(self.keys, self.app.engine.keys_of, 1000))
        return done

    def desk(self, name: str) -> Desk:
        """The queue of a subscription."""
        return Desk(self.run, self.app.engine.keys_of(queue_of(name)), self.server)

    def waiting(self, name: str) -> list[str]:
        """Ids of the events that wait in the queue of a subscription."""
        return self.desk(name).members("ready")

    def outbox(self) -> dict[str, bytes]:
        """Messages in the outbox of the bus."""
        found = {id.decode(): text for id, text in self.own.ask("HGETALL", "letters").items()}
        assert set(found) == set(self.own.members("errands")), "each outbox message has its errand"
        return found

    def eternal(self) -> set[str]:
        """Keys of the bus and its queues that have no time limit, without the outer part of their names."""
        found = self.server.keys()
        mine = [(key, ttl) for key, ttl in found if key.startswith(f"{{{self.keys.address}")]
        return {key.removeprefix(f"{{{self.keys.address}").lstrip(":") for key, ttl in mine if ttl == -1}


def make_bus(app_factory: AppFactory, server: Server) -> Bus:
    """A bus for one test. What it leaves without an end fails the test."""
    name = f"t{uuid4().hex[:12]}"
    app = app_factory(name, prefix=name)
    return Bus(app, server)
