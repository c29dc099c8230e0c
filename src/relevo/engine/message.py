"""A message of the bus: what its envelope says besides the job, and what is handed on from one to the next.

A message is a job whose target is an action of a service. Its headers travel in the job's envelope; the tenant is the
job's tenant, the deadline is the time after which the job is not worth starting. What a handler sends while it works on
a message belongs to the same operation: `onward` says what it inherits, so that nobody has to pass it on by hand.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, field

from relevo.errors import BusError

T = TypeVar("T")

Intent = Literal["send", "request", "event", "callback"]
Status = Literal["done", "failed", "cancelled", "timeout", "progress"]

#: Calls inside calls inside calls: more than this is a circle.
DEEPEST = 32


class Headers(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a message says besides its type and its data. Short keys; none of them is one of the job's own."""

    intent: Intent = field(name="o", default="send")
    #: The service that sent it, and the process.
    source: str = field(name="f", default="")
    instance: str = field(name="h", default="")
    version: str = field(name="v", default="")
    tier: str = field(name="t", default="")
    session: str = field(name="e", default="")
    #: The conversation that the user named: what is made on its behalf is tracked and can be cleaned up.
    conversation: str = field(name="j", default="")
    #: The operation; '': this message began it, its own id is the operation's.
    correlation: str = field(name="c", default="")
    #: The message that caused this one.
    causation: str = field(name="u", default="")
    #: Where the reply goes, as an address with prefix and env.
    reply_to: str = field(name="r", default="")
    #: The callback that waits there.
    callback: str = field(name="b", default="")
    depth: int = field(name="d", default=0)
    traceparent: str = field(name="tp", default="")
    tracestate: str = field(name="ts", default="")


class Message(Struct, frozen=True):
    """The message that a handler works on, whole: `current_job().message`."""

    id: str
    type: str
    attempt: int
    intent: Intent
    source: str
    instance: str
    version: str
    tenant: str
    tier: str
    session: str
    conversation_id: str
    correlation_id: str
    causation_id: str
    reply_to: str
    #: Milliseconds of the server's clock; None: it may take as long as it takes.
    deadline_ms: int | None
    traceparent: str
    tracestate: str


def message_of(id: str, type: str, attempt: int, tenant: str, deadline_ms: int | None, headers: Headers) -> Message:
    """Headers and what the job itself says, as one value."""
    operation = headers.correlation or id
    return Message(
        id,
        type,
        attempt,
        headers.intent,
        headers.source,
        headers.instance,
        headers.version,
        tenant,
        headers.tier,
        headers.session,
        headers.conversation or operation,
        operation,
        headers.causation,
        headers.reply_to,
        deadline_ms,
        headers.traceparent,
        headers.tracestate,
    )


class Belongings(Struct, frozen=True):
    """To whom and to what a message belongs; None: as the message that is being worked on."""

    tenant: str | None = None
    tier: str | None = None
    session: str | None = None
    conversation: str | None = None
    correlation_id: str | None = None
    version: str = ""
    traceparent: str | None = None


def onward(
    own: Belongings, parent: Message | None, carried: Headers, *, intent: Intent, source: str, instance: str
) -> tuple[str, Headers]:
    """The tenant and the headers of a message that is sent while `parent`, with the headers `carried`, is worked on."""
    if parent is None:
        correlation = own.correlation_id or own.conversation or ""
        return own.tenant or "", Headers(
            intent,
            source,
            instance,
            own.version,
            own.tier or "",
            own.session or "",
            own.conversation or "",
            correlation,
            traceparent=own.traceparent or "",
        )
    if carried.depth >= DEEPEST:
        raise BusError(
            f"messages cause messages {carried.depth} times over, the last one {parent.type}: is it a circle? "
            "What is to go on for ever should be a schedule"
        )
    return _first(own.tenant, parent.tenant), Headers(
        intent,
        source,
        instance,
        own.version,
        _first(own.tier, parent.tier),
        _first(own.session, parent.session),
        _first(own.conversation, carried.conversation),
        own.correlation_id or parent.correlation_id,
        parent.id,
        depth=carried.depth + 1,
        traceparent=_first(own.traceparent, parent.traceparent),
        tracestate=parent.tracestate,
    )


def _first(own: str | None, inherited: str) -> str:
    return inherited if own is None else own


class Fault(Struct, frozen=True, omit_defaults=True):
    """Why a message failed at the other side."""

    type: str
    message: str = ""
    #: Whether the same message may go well another time.
    retryable: bool = False
    #: What the other side's store calls it: retries_exhausted, permanent, bad_arguments, …
    reason: str = ""
    #: Only if the other side allows it.
    traceback: str = ""


class Reply(Struct, Generic[T], frozen=True, omit_defaults=True):
    """What a callback is given: `async def embeddings_ready(reply: Reply[list[float]]) -> None`."""

    status: Status
    #: What the action returned, or reported on the way; None if it did not end well.
    result: T | None = None
    error: Fault | None = None
    #: What the sender gave along.
    context: Any = None
    #: The action that was asked.
    action: str = ""
    correlation_id: str = ""
    #: By whoever ended the message, where that is signed.
    signature: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.status == "done"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will come."""
        return self.status != "progress"
