"""What a caller says about a message, and the headers it travels with.

What a handler sends while it works on a message belongs to the same operation: `headers_of` says what is inherited, so
that handlers need not pass it on by hand.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from relevo.engine.job import PRIORITY_DEFAULT
from relevo.engine.message import Headers, Intent, Message
from relevo.engine.options import Options, changed
from relevo.errors import BusError, OptionError
from relevo.text.durations import Duration

#: Messages that cause messages: a longer chain is taken for a circle.
DEEPEST = 32


class Sending(Struct, frozen=True, kw_only=True):
    """What a caller says about a message that it sends; checked once, here."""

    tenant: str | None = None
    tier: str | None = None
    session: str | None = None
    conversation: str | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    version: str = ""
    priority: int = PRIORITY_DEFAULT
    at: Any = None
    idempotency_key: str | None = None
    delay: Duration | None = None
    #: What middleware made of the headers that travel along; None: the app has none.
    _carried: dict[str, str] | None = None

    def __post_init__(self) -> None:
        for name in ("tenant", "tier", "session", "conversation", "correlation_id", "traceparent", "version"):
            _text(name, getattr(self, name))
        changed(_OPTIONS, {"priority": self.priority})
        if self.idempotency_key is not None and not _text("idempotency_key", self.idempotency_key):
            raise OptionError("idempotency_key: a text is needed, found ''")


_OPTIONS = Options()


def _text(name: str, given: Any) -> str:
    if given is None:
        return ""
    if not isinstance(given, str) or len(given) > 200 or not given.isprintable():
        raise OptionError(f"{name}: printable text of at most 200 characters is needed, found {given!r:.80}")
    return given


def headers_of(
    options: Sending, parent: Message | None, *, intent: Intent, source: str, instance: str
) -> tuple[str, Headers]:
    """The tenant and headers of a message that is sent while `parent` is handled: its own, else those of `parent`."""
    if parent is None:
        return options.tenant or "", Headers(
            intent,
            source,
            instance,
            options.version,
            options.tier or "",
            options.session or "",
            options.conversation or "",
            options.correlation_id or options.conversation or "",
            traceparent=options.traceparent or "",
        )
    theirs = parent.headers
    if theirs.depth >= DEEPEST:
        raise BusError(
            f"messages cause messages {theirs.depth} times over, the last one {parent.type}: is it a circle? "
            "Use a schedule for what repeats without end"
        )
    return _first(options.tenant, parent.tenant), Headers(
        intent,
        source,
        instance,
        options.version,
        _first(options.tier, theirs.tier),
        _first(options.session, theirs.session),
        _first(options.conversation, theirs.conversation),
        options.correlation_id or parent.correlation_id,
        parent.id,
        depth=theirs.depth + 1,
        traceparent=_first(options.traceparent, theirs.traceparent),
        tracestate=theirs.tracestate,
    )


def _first(own: str | None, inherited: str) -> str:
    return inherited if own is None else own
