"""The catalogue of the bus: its services, their instances, their actions, and the state of their queues.

It is built from the list of queues, in a fixed number of calls for each, however many messages wait in them. The
services' code is not needed: the workers that serve an action store its description.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from relevo.bus.event_store import Lag, lag
from relevo.bus.subscription_store import Subscription, subscriptions
from relevo.engine.lists import bus_queues
from relevo.engine.offers_store import Served, offers, present_at, served
from relevo.engine.workers import WorkerInfo, full_since
from relevo.queues import store
from relevo.queues.store import QueueStats
from relevo.store.plan import Ahead, Steps
from relevo.text.durations import spoken
from relevo.text.names import encode, parse

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


class QueueInfo(Struct, frozen=True):
    """A queue and its backlog."""

    #: actions, callbacks or notifications
    kind: str
    #: With prefix and env, as messages name it.
    address: str
    stats: QueueStats
    #: When the oldest message was made that waits for a worker or another attempt; None: no message waits.
    oldest_ms: int | None
    #: Live workers that serve it.
    instances: int

    @property
    def backlog(self) -> int:
        """Messages in it that are not being worked on."""
        return self.stats.living - self.stats.running


class ActionInfo(Struct, frozen=True):
    """An action of a service."""

    name: str
    about: str
    #: JSON Schema of the message's data, and of the reply.
    takes: Any
    gives: Any
    #: Whether a live worker serves it.
    served: bool


class SubscriptionInfo(Struct, frozen=True, kw_only=True):
    """A subscription and its backlog."""

    service: str
    pattern: str
    #: durable: one for the service; broadcast: one for each process, removed with the process
    kind: str
    queue: QueueInfo
    max_backlog: int
    #: When a worker last confirmed that it serves it, and when it is removed unless one does so again.
    seen_ms: int
    ends_ms: int
    #: Whether its removal was announced.
    warned: bool


class ServiceInfo(Struct, frozen=True, kw_only=True):
    """A service in one context."""

    name: str
    #: Empty: the service's own queues; else the queues of one tenant or session.
    context: tuple[str, ...]
    instances: tuple[WorkerInfo, ...]
    #: Jobs that the instances run now, of all they serve, and how many they can run at once.
    running: int
    concurrency: int
    actions: tuple[ActionInfo, ...]
    queues: tuple[QueueInfo, ...]
    subscriptions: tuple[SubscriptionInfo, ...]

    @property
    def label(self) -> str:
        """The service and its context as queues name them: `embedding:tenant_xyz`."""
        return ":".join(encode(part, what="context") for part in (self.name, *self.context))


class Catalogue(Struct, frozen=True):
    """All services under one prefix and env, by name."""

    prefix: str
    env: str
    #: When it was gathered, by the server's clock.
    now_ms: int
    services: tuple[ServiceInfo, ...]

    def of(self, service: str) -> Catalogue:
        """The same for one service, in all its contexts."""
        only = tuple(one for one in self.services if one.name == service)
        return Catalogue(self.prefix, self.env, self.now_ms, only)


class _Found(Struct):
    """What was found so far of one service in one context."""

    queues: list[QueueInfo] = []
    served: list[Served] = []
    subscriptions: list[SubscriptionInfo] = []


def catalogue(engine: Engine) -> Steps[Catalogue]:
    """Look at every queue of the bus."""
    now_ms = yield from engine.now_ms()
    listed: list[Subscription] = yield subscriptions(engine.bus_keys)
    known = {one.queue: one for one in listed if not one.until_ms or one.until_ms > now_ms}
    listed_queues = yield from bus_queues(engine)
    addresses = {name: parse(name, prefix=False, env=False) for name in sorted({*listed_queues, *known})}
    # Notifications without a subscription are a log of events, or the remains of a subscription that ended.
    names = [name for name, address in addresses.items() if address.kind != "notifications" or name in known]
    keys = [engine.keys_of(name) for name in names]
    stats: list[QueueStats] = yield Ahead(map(store.count, keys, names))
    behind: list[Lag] = yield Ahead(map(lag, keys))
    alive: list[list[bytes]] = yield Ahead(present_at(of_queue, now_ms) for of_queue in keys)
    offered: list[dict[bytes, bytes]] = yield Ahead(map(offers, keys))
    found: dict[tuple[str, tuple[str, ...]], _Found] = {}
    for i, name in enumerate(names):
        address, subscription, serving = addresses[name], known.get(name), served(alive[i], offered[i], now_ms)
        queue = QueueInfo(address.kind, keys[i].address, stats[i], behind[i].oldest_ms, len(serving.instances))
        at = (address.service, address.context) if subscription is None else (subscription.service, ())
        here = found.setdefault(at, _Found())
        here.served.append(serving)
        if subscription is None:
            here.queues.append(queue)
        else:
            here.subscriptions.append(_subscription(subscription, queue))
    services = tuple(_service(name, context, here) for (name, context), here in sorted(found.items()))
    return Catalogue(engine.settings.prefix, engine.settings.env, now_ms, services)


def _subscription(one: Subscription, queue: QueueInfo) -> SubscriptionInfo:
    return SubscriptionInfo(
        service=one.service,
        pattern=one.pattern,
        kind="broadcast" if one.until_ms else "durable",
        queue=queue,
        max_backlog=one.max_backlog,
        seen_ms=one.seen_ms,
        ends_ms=one.until_ms or one.seen_ms + one.inactive_ms,
        warned=one.warned,
    )


def _service(name: str, context: tuple[str, ...], found: _Found) -> ServiceInfo:
    instances = {one.id: one for here in found.served for one in here.instances}
    actions = [*_actions(found.served, served=False), *_actions(found.served, served=True)]
    return ServiceInfo(
        name=name,
        context=context,
        instances=tuple(one for _, one in sorted(instances.items())),
        running=sum(one.running for one in instances.values()),
        concurrency=sum(one.concurrency for one in instances.values()),
        actions=tuple(one for _, one in sorted({one.name: one for one in actions}.items())),
        queues=tuple(found.queues),
        subscriptions=tuple(found.subscriptions),
    )


def _actions(offers: Iterable[Served], *, served: bool) -> list[ActionInfo]:
    pairs = [pair for here in offers for pair in (here.actions if served else here.missing).items()]
    described = [(name, text if isinstance(text, dict) else {}) for name, text in pairs]
    return [
        ActionInfo(name, str(text.get("about", "")), text.get("takes", {}), text.get("gives", {}), served)
        for name, text in described
    ]


def concerns(catalogue: Catalogue) -> list[str]:
    """What needs attention, as sentences."""
    found = []
    for service in catalogue.services:
        for queue in service.queues:
            found += _of_queue(queue, service.instances, catalogue.now_ms)
        if service.actions and not service.instances:
            found.append(f"service {service.label!r}: no live process serves it; its actions are known from before")
        for one in service.subscriptions:
            found += _of_queue(one.queue, service.instances, catalogue.now_ms)
            found += _of_subscription(one, catalogue.now_ms)
    return found


def _of_queue(queue: QueueInfo, instances: Sequence[WorkerInfo], now_ms: int) -> list[str]:
    stats = queue.stats
    found = [f"queue {stats.name!r} is paused: its messages wait until it is resumed"] if stats.paused else []
    is_due = stats.ready or (stats.next_due_ms is not None and stats.next_due_ms <= now_ms)
    if is_due and not queue.instances:
        waiting = stats.ready + stats.scheduled
        found.append(f"queue {stats.name!r}: messages wait, {waiting:,} in all, and no live process serves it")
    if stats.ready and (since_ms := full_since(instances, stats.name)):
        full_for = spoken((now_ms - since_ms) // 1000)
        found.append(
            f"queue {stats.name!r}: {stats.ready:,} messages wait, and no process has had a free slot for {full_for}"
        )
    return found


def _of_subscription(one: SubscriptionInfo, now_ms: int) -> list[str]:
    name, found = one.queue.stats.name, []
    if one.warned:
        gone, left = spoken((now_ms - one.seen_ms) // 1000), spoken(max(0, one.ends_ms - now_ms) // 1000)
        found.append(f"subscription {name!r}: not served for {gone}; in {left} it is removed with all that waits in it")
    if one.queue.backlog >= one.max_backlog:
        found.append(f"subscription {name!r} is full: {one.max_backlog:,} events wait in it, and others are lost")
    return found
