"""Callbacks: the end of a message is handled by an action of its sender, in any live process of the sender.

The callback is a job in the sender's own `callbacks` queue. It is stored first, as waiting, with an outbox message that
is due at its deadline; then the message is sent with an edge that leads back to it. The first of the two releases the
job, and the other has no effect. So the callback is settled once, it survives every process, and no list has to be read
for each message. If the sender dies between the two steps, the callback gets a timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from relevo.bus.bus import Bus
from relevo.bus.data import encoded
from relevo.bus.message_store import interim_body, lay_beside, promise, report, send, take_away
from relevo.bus.naming import action_name, queue_of
from relevo.bus.outgoing import Outgoing, track, tracked_by, with_reply_to
from relevo.engine.context import JobContext, running
from relevo.engine.edges import Edge
from relevo.engine.job import Envelope, Proof, write
from relevo.engine.message import Headers, Reply
from relevo.errors import BusError, OptionError
from relevo.signing.signer import Kind
from relevo.store.plan import Call
from relevo.text.names import parse

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


log = logging.getLogger("relevo.bus")

#: Separates the beginning of a report from its signature. It cannot occur in JSON.
_PARTED = b"\x1e"


class Callbacks(Struct, frozen=True, kw_only=True):
    """The callbacks that a sender asks for."""

    service: str
    context: tuple[str, ...]
    on_reply: str
    on_timeout: str | None = None
    on_progress: str | None = None
    timeout: float
    #: The `context` that the handlers get.
    given: Any = None
    sticky: bool = False

    def __post_init__(self) -> None:
        for name in (self.on_reply, self.on_timeout, self.on_progress):
            if name is not None:
                action_name(name)
        if self.timeout <= 0:
            raise OptionError(f"timeout: more than 0 seconds is needed, found {self.timeout!r}")

    @property
    def queue(self) -> str:
        """Where the callback waits and runs."""
        return queue_of(self.service, self.context, "callbacks")


def sending(engine: Engine, message: Outgoing, wanted: Callbacks | None) -> Generator[Call[Any], Any, str]:
    """Send a message, after storing its callback if it has one. Returns its id, or that of its first sending."""
    waiter, headers = "", message.headers
    if wanted is not None:
        callback = engine.new_id()
        yield from _promise(engine, message, wanted, callback)
        address = f"{engine.keys_of(wanted.queue).address}"
        headers = with_reply_to(headers, address, callback)
        waiter = str(Edge(callback, wanted.queue, "b", 0))
    keys = engine.keys_of(message.queue)
    yield from engine.list_queue(message.queue)
    yield from track(engine, tracked_by(engine, message.headers), message.queue)
    is_claimed = message.is_claimed(engine)
    if is_claimed:
        yield from lay_beside(keys, message.id, message.data)
    deadline_ms, left_ms = yield from message.timed(engine, message.timeout)
    outcome, owner = yield send(
        keys,
        message.id,
        message.body(engine, headers, deadline_ms),
        message.place,
        lease_ms=engine.lease_ms,
        delay_ms=message.delay_ms,
        waiter=waiter,
        timeout_ms=left_ms,
        name=message.name,
        tracked=tracked_by(engine, message.headers),
        is_claimed=is_claimed,
    )
    if outcome == "taken":
        if is_claimed:
            yield take_away(keys, message.id)
        return str(owner)
    return message.id


def _promise(engine: Engine, message: Outgoing, wanted: Callbacks, id: str) -> Generator[Call[Any], Any, None]:
    yield from engine.list_queue(wanted.queue)
    yield from track(engine, tracked_by(engine, message.headers), wanted.queue)
    operation = message.headers.correlation or message.id
    headers = msgspec.structs.replace(
        message.headers, intent="callback", source=message.type.partition(".")[0], correlation=operation, instance=""
    )
    headers = msgspec.structs.replace(headers, causation=message.id)
    known = {
        "context": Raw(encoded(wanted.given, what="context", limit=engine.settings.max_payload)),
        "action": message.type,
        "correlation_id": operation,
    }

    keys, proof = engine.keys_of(wanted.queue), None
    if keys.signer is not None:
        until_ms = (yield from engine.about_now_ms()) + round(wanted.timeout * 1000) + message.delay_ms
        proof = Proof(answers=engine.keys_of(message.queue).place, until_ms=until_ms)

    def head(action: str, takes: str) -> bytes:
        target = f"{wanted.service}.{action}"
        own = proof if takes else None
        carried = message.chosen.get("job_headers")
        envelope = Envelope(
            target, takes=takes, headers=headers, proof=own, job_headers=carried, **message.place.chosen
        )
        return write(envelope)[:-1]

    def body(action: str, kind: Kind) -> bytes:
        whole = head(action, "reply") + b',"a":[' + write(known) + b"]}"
        return whole if keys.signer is None else keys.signer.signed(kind, id, whole)

    interim = b""
    if wanted.on_progress is not None:
        interim = head(wanted.on_progress, "") + b',"a":[' + write({"status": "progress", **known})[:-1] + b',"result":'
        if keys.signer is not None:
            interim += _PARTED + keys.signer.sign("template", id, interim).encode()
    yield promise(
        keys,
        wanted.queue,
        id,
        message.place,
        body(wanted.on_reply, "callback"),
        timeout_ms=round(wanted.timeout * 1000) + message.delay_ms,
        failure_ms=engine.failure_ms(None),
        late=body(wanted.on_timeout, "timeout") if wanted.on_timeout is not None else b"",
        interim=interim,
        prefer=f"{_worker(engine)} {engine.lease_ms}" if wanted.sticky else "",
        tracked=tracked_by(engine, message.headers),
    )


def _worker(engine: Engine) -> str:
    """The worker of this process, which a sticky callback prefers."""
    job = running.get()
    worker = job.worker if job is not None and job.worker else engine.part(Bus).worker
    if not worker:
        raise OptionError(
            "sticky: no worker runs in this process, so no callback can come back to it. "
            "Run one here, such as asyncio.create_task(Worker(app).run())"
        )
    return worker


def reporting(engine: Engine, job: JobContext, value: Any) -> Generator[Call[Any], Any, bool]:
    """Report progress to the callback of the message being handled. Returns whether the callback still waits."""
    headers = job.message_headers
    if headers is None:
        raise BusError(f"job {job.id} is no message of the bus, so it has no sender to report to")
    raw = encoded(value, what="report", limit=engine.settings.max_payload)
    if not headers.callback:
        return False
    address = parse(headers.reply_to, prefix=bool(engine.settings.prefix), env=bool(engine.settings.env))
    queue = engine.keys_of(queue_of(address.service, address.context, "callbacks"))
    known: bytes | None = yield interim_body(queue, headers.callback)
    if known is None:
        return False
    known, _, signature = known.partition(_PARTED)
    id, body, signer = engine.new_id(), known + raw + b"}]", queue.signer
    if signer is not None:
        # Without this check, text that another program wrote there would be signed.
        bears = signature.decode(errors="replace")
        if error := signer.verify("template", headers.callback, known, bears, service=signer.owner):
            log.error("%s: nothing is reported to callback %s: %s", job.target, headers.callback, error)
            return False
        body += signer.signature_field("report", id, body, service=job.target.partition(".")[0])
    is_queued: bool = yield report(queue, headers.callback, id, body + b"}")
    return is_queued


def is_final(headers: Headers, args: tuple[Any, ...]) -> bool:
    """Whether a callback with these arguments is the last one of its message."""
    return headers.intent == "callback" and bool(args) and not (isinstance(args[0], Reply) and not args[0].is_final)
