"""Messages of the bus in their queues: sending, callbacks and progress reports."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from msgspec import Struct

from relevo.engine.carried import bag
from relevo.engine.edges import label
from relevo.engine.push import KEEP_MS
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: TTL of data stored beside a message that is never sent.
UNSENT_MS = 600_000


class Place(Struct, frozen=True, gc=False):
    """What orders a message among others in its queue."""

    priority: int
    #: The tenant.
    tenant: str = ""
    weight: float = 1.0
    tier: str = ""

    @property
    def chosen(self) -> dict[str, Any]:
        """Its fields in a body."""
        # msgspec leaves out a float only if it is the very default, and most messages have none
        weighed = {} if self.weight == 1.0 else {"weight": self.weight}
        return {"priority": self.priority, "tenant": self.tenant, **weighed}


class Tracked(Struct, frozen=True, gc=False):
    """The conversation that something is made in, and how long the list of what it made is kept."""

    conversation: str = ""
    ttl_ms: int = 0


class Name(Struct, frozen=True, gc=False):
    """A name that only one message has for a time (`idempotency_key`)."""

    name: str = ""
    hold_ms: int = 0
    #: Free again when nothing is left of the message, which is so after a failure.
    until_failed: bool = False


NO_CONVERSATION = Tracked()
NO_NAME = Name()


def send(
    queue: QueueKeys,
    id: str,
    body: bytes,
    place: Place,
    *,
    lease_ms: int,
    must_be_served: str = "",
    delay_ms: int = 0,
    waiter: str | bytes = "",
    timeout_ms: int = 0,
    name: Name = NO_NAME,
    tracked: Tracked = NO_CONVERSATION,
    is_claimed: bool = False,
) -> Call[tuple[str, str]]:
    """Store a message whose body lacks its closing brace: 'stored', 'unserved', 'gone' (it was stored and has ended),
    or 'taken' and the id that has its name.
    """
    script = queue.script("bus/send_message")
    return Call(
        [
            lease_ms,
            KEEP_MS,
            id,
            must_be_served,
            place.priority,
            place.tenant,
            place.weight,
            place.tier,
            f"+{delay_ms}" if delay_ms else "",
            waiter,
            timeout_ms,
            name.name,
            name.hold_ms,
            int(name.until_failed),
            tracked.conversation,
            tracked.ttl_ms,
            int(is_claimed),
            body,
        ],
        lambda reply: (reply[0].decode(), reply[1].decode()),
        script,
        queue.of(script),
        numbered=True,
        is_named=bool(name.name),
    )


class Asked(Struct, frozen=True, gc=False):
    """A plain request."""

    id: str
    #: The action that a live worker must serve; '': the request waits for one.
    action: str
    place: Place
    timeout_ms: int
    #: Without its closing brace.
    body: bytes


def ask(
    queue: QueueKeys, inbox: bytes, requests: Sequence[Asked], before: str = "", *, lease_ms: int
) -> Call[list[int]]:
    """Store plain requests of one process: for each 1, 0 if no worker serves it, 2 if it was stored and has ended."""
    script = queue.script("bus/send_requests")
    args: list[Argument] = [lease_ms, KEEP_MS, inbox]
    for one in requests:
        place = one.place
        args += (one.id, one.action, place.priority, place.tenant, place.weight, place.tier, one.timeout_ms, one.body)
    return Call(args, list, script, queue.of(script), numbered=True, before=before)


def lay_beside(queue: QueueKeys, id: str, data: bytes) -> Generator[Call[Any], Any, None]:
    """Store a message's data beside it, before it is sent."""
    yield Call([UNSENT_MS, data], int, queue.script("bus/store_data"), (bag(queue, id),))


def take_away(queue: QueueKeys, id: str) -> Call[int]:
    """Remove the data of a message that was not sent after all."""
    return Call([b"UNLINK", bag(queue, id)])


def promise(
    queue: QueueKeys,
    name: str,
    id: str,
    place: Place,
    body: bytes,
    *,
    timeout_ms: int,
    failure_ms: int,
    late: bytes = b"",
    interim: bytes = b"",
    prefer: str = "",
    tracked: Tracked = NO_CONVERSATION,
) -> Call[int]:
    """Store a callback that waits for the end of a message, in the queue of this name."""
    script = queue.script("bus/store_callback")
    return Call(
        [
            KEEP_MS,
            id,
            label(name),
            place.priority,
            place.tenant,
            place.weight,
            failure_ms,
            timeout_ms,
            prefer,
            tracked.conversation,
            tracked.ttl_ms,
            body,
            late,
            interim,
        ],
        int,
        script,
        queue.of(script),
        numbered=True,
    )


def interim_body(queue: QueueKeys, callback: str) -> Call[bytes | None]:
    """The job for a report to a callback, up to the report; None: it wants none, or has been settled."""
    return Call([b"HGET", bag(queue, callback), b"interim"])


def report(queue: QueueKeys, callback: str, id: str, body: bytes) -> Call[bool]:
    """Queue a report for a callback that still waits: whether it does."""
    script = queue.script("bus/report_progress")
    return Call([KEEP_MS, callback, id, body], bool, script, queue.of(script), numbered=True, timed=True)
