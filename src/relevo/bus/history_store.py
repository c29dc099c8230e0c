"""The log of a service's events, for catch-up: written when they are delivered, read in pages.

A log belongs to the service that publishes, and is kept under the address of its notifications. The process that
delivers an event to its subscribers writes it here; if it dies and another repeats the delivery, it is here twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from relevo.engine.topics import check_pattern, matches
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Entries of a page, at the most.
PAGE = 1000


class Log(Struct, frozen=True):
    """Where events are kept, and how much of them."""

    #: The notifications of a service, such as `ingestion:notifications`; '': they are not kept.
    queue: str = ""
    keep_ms: int = 0
    #: About so many are kept at most, however young they are.
    most: int = 100_000


NO_LOG = Log()


class Logged(Struct, frozen=True):
    """An event in a log."""

    id: str
    topic: str
    #: When it was published, by the server's clock.
    at_ms: int
    #: As the jobs that it became, but without their deadline.
    body: bytes


class LogPage(Struct, frozen=True):
    """A part of a log, oldest first."""

    events: list[Logged]
    #: Where the next page begins; '': this is the last one now.
    after: str


def log_events(queue: QueueKeys, events: Sequence[Logged], *, keep_ms: int, most: int) -> Call[str]:
    """Write events into the log, and drop those that are older than `keep_ms`, or more than about `most`."""
    script = queue.script("bus/log_events")
    args: list[Argument] = [keep_ms, most]
    for one in events:
        args += (one.id, one.topic, one.at_ms, one.body)
    return Call(args, bytes.decode, script, queue.of(script))


def read_log(
    queue: QueueKeys, *, since_ms: int = 0, pattern: str = ">", after: str = "", limit: int = 100
) -> Call[LogPage]:
    """Events published since a time: those of `limit` entries that match the pattern, and where the next page begins.

    An event may be in the log twice. A page has it once; a caller that reads several pages must compare ids.
    """
    check_pattern(pattern)
    count = max(1, min(limit, PAGE))
    start: Argument = f"({after}" if after else since_ms

    def decode(reply: list[Any]) -> LogPage:
        found: dict[str, Logged] = {}
        for _, fields in reply:
            one = _logged(fields)
            # An event is logged after it was published, so a page that begins at `since_ms` misses none.
            if one is not None and one.at_ms >= since_ms and matches(pattern, one.topic):
                found.setdefault(one.id, one)
        return LogPage(list(found.values()), reply[-1][0].decode() if len(reply) == count else "")

    return Call([b"XRANGE", queue.key("log"), start, b"+", b"COUNT", count], decode)


def _logged(fields: Sequence[bytes]) -> Logged | None:
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    try:
        return Logged(named[b"id"].decode(), named[b"topic"].decode(), int(named[b"at"]), named[b"body"])
    except (KeyError, ValueError):
        return None  # written by another program
