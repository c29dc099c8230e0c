"""What the services of one app share: actions, subscriptions, and the limit of requests that wait for answers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from relevo.bus.checking import refusal
from relevo.bus.naming import queue_of
from relevo.errors import ConfigurationError, StoreError
from relevo.store.plan import Plan
from relevo.text.names import shared_queue

if TYPE_CHECKING:
    from relevo.bus.events import Subscribed
    from relevo.bus.outgoing import Outgoing
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task

log = logging.getLogger("relevo.bus")


class Bus:
    """Created with its app; opens no connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: type (`embedding.generate_batch`) -> its handler
        self.actions: dict[str, Task[..., Any]] = {}
        #: actions and tasks that handlers name as `on_failure`: they run where the message failed
        self._failure_handlers: set[str] = set()
        #: queue of a subscription -> its handler
        self.subscriptions: dict[str, Subscribed] = {}
        #: (service, context)s whose queues workers of this app serve
        self.served: dict[tuple[str, tuple[str, ...]], None] = {}
        engine.handler_of = self.handler
        engine.service_queues = self.queues
        engine.message_refusal = partial(refusal, engine, self)
        self._renew()
        self._background: set[asyncio.Task[Any]] = set()

    def _renew(self) -> None:
        """Reset what belongs to one process: a forked child has its own."""
        self._pid = os.getpid()
        #: the worker that runs in this process
        self.worker = ""
        self._own_instance = ""
        self._slots: threading.BoundedSemaphore | None = None
        self._slots_of: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        self._last_slots: tuple[weakref.ref[asyncio.AbstractEventLoop], asyncio.Semaphore] | None = None
        #: (service, type) -> a request without options, which others are copied from
        self.templates: dict[tuple[str, str], Outgoing] = {}

    @property
    def instance(self) -> str:
        """The id of this process, as messages name their sender."""
        if self._pid != os.getpid():
            self._renew()
        if not self._own_instance:
            self._own_instance = self._engine.new_id()
        return self.worker or self._own_instance

    # actions
    def add_action(self, type: str, task: Task[..., Any]) -> None:
        """Register the handler of an action."""
        before = self.actions.get(type)
        if before is not None and _name(before) != _name(task):
            raise ConfigurationError(f"two handlers for {type!r}: an action has one")
        self.actions[type] = task
        self._failure_handlers.add(task.options.on_failure or "")

    def handler(self, queue: str, target: str) -> Task[..., Any] | None:
        """The handler of a message of this type in a queue of the bus. Nothing else can be called there."""
        if target in self._failure_handlers:
            return self.actions.get(target) or self._engine.tasks.get(target)
        if ":notifications:" in queue:
            subscribed = self.subscribed(queue)
            return None if subscribed is None else subscribed.task
        # A sender with access to one service's queue only must not reach another service through it.
        is_its_own = queue.partition(":")[0] == target.partition(".")[0]
        return self.actions.get(target) if is_its_own else None

    def subscribed(self, queue: str) -> Subscribed | None:
        """The subscription whose events come to a queue."""
        return self.subscriptions.get(queue) or self.subscriptions.get(shared_queue(queue))

    def actions_of(self, service: str) -> dict[str, Task[..., Any]]:
        """The actions of a service, by their own names."""
        head = service + "."
        return {type.removeprefix(head): task for type, task in self.actions.items() if type.startswith(head)}

    @property
    def failure_handlers(self) -> frozenset[str]:
        """Targets that are called for dead-lettered messages."""
        return frozenset(self._failure_handlers - {""})

    def handlers(self) -> list[Task[..., Any]]:
        """All functions that handle messages here."""
        return [*self.actions.values(), *(one.task for one in self.subscriptions.values() if one.task is not None)]

    def add_subscription(self, subscribed: Subscribed) -> None:
        """Register the handler of a subscription."""
        before = self.subscriptions.get(subscribed.queue)
        if before is not None and _name(before.task) != _name(subscribed.task):
            raise ConfigurationError(f"two handlers for the subscription {subscribed.queue!r}: it has one")
        self.subscriptions[subscribed.queue] = subscribed
        if subscribed.task is not None:
            self._failure_handlers.add(subscribed.task.options.on_failure or "")

    def queues(self, worker: str) -> list[str]:
        """The queues that a worker of this app serves for its services; each worker has its own for broadcasts."""
        named: list[str] = []
        for service, context in self.served:
            if self.actions_of(service):
                named += (queue_of(service, context, "actions"), queue_of(service, context, "callbacks"))
        return named + [one.queue_for(worker) for one in self.subscriptions.values()]

    # requests under way
    @property
    def slots(self) -> threading.BoundedSemaphore:
        """Limits the requests of threads that wait for answers."""
        if self._slots is None:
            self._slots = threading.BoundedSemaphore(self._engine.settings.max_requests)
        return self._slots

    def slots_here(self) -> asyncio.Semaphore:
        """The same for the running event loop."""
        loop = asyncio.get_running_loop()
        if self._last_slots is not None and self._last_slots[0]() is loop:
            return self._last_slots[1]
        slots = self._slots_of.get(loop)
        if slots is None:
            slots = self._slots_of[loop] = asyncio.Semaphore(self._engine.settings.max_requests)
        self._last_slots = weakref.ref(loop), slots
        return slots

    def in_background(self, plan: Plan[Any]) -> None:
        """Run a plan on the running event loop without waiting for it. Failures are only logged."""
        task = asyncio.ensure_future(self._engine.client.arun(plan, patience=0))
        self._background.add(task)
        task.add_done_callback(self._background_done)

    def _background_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.log(logging.DEBUG if isinstance(error, StoreError) else logging.ERROR, "in the background: %s", error)


def _name(task: Task[..., Any] | None) -> str:
    func = task and task.func
    return f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', '')}"
