"""Bodies of jobs and messages: whose signature each must bear, and what is wrong with the one that it bears."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable
from hashlib import sha256
from typing import TypeAlias

from relevo.model.job import Envelope
from relevo.model.message import Headers
from relevo.model.topics import matches
from relevo.signing.signer import Kind, Signer, kind_said, unmarked

#: What stands behind the signature of an event: until when one subscriber wants it, which the publisher does not know.
_UNTIL = re.compile(rb',"x":\d+\}$')
#: Which messages belong on which queues.
_BELONGS = {("send", "actions"), ("request", "actions"), ("event", "notifications"), ("callback", "callbacks")}

#: A job whose result is taken: its id, and the place of its queue.
Parent: TypeAlias = tuple[str, str]


def doubt_of(signer: Signer, id: str, body: bytes, envelope: Envelope) -> str:
    """What is wrong with the signature of a body as it was stored; '': it is good."""
    headers, signature = envelope.headers, envelope.signature
    if headers is None and signer.is_own("job", id, body):
        return ""
    is_event = headers is not None and headers.intent == "event"
    text = unmarked(_UNTIL.sub(b"}", body) if is_event else body, signature) or b""
    kind, topic = kind_of(envelope), ""
    said = kind_said(signature)
    if headers is not None and (headers.intent, signer.queue_kind) not in _BELONGS:
        return f"it is a message of intent {headers.intent!r}, and this is a queue of {signer.queue_kind}"
    if said == "copy" or (said, kind) == ("timeout", "callback"):
        return signer.doubt("copy" if said == "copy" else "timeout", id, text, signature, service=signer.owner)
    if headers is not None and kind == "event":
        topic = envelope.target
        if headers.source != topic.partition(".")[0] or not matches(signer.pattern, topic):
            return f"it is an event {topic!r:.80} of {headers.source!r:.60}, which does not belong here"
    return signer.doubt(kind, id, text, signature, service=_service_of(headers, kind, signer.owner), topic=topic)


def kind_of(envelope: Envelope) -> Kind:
    """As what a body is signed."""
    headers = envelope.headers
    if headers is None:
        return "job"
    if headers.intent == "callback":
        return "callback" if envelope.takes else "report"
    return headers.intent


def _service_of(headers: Headers | None, kind: Kind, owner: str) -> str:
    """Who must have signed it. A callback was stored by the one that it calls, whoever it hears from."""
    return owner if headers is None or kind == "callback" else headers.source


def digest_of(data: bytes) -> str:
    """The digest of data that stands beside a body."""
    return b2a_base64(sha256(data).digest(), newline=False)[:43].decode()


def digest_of_parents(parents: Iterable[Parent]) -> str:
    """The digest of the jobs whose results a job takes, in order."""
    return digest_of("\n".join(f"{id} {place}" for id, place in parents).encode(errors="replace"))
