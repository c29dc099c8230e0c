"""The queue manager of nooble4 on relevo: `DomainQueueManager`, as its callers know it.

    manager = DomainQueueManager(app)
    await manager.enqueue_action("embedding", DomainAction(action_type="generate", task_id="67890", data={…}))
    await manager.clean_task_queues("67890")

An action goes to the service of its domain, whatever its tier and task id: the tier is its tenant's share of that
queue, and the task id is the conversation: a consumer needs none to find its work, and no queue is left behind.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from relevo.app import Relevo
from relevo.bus.conversation_store import made
from relevo.bus.naming import queue_of, service_name
from relevo.compat.current import current_app
from relevo.engine.job import Envelope, State
from relevo.engine.job_store import Seen, look
from relevo.queues.queue import Lease, Queue
from relevo.queues.store import Listed, page
from relevo.store.plan import Ahead, Steps
from relevo.text.names import legacy_name

#: The service name under which the manager sends.
SENDER = "nooble4"


class DomainAction(Struct, frozen=True, kw_only=True):
    """A message of nooble4."""

    action_type: str
    task_id: str
    data: dict[str, Any] = {}
    tenant_id: str = ""
    tenant_tier: str = ""
    session_id: str = ""
    correlation_id: str = ""
    #: Set by the manager when the action is dequeued.
    action_id: str = ""


class DomainQueueManager:
    """Puts actions on the queues of their domains, takes them from there, and cleans up after tasks."""

    def __init__(self, app: Relevo | None = None) -> None:
        self._app = app or current_app()
        self._sender = self._app.service(SENDER)

    def queue_name(self, domain: str) -> str:
        """The name of a domain's queue: `nooble4:dev:embedding:actions`."""
        return self._app.engine.keys_of(self._queue(domain)).address

    @staticmethod
    def legacy_queue_name(domain: str, action_type: str, tier: str, task_id: str) -> str:
        """The old name of that queue: `embedding:generate:enterprise:67890`."""
        return legacy_name(domain, action_type, tier, task_id)

    async def enqueue_action(self, domain: str, action: DomainAction, tier: str | None = None) -> str:
        """Put an action on its domain's queue and count it, in one step: returns the queue's name."""
        head = domain + "."
        name = action.action_type.removeprefix(head)
        await self._sender.asend(
            head + name,
            action.data,
            conversation=action.task_id,
            tenant=action.tenant_id or None,
            tier=tier or action.tenant_tier or None,
            session=action.session_id or None,
            correlation_id=action.correlation_id or None,
        )
        return self.queue_name(domain)

    async def dequeue_action(
        self, domain: str, tier: str | None = None, task_id: str | None = None
    ) -> dict[str, Any] | None:
        """The next action of a domain, of that tier and task only if they are given; None at once if there is none.

        It is gone from the queue when this returns, as in nooble4. Work that must survive the death of its consumer is
        handled by `@service.action`, or taken with `app.queue(…).take()` and settled when it is done.

        With neither it is one step, whatever waits. The actions of a task are on a list of their own; for a tier alone
        the queue is looked through until one is found.
        """
        queue = self._app.queue(self._queue(domain))
        if not tier and not task_id:
            leases = await queue.atake(1, worker=_TAKER)
            lease = leases[0] if leases else None
        else:
            plan = _of_task(queue, tier or "", task_id) if task_id else _of_tier(queue, tier or "")
            lease = await self._app.engine.arun(plan)
        if lease is None:
            return None
        action = _action_of(lease.id, lease._envelope)
        return action if await lease.adone() else None

    async def clean_task_queues(self, task_id: str) -> int:
        """Remove the remains of a conversation: returns how many records, results and logs. What is in use stays."""
        return (await self._app.conversations.aclean(task_id)).removed

    @staticmethod
    def _queue(domain: str) -> str:
        return queue_of(service_name(domain), (), "actions")


def clean_task_queues(task_id: str) -> int:
    """Remove the remains of a conversation in the app in use (`configure`): how many records, results and logs."""
    return current_app().conversations.clean(task_id).removed


_TAKER = "dequeue_action"
#: Actions of a queue that are looked at in one call.
PART = 100


def _of_task(queue: Queue, tier: str, task_id: str) -> Steps[Lease | None]:
    """Take the first action of this task (and tier) that no other process takes before us."""
    keys = queue._keys
    ids: list[str] = yield made(keys, task_id)
    for start in range(0, len(ids), PART):
        seen: list[Seen] = yield Ahead(look(keys, id) for id in ids[start : start + PART])
        for one in seen:
            if one.state in (State.READY, State.WAITING) and _is_wanted(one.envelope, tier, task_id):
                lease = yield from queue._claim(one.id, _TAKER)
                if lease is not None:
                    return lease
    return None


def _of_tier(queue: Queue, tier: str) -> Steps[Lease | None]:
    """Take the first action of this tier that no other process takes before us."""
    offset = 0
    while True:
        rows: list[Listed] = yield page(queue._keys, "ready", offset, PART)
        if not rows:
            return None
        for row in rows:
            if _is_wanted(row.envelope, tier, ""):
                lease = yield from queue._claim(row.id, _TAKER)
                if lease is not None:
                    return lease
        offset += len(rows)


def _is_wanted(envelope: Envelope | None, tier: str, task_id: str) -> bool:
    headers = envelope.headers if envelope else None
    return headers is not None and tier in ("", headers.tier) and task_id in ("", headers.conversation)


def _action_of(id: str, envelope: Envelope) -> dict[str, Any]:
    headers = envelope.headers
    return {
        "action_id": id,
        "action_type": envelope.target,
        "data": msgspec.json.decode(envelope.kwargs),
        "task_id": headers.conversation if headers else "",
        "tenant_id": envelope.tenant,
        "tenant_tier": headers.tier if headers else "",
        "session_id": headers.session if headers else "",
        "correlation_id": (headers.correlation if headers else "") or id,
    }
