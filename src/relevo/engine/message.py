"""A message of the bus: the headers that travel in its envelope, and the message as its handler sees it.

A message is a job whose target is an action of a service. The tenant is the job's tenant, and the deadline is the time
after which the job is not worth starting. What a caller says about a message is `bus.headers.Sending`.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct, field

T = TypeVar("T")

Intent = Literal["send", "request", "event", "callback"]
Status = Literal["done", "failed", "cancelled", "timeout", "progress"]


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


class Message(Struct, frozen=True, kw_only=True):
    """The message that a handler works on: `current_job().message`."""

    id: str
    type: str
    attempt: int
    tenant: str
    #: Milliseconds of the server's clock; None: no limit.
    deadline_ms: int | None
    headers: Headers

    @property
    def intent(self) -> Intent:
        """send, request, event or callback."""
        return self.headers.intent

    @property
    def source(self) -> str:
        """The service that sent it."""
        return self.headers.source

    @property
    def instance(self) -> str:
        """The process that sent it."""
        return self.headers.instance

    @property
    def version(self) -> str:
        """The version that its sender named."""
        return self.headers.version

    @property
    def tier(self) -> str:
        """The tier of its tenant."""
        return self.headers.tier

    @property
    def session(self) -> str:
        """The session that its sender named."""
        return self.headers.session

    @property
    def conversation_id(self) -> str:
        """Its conversation; the operation if its sender named none."""
        return self.headers.conversation or self.correlation_id

    @property
    def correlation_id(self) -> str:
        """The operation: everything that one message led to. The first message has its own id here."""
        return self.headers.correlation or self.id

    @property
    def causation_id(self) -> str:
        """The message that caused this one."""
        return self.headers.causation

    @property
    def reply_to(self) -> str:
        """The address that its reply goes to."""
        return self.headers.reply_to

    @property
    def traceparent(self) -> str:
        """The span in which it was sent (W3C Trace Context)."""
        return self.headers.traceparent

    @property
    def tracestate(self) -> str:
        """What tracing systems add to `traceparent`."""
        return self.headers.tracestate


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


class Reply(Struct, Generic[T], frozen=True, omit_defaults=True, kw_only=True):
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
    #: Of the service that ended the message, where ends are signed.
    signature: str = ""

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return self.status == "done"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will come."""
        return self.status != "progress"
