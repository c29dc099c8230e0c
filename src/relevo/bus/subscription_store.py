"""Subscriptions to events, as the bus keeps them.

A subscription is identified by its queue. Each process that serves it refreshes it every few seconds; the same call
registers and changes it. A durable subscription stays until it is removed, or was not refreshed for long. A broadcast
one belongs to one process and ends with its lease. The relay removes what is left in the queue of an ended
subscription, see `relay_events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from relevo.engine.list_store import LISTED_MS
from relevo.engine.topics import check_pattern
from relevo.errors import OptionError
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.text.names import parse

Discard = Literal["old", "new"]
Renewal = Literal["new", "renewed", "changed", "refused"]

WEEK_MS = 7 * 86_400_000
#: A sweep reads every subscription; with so many that takes the server some milliseconds.
MOST = 10_000
#: The queue of a subscription that ended is cleared after this: by then the events in flight have arrived, also those
#: that another process had to deliver.
CLOSE_MS = 5_000
#: Subscriptions that one sweep changes.
SWEPT = 200


class Subscription(Struct, frozen=True, kw_only=True):
    """Which events a service wants, and how many are kept. Field order matters: scripts expect the pattern first."""

    pattern: str
    service: str
    #: Its own, such as `embedding:notifications:ingestion.document_processed`.
    queue: str
    #: Events that may wait in its queue. A slow subscriber must not fill the server.
    max_backlog: int = 100_000
    #: Which are lost beyond that: the oldest, or new ones.
    discard: Discard = "old"
    #: An event that could not be handled for so long is dropped; 0: never.
    retention_ms: int = WEEK_MS
    #: A subscription that was not refreshed for so long is removed.
    inactive_ms: int = WEEK_MS
    #: Of a broadcast subscription, its lease without a renewal; 0: it is durable.
    lease_ms: int = 0
    # The following are by the server's clock, and written by it; see bus/renew_subscriptions.lua.
    created_ms: int = 0
    #: When it was last refreshed.
    seen_ms: int = 0
    #: When its lease ends; 0: it is durable.
    until_ms: int = 0
    #: Whether a warning was given that it will be removed.
    warned: bool = False

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        if parse(self.queue, prefix=False, env=False).kind != "notifications":
            raise OptionError(f"queue: a subscription has a queue of notifications, found {self.queue!r:.80}")
        if self.max_backlog < 1:
            raise OptionError(f"max_backlog: at least 1 is needed, found {self.max_backlog!r}")
        if min(self.retention_ms, self.lease_ms) < 0 or self.inactive_ms < 1:
            raise OptionError(
                f"retention, inactive and lease are times from now on, found {self.retention_ms}, {self.inactive_ms} "
                f"and {self.lease_ms} ms"
            )


_read = msgspec.json.Decoder(Subscription).decode


def subscribe(bus: QueueKeys, subscriptions: Sequence[Subscription]) -> Call[list[Renewal]]:
    """Register or renew subscriptions, all in one call: returns the outcome of each. 'refused': there are too many."""
    script = bus.script("bus/renew_subscriptions")
    args: list[Argument] = [MOST, LISTED_MS]
    for one in subscriptions:
        options = msgspec.json.encode(one).rpartition(b',"created_ms":')[0]
        args += (one.queue, one.pattern, options, one.lease_ms)
    return Call(args, lambda reply: [word.decode() for word in reply], script, bus.of(script))


def unsubscribe(bus: QueueKeys, queue: str, *, if_unseen_since_ms: int | None = None) -> Call[bool]:
    """Remove a subscription, if it was not renewed since that time: whether it was removed."""
    script = bus.script("bus/remove_subscription")
    since = "" if if_unseen_since_ms is None else if_unseen_since_ms
    return Call([queue, since, CLOSE_MS], bool, script, bus.of(script))


def subscriptions(bus: QueueKeys) -> Call[list[Subscription]]:
    """All subscriptions, by the names of their queues."""

    def decode(reply: list[bytes]) -> list[Subscription]:
        return _readable(reply[1::2])

    return Call([b"HGETALL", bus.key("subscriptions")], decode)


class Swept(Struct, frozen=True):
    """The outcome of a sweep."""

    #: Not refreshed for half of the time after which they are removed. Each is reported once.
    warned: list[Subscription]
    #: Not refreshed for too long, or their lease has ended.
    removed: list[Subscription]


def sweep(bus: QueueKeys) -> Call[Swept]:
    """Remove abandoned subscriptions, at most SWEPT in one call."""
    script = bus.script("upkeep/sweep_subscriptions")

    def decode(reply: list[Any]) -> Swept:
        warned, removed = reply
        return Swept(_readable(warned[1::2]), _readable(removed[1::2]))

    return Call([CLOSE_MS, SWEPT], decode, script, bus.of(script))


def _readable(texts: Sequence[bytes]) -> list[Subscription]:
    found = []
    for text in texts:
        try:
            found.append(_read(text))
        except (msgspec.DecodeError, UnicodeDecodeError, OptionError):
            continue  # of a newer version, or written by another program
    return sorted(found, key=lambda one: one.queue)
