"""Pauses: what is stopped, since when and until when, why and by whom."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import Struct

from relevo.errors import OptionError
from relevo.model.durations import Duration, milliseconds
from relevo.model.options import LAST_YEAR

#: When a pause ends: after a duration, at an aware datetime, or (None) when somebody says so.
Until = Duration | datetime | None
Kind = Literal["queue", "task", "group", "schedule", "breaker"]

#: How the store names what is paused.
_KINDS: dict[str, Kind] = {"q": "queue", "t": "task", "g": "group", "s": "schedule", "b": "breaker"}
LONGEST_TEXT = 500


class Pause(Struct, frozen=True):
    """Something that is paused."""

    queue: str
    #: queue, task, group or schedule; breaker: of a task whose attempts failed too often.
    kind: Kind
    #: The task, the group or the schedule; of a whole queue its name.
    name: str
    since_ms: int
    #: When it goes on by itself; None: when somebody says so. Of a breaker: when it lets a probe go.
    until_ms: int | None
    reason: str
    by: str


class Note(Struct, frozen=True, omit_defaults=True):
    """What is written down about a pause besides its times."""

    reason: str = ""
    by: str = ""


def note_of(reason: Any = "", by: Any = "") -> bytes:
    """Why, and by whom, as the store keeps it."""
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
    """What the store keeps under a name: `since until note`. None: a stranger wrote it."""
    kind, _, what = name.partition(":")
    since, _, rest = text.partition(" ")
    ends, _, note = rest.partition(" ")
    try:
        told = msgspec.json.decode(note or "{}", type=Note)
        return Pause(queue, _KINDS[kind], what or queue, int(since), int(ends) or None, told.reason, told.by)
    except (KeyError, ValueError):  # of msgspec, too
        return None


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise OptionError(f"{what}: printable text of at most {LONGEST_TEXT} characters is needed, found {value!r:.80}")
    return value
