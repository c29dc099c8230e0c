"""Bodies of jobs and messages: which service must have signed each, as which kind, and whether it did."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable
from hashlib import sha256
from typing import TypeAlias

from relevo.engine.job import Envelope
from relevo.engine.message import Headers
from relevo.engine.topics import matches
from relevo.signing.signer import Kind, Signer, kind_of_signature, without_signature

#: Follows the signature of an event: its deadline for one subscriber, which the publisher does not know.
_UNTIL = re.compile(rb',"x":\d+\}$')
#: The intents of messages, and the kind of queue on which each is accepted.
_BELONGS = {("send", "actions"), ("request", "actions"), ("event", "notifications"), ("callback", "callbacks")}

#: A job whose result is taken: its id, and the place of its queue.
Parent: TypeAlias = tuple[str, str]


def verify_body(signer: Signer, id: str, body: bytes, envelope: Envelope) -> str:
    """What is wrong with the signature of a body as it was stored; '': it is good."""
    headers, signature = envelope.headers, envelope.signature
    if headers is None and signer.is_own_signature("job", id, body):
        return ""
    is_event = headers is not None and headers.intent == "event"
    text = without_signature(_UNTIL.sub(b"}", body) if is_event else body, signature) or b""
    kind, topic, written = kind_of(envelope), "", kind_of_signature(signature)
    if headers is not None and (headers.intent, signer.queue_kind) not in _BELONGS:
        return f"it is a message of intent {headers.intent!r}, and this is a queue of {signer.queue_kind}"
    if written == "copy" or (written == "timeout" and kind == "callback"):
        return signer.verify("copy" if written == "copy" else "timeout", id, text, signature, service=signer.owner)
    if headers is not None and kind == "event":
        topic = envelope.target
        if headers.source != topic.partition(".")[0] or not matches(signer.pattern, topic):
            return f"it is an event {topic!r:.80} of {headers.source!r:.60}, which does not belong here"
    return signer.verify(kind, id, text, signature, service=_service_of(headers, kind, signer.owner), topic=topic)


def kind_of(envelope: Envelope) -> Kind:
    """The kind as which a body is signed."""
    headers = envelope.headers
    if headers is None:
        return "job"
    if headers.intent == "callback":
        return "callback" if envelope.takes else "report"
    return headers.intent


def _service_of(headers: Headers | None, kind: Kind, owner: str) -> str:
    """The service that must have signed it. A callback is stored by the service that it calls."""
    return owner if headers is None or kind == "callback" else headers.source


def digest_of(data: bytes) -> str:
    """The digest of data stored beside a body."""
    return b2a_base64(sha256(data).digest(), newline=False)[:43].decode()


def digest_of_parents(parents: Iterable[Parent]) -> str:
    """The digest of the jobs whose results a job takes, in order."""
    return digest_of("\n".join(f"{id} {place}" for id, place in parents).encode(errors="replace"))
