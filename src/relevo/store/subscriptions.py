"""Subscriptions: who wants which events, as the bus keeps them.

A subscription is known by its queue. Whoever serves it says so every few seconds; that is how it is registered, renewed
and changed. A durable one is there until somebody removes it, or until nobody has served it for long. A broadcast one
belongs to one process and ends with its lease. What is in the queue of a subscription that ended is removed by the
relay, see `relay_events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

from relevo.errors import OptionError
from relevo.model.names import parse
from relevo.model.topics import check_pattern
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.store.queues import LISTED_MS

Discard = Literal["old", "new"]
Said = Literal["new", "renewed", "changed", "refused"]

WEEK_MS = 7 * 86_400_000
#: A sweep looks at every subscription; at so many that takes the server some milliseconds.
MOST = 10_000
#: The queue of a subscription that ended is cleared after this: events that were under way have arrived by then, also
#: those that another process had to deliver.
CLOSE_MS = 5_000
#: Subscriptions that one sweep changes.
SWEPT = 200


class Subscription(Struct, frozen=True):
    """Who wants which events, and how much of them is kept. The order counts: scripts look for the pattern first."""

    pattern: str
    service: str
    #: Its own, such as `embedding:notifications:ingestion.document_processed`.
    queue: str
    #: Events that may wait in its queue. Somebody who does not keep up must not fill the server.
    max_backlog: int = 100_000
    #: What is lost when they are more: the oldest, or what comes.
    discard: Discard = "old"
    #: An event that could not be handled for so long is not handled any more; 0: it always is.
    retention_ms: int = WEEK_MS
    #: After so long without anybody who serves it, a subscription is removed.
    inactive_ms: int = WEEK_MS
    #: Of a broadcast subscription, how long it lives without being renewed; 0: it is durable.
    lease_ms: int = 0
    # From here on by the server's clock, and written by it; see subscribe.lua.
    created_ms: int = 0
    #: When somebody last said that it is served.
    seen_ms: int = 0
    #: When its lease ends; 0: it is durable.
    until_ms: int = 0
    #: Whether somebody was told that it will be removed.
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


def subscribe(bus: QueueKeys, subscriptions: Sequence[Subscription]) -> Call[list[Said]]:
    """Register or renew subscriptions, all in one call: for each what it was. 'refused': there are too many."""
    script = bus.script("subscribe")
    args: list[Argument] = [MOST, LISTED_MS]
    for one in subscriptions:
        said = msgspec.json.encode(one).rpartition(b',"created_ms":')[0]
        args += (one.queue, one.pattern, said, one.lease_ms)
    return Call(args, lambda reply: [word.decode() for word in reply], script, bus.of(script))


def unsubscribe(bus: QueueKeys, queue: str, *, if_unseen_since_ms: int | None = None) -> Call[bool]:
    """Remove a subscription, if it was not renewed since that time: whether it was removed."""
    script = bus.script("unsubscribe")
    since = "" if if_unseen_since_ms is None else if_unseen_since_ms
    return Call([queue, since, CLOSE_MS], bool, script, bus.of(script))


def subscriptions(bus: QueueKeys) -> Call[list[Subscription]]:
    """All subscriptions, by the names of their queues."""

    def decode(reply: list[bytes]) -> list[Subscription]:
        return _readable(reply[1::2])

    return Call([b"HGETALL", bus.key("subscriptions")], decode)


class Swept(Struct, frozen=True):
    """What a sweep found."""

    #: Nobody has served them for half of the time after which they are removed. Each is told of once.
    warned: list[Subscription]
    #: Nobody has served them for too long, or their lease has ended.
    removed: list[Subscription]


def sweep(bus: QueueKeys) -> Call[Swept]:
    """Remove what nobody serves any more, at most SWEPT in one call."""
    script = bus.script("sweep")

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
            continue  # of a newer version, or a stranger's
    return sorted(found, key=lambda one: one.queue)
