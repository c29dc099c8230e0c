"""Filters for dead letters: by index, story and body."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from relevo.engine.fingerprint import LENGTH, is_permanent, looks_like_fingerprint
from relevo.engine.job import Envelope, Record
from relevo.errors import OptionError
from relevo.text.moments import Moment, stretch_ms
from relevo.text.nearest import did_you_mean


class Filters(TypedDict, total=False):
    """The filters of a caller; a dead letter must match all that are given."""

    #: the queue it died in
    queue: str | None
    #: its task, the whole name
    task: str | None
    #: a part of its reason or its error
    error: str | None
    #: its whole reason
    reason: str | None
    #: the state it came from: running, or ready, scheduled and waiting if it was purged
    came_from: str | None
    #: its tenant
    tenant: str | None
    #: a part of anything in it: arguments, messages, tracebacks, name, tags
    text: str | None
    #: died at that time or later: a datetime, or how long ago
    since: Moment | None
    #: died at that time or earlier
    until: Moment | None
    #: its fingerprint, shared by its error group
    error_group: str | None
    #: True: it would fail again until it is changed; False: it may succeed once the cause is fixed
    permanent: bool | None


class Wanted(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The filters, checked. Times are milliseconds of the server's clock."""

    queue: str | None = None
    task: str | None = None
    error: str | None = None
    reason: str | None = None
    came_from: str | None = None
    tenant: str | None = None
    text: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    error_group: str | None = None
    permanent: bool | None = None

    @property
    def is_in_index(self) -> bool:
        """Whether the store's indexes alone find these dead letters; else each must be read."""
        return all(getattr(self, name) is None for name in _OF_LETTERS)

    @property
    def is_anything(self) -> bool:
        """Whether there is no filter, except perhaps the queue."""
        return self.is_in_index and (self.since_ms, self.until_ms, self.error_group) == (None, None, None)


_OF_LETTERS = ("task", "error", "reason", "came_from", "tenant", "text", "permanent")
_TEXTS = {
    "queue": "the name of a queue",
    "task": "the name of a task",
    "error": "a part of the error's text",
    "reason": "a reason such as 'permanent'",
    "came_from": "a state such as 'running'",
    "tenant": "the name of a tenant",
    "text": "a part of the dead letter's text",
    "error_group": f"a fingerprint of {LENGTH} hex digits, as app.dead.error_groups() returns it,",
}


def wanted_of(filters: Filters, now_ms: int) -> Wanted:
    """Check the filters; refuses invalid values with `OptionError`."""
    for name in filters:
        if name in ("rate", "canary", "watch"):
            raise OptionError(f"{name}: this is an option of app.dead.replay({name}=…)")
        if name not in Filters.__annotations__:
            raise OptionError(f"dead letters: no filter {name!r}{did_you_mean(name, Filters.__annotations__)}")
    texts: dict[str, Any] = {}
    for name, what in _TEXTS.items():
        value = filters.get(name)
        if value is not None and not isinstance(value, str):
            raise OptionError(f"{name}: {what} is needed, found {value!r:.80}")
        texts[name] = value
    if texts["error_group"] is not None and not looks_like_fingerprint(texts["error_group"]):
        raise OptionError(f"error_group: {_TEXTS['error_group']} is needed, found {texts['error_group']!r:.80}")
    permanent = filters.get("permanent")
    check_permanent(permanent)
    since, until = stretch_ms(filters.get("since"), filters.get("until"), now_ms)
    return Wanted(**texts, since_ms=since, until_ms=until, permanent=permanent)


def check_permanent(permanent: Any) -> None:
    """Refuse anything but True, False and None (no filter)."""
    if permanent is not None and not isinstance(permanent, bool):
        raise OptionError(f"permanent: True or False is needed, found {permanent!r:.80}")


def fits(wanted: Wanted, record: Record, envelope: Envelope | None) -> bool:
    """Whether a dead letter matches the filters that no index covers."""
    if wanted.is_in_index:
        return True
    tenant = envelope.tenant if envelope else record.tenant
    exact = (
        (wanted.task, record.target),
        (wanted.reason, record.reason),
        (wanted.came_from, record.queue_from),
        (wanted.tenant, tenant),
        (wanted.permanent, is_permanent(record.reason)),
    )
    if any(value is not None and value != found for value, found in exact):
        return False
    if wanted.error is not None and wanted.error.lower() not in f"{record.reason} {record.story.last.words}".lower():
        return False
    return wanted.text is None or _holds(wanted.text.lower(), record)


def _holds(text: str, record: Record) -> bool:
    """Whether the text is anywhere in a dead letter, ignoring case."""
    story = (part for one in record.story.attempts for part in (one.error, one.message, one.traceback, one.worker))
    if any(text in part.lower() for part in (record.reason, record.worker, record.target, *story)):
        return True
    body = bytes(record.body) or record.unreadable
    needle = msgspec.json.encode(text)[1:-1]  # as it stands in JSON, where quotes are escaped
    return needle.decode() in body.decode(errors="replace").lower()
