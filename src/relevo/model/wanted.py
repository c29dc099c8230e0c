"""Which dead letters are meant: what is asked of a letter's head, its story and its body."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from relevo.errors import OptionError
from relevo.model.fingerprint import LENGTH, is_permanent, looks_like_fingerprint
from relevo.model.job import Envelope, Record
from relevo.model.moments import Moment, stretch_ms
from relevo.model.nearest import did_you_mean


class Filters(TypedDict, total=False):
    """What a caller may ask for; all that is given must hold."""

    #: the queue it died in
    queue: str | None
    #: its task, the whole name
    task: str | None
    #: a part of its reason or its error
    error: str | None
    #: its reason, whole
    reason: str | None
    #: the state it came from: running, or ready, scheduled and waiting if it was purged
    came_from: str | None
    #: its tenant, that is its group
    tenant: str | None
    #: a part of anything in it: arguments, messages, tracebacks, name, tags
    text: str | None
    #: died at that time or later: a datetime, or how long ago
    since: Moment | None
    #: died not after that time
    until: Moment | None
    #: its fingerprint, which all that died alike share
    group: str | None
    #: True: it would fail again until it is changed; False: it may go well once the cause is mended
    permanent: bool | None


class Wanted(Struct, frozen=True, omit_defaults=True):
    """The same, checked. Times are milliseconds of the server's clock."""

    queue: str | None = None
    task: str | None = None
    error: str | None = None
    reason: str | None = None
    came_from: str | None = None
    tenant: str | None = None
    text: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    group: str | None = None
    permanent: bool | None = None

    @property
    def is_in_index(self) -> bool:
        """Whether the store's indexes alone find these letters; else each must be looked at."""
        return all(getattr(self, name) is None for name in _OF_LETTERS)

    @property
    def is_anything(self) -> bool:
        """Whether nothing is asked but, perhaps, the queue."""
        return self.is_in_index and (self.since_ms, self.until_ms, self.group) == (None, None, None)


_OF_LETTERS = ("task", "error", "reason", "came_from", "tenant", "text", "permanent")
_TEXTS = {
    "queue": "the name of a queue",
    "task": "the name of a task",
    "error": "a part of the error's text",
    "reason": "a reason such as 'permanent'",
    "came_from": "a state such as 'running'",
    "tenant": "the name of a tenant",
    "text": "a part of the letter's text",
    "group": f"a fingerprint of {LENGTH} hex digits, as app.dead.groups() tells it,",
}


def wanted_of(filters: Filters, now_ms: int) -> Wanted:
    """What somebody asks for; nonsense is refused with `OptionError`."""
    for name in filters:
        if name in ("rate", "canary", "watch"):
            raise OptionError(f"{name}: app.dead.replay({name}=…) runs letters again so, as a run that can be watched")
        if name not in Filters.__annotations__:
            raise OptionError(f"dead letters cannot be asked for {name!r}{did_you_mean(name, Filters.__annotations__)}")
    texts: dict[str, Any] = {}
    for name, what in _TEXTS.items():
        value = filters.get(name)
        if value is not None and not isinstance(value, str):
            raise OptionError(f"{name}: {what} is needed, found {value!r:.80}")
        texts[name] = value
    if texts["group"] is not None and not looks_like_fingerprint(texts["group"]):
        raise OptionError(f"group: {_TEXTS['group']} is needed, found {texts['group']!r:.80}")
    permanent = filters.get("permanent")
    check_permanent(permanent)
    since, until = stretch_ms(filters.get("since"), filters.get("until"), now_ms)
    return Wanted(**texts, since_ms=since, until_ms=until, permanent=permanent)


def check_permanent(permanent: Any) -> None:
    """Refuse what is neither yes nor no; None: both."""
    if permanent is not None and not isinstance(permanent, bool):
        raise OptionError(f"permanent: True or False is needed, found {permanent!r:.80}")


def fits(wanted: Wanted, record: Record, envelope: Envelope | None) -> bool:
    """Whether a letter is one of those that are wanted, as far as no index tells."""
    if wanted.is_in_index:
        return True
    tenant = envelope.group if envelope else record.tenant
    exact = (
        (wanted.task, record.target),
        (wanted.reason, record.reason),
        (wanted.came_from, record.queue_from),
        (wanted.tenant, tenant),
        (wanted.permanent, is_permanent(record.reason)),
    )
    if any(asked is not None and asked != found for asked, found in exact):
        return False
    if wanted.error is not None and wanted.error.lower() not in f"{record.reason} {record.story.last.words}".lower():
        return False
    return wanted.text is None or _holds(wanted.text.lower(), record)


def _holds(text: str, record: Record) -> bool:
    """Whether the text is anywhere in a letter, small or capital letters alike."""
    told = (part for one in record.story.attempts for part in (one.error, one.message, one.traceback, one.worker))
    if any(text in part.lower() for part in (record.reason, record.worker, record.target, *told)):
        return True
    body = bytes(record.body) or record.unreadable
    needle = msgspec.json.encode(text)[1:-1]  # as it stands in JSON, where quotes are escaped
    return needle.decode() in body.decode(errors="replace").lower()
