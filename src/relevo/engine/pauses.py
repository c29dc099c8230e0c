"""Pauses of queues, tasks, tenants and schedules: start, end, reason and author."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from relevo.engine.options import LAST_YEAR
from relevo.errors import OptionError
from relevo.text.durations import Duration, milliseconds

#: When a pause ends: after a duration, at an aware datetime, or (None) with `resume`.
Until = Duration | datetime | None
Kind = Literal["queue", "task", "tenant", "schedule", "breaker"]

#: The store's prefixes.
_KINDS: dict[str, Kind] = {"q": "queue", "t": "task", "g": "tenant", "s": "schedule", "b": "breaker"}
LONGEST_TEXT = 500


class Pause(Struct, frozen=True, kw_only=True):
    """A paused queue, task, tenant or schedule, or an open breaker."""

    queue: str
    #: queue, task, tenant or schedule; breaker: of a task whose attempts failed too often.
    kind: Kind
    #: Name of the task, the tenant, the schedule or the queue.
    name: str
    since_ms: int
    #: When it ends by itself; None: only with `resume`. Of a breaker: when it lets a probe start.
    until_ms: int | None
    reason: str
    by: str


class Note(Struct, frozen=True, omit_defaults=True):
    """The stored data of a pause besides its times."""

    reason: str = ""
    by: str = ""


def note_of(reason: Any = "", by: Any = "") -> bytes:
    """Reason and author, as stored."""
    return msgspec.json.encode(Note(_text("reason", reason), _text("by", by)))


def ends_of(until: Any, now_ms: int) -> int:
    """When a pause ends, in milliseconds of the server's clock; 0: not by itself.

    >>> ends_of("2h", 1000), ends_of(None, 1000)
    (7201000, 0)
    """
    if until is None:
        return 0
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise OptionError(f"until: {until!r} has no time zone; use datetime.now(UTC) or add tzinfo")
        if until.year > LAST_YEAR:
            raise OptionError(f"until: a time up to the year {LAST_YEAR} is needed, found {until!r}")
        ends_ms = int(until.timestamp() * 1000)
    else:
        ends_ms = now_ms + milliseconds(until, what="until")
    if ends_ms <= now_ms:
        raise OptionError(f"until: a time to come is needed, found {str(until)!r:.60}, which has passed")
    return ends_ms


def read_pause(queue: str, name: str, text: str) -> Pause | None:
    """Read a stored pause: `since until note`. None: it was not written by relevo."""
    kind, _, what = name.partition(":")
    since, _, rest = text.partition(" ")
    ends, _, note = rest.partition(" ")
    try:
        stored = msgspec.json.decode(note or "{}", type=Note)
        return Pause(
            queue=queue,
            kind=_KINDS[kind],
            name=what or queue,
            since_ms=int(since),
            until_ms=int(ends) or None,
            reason=stored.reason,
            by=stored.by,
        )
    except (KeyError, ValueError):  # ValueError: also of msgspec
        return None


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise OptionError(f"{what}: printable text of at most {LONGEST_TEXT} characters is needed, found {value!r:.80}")
    return value
