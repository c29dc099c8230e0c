"""A job as it is stored: its envelope, its states, and the story of its attempts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, field

from relevo.engine.backoff import Backoff, Seconds
from relevo.engine.message import Headers
from relevo.text.masking import masked_text


class State(StrEnum):
    """Where a job is. `unknown` is an answer of its own: a job that does not exist is not one that waits."""

    SCHEDULED = "scheduled"
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    UNKNOWN = "unknown"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen to the job by itself."""
        return self in _ENDED


_ENDED = {State.DONE, State.DEAD, State.CANCELLED, State.EXPIRED}

PRIORITY_DEFAULT = 100
PRIORITY_MAX = 1023


#: What a body without keyword arguments is read to: this very object, so that it need not be read again.
NO_KWARGS = Raw(b"{}")


class Proof(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a signed body says besides, so that its signature covers what does not stand in it."""

    #: Of an event: when it was published, by the server's clock. How long it is worth handling its subscribers say.
    made_ms: int | None = field(name="m", default=None)
    #: Digest of the data that stands beside it.
    data: str = field(name="d", default="")
    #: Digest of the jobs whose results it takes.
    parents: str = field(name="p", default="")
    #: Of a callback: the queue of the message whose end it takes, and until when it waits, by the server's clock.
    answers: str = field(name="q", default="")
    until_ms: int | None = field(name="u", default=None)


class Envelope(Struct, frozen=True, omit_defaults=True, gc=False):
    """A job's body. Short keys and omitted defaults: a million of these may be queued.

    Only what the caller chose is here; all else comes from the task's own options on the worker, so that a deploy
    changes the jobs that are already queued. Unknown fields are those of a newer version and are ignored.

    The bounds are for bodies that others wrote: one number that the server cannot take would make it refuse the whole
    turn in which a worker tells of many jobs.
    """

    target: str = field(name="t")
    args: Raw = field(name="a", default=Raw(b"[]"))
    kwargs: Raw = field(name="k", default=NO_KWARGS)
    priority: Annotated[int, Meta(ge=0, le=PRIORITY_MAX)] = field(name="p", default=PRIORITY_DEFAULT)
    tenant: str = field(name="g", default="")
    weight: Annotated[float, Meta(ge=0.01, le=64)] = field(name="w", default=1.0)
    name: str = field(name="n", default="")
    tags: tuple[str, ...] = field(name="l", default=())
    expires_ms: int | None = field(name="x", default=None)
    retries: Annotated[int, Meta(ge=0)] | None = field(name="r", default=None)
    backoff: Backoff | None = field(name="b", default=None)
    timeout: Seconds | None = field(name="o", default=None)
    result_ttl: Seconds | None = field(name="rt", default=None)
    failure_ttl: Seconds | None = field(name="ft", default=None)
    on_failure: str | None = field(name="f", default=None)
    #: It receives the one result ("one") or the list of results ("list") of its parents as its first argument, or what
    #: came of the message it is the callback of ("reply"); or its arguments are too large for a body ("claim") and
    #: stand beside it. "taken" and "claimed", in a worker's hands: they are there.
    takes: str = field(name="i", default="")
    #: Something takes its result, so it is passed on even where none is kept.
    passes: bool = field(name="y", default=False)
    #: The workflow it belongs to: its id, and the queue in which that is kept.
    flow: str = field(name="wf", default="")
    #: The tick of the schedule that made it.
    tick_ms: int | None = field(name="tk", default=None)
    #: The dead letter that it takes the place of, with other arguments.
    origin: str = field(name="og", default="")
    #: The span in which it was made, where traces are on; a message has it in its headers.
    traceparent: str = field(name="tp", default="")
    #: What middleware added: texts that travel with it. Written before the arguments, see middleware/headers.py.
    job_headers: dict[str, str] | None = field(name="h", default=None)
    #: It becomes ready so long after it is made, or (0) when those are done that it depends on.
    later_ms: int | None = field(name="d", default=None)
    #: Of a message of the bus.
    headers: Headers | None = field(name="m", default=None)
    #: Where bodies are signed: what of it stands elsewhere, and the signature, which is the last field; see signing/.
    proof: Proof | None = field(name="z", default=None)
    signature: str = field(name="s", default="")


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One run of a job that failed, or whose end is not known."""

    how: str
    worker: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    error: str = ""
    message: str = ""
    traceback: str = ""

    @property
    def words(self) -> str:
        """What went wrong, as people read it: without credentials."""
        message = masked_text(self.message)
        return f"{self.error}: {message}" if self.error else message


#: Attempts kept in full, the newest. The counts beside them cover all.
ATTEMPTS_TOLD = 20


class Story(Struct, frozen=True, omit_defaults=True):
    """What happened to a job so far; empty for all that run well the first time."""

    attempts: tuple[Attempt, ...] = ()
    #: Attempts that used up a retry.
    spent: int = 0
    #: How often its worker was lost.
    crashes: int = 0
    #: Since when workers have been asked that do not know its task; 0: none was.
    unknown_since_ms: int = 0
    #: How many suspects shared the process that died last; the next time at most half as many do. 0: none has died.
    among: int = 0
    #: Signatures of its task that refused it since it last ran: workers that have them are not asked again.
    refused_by: tuple[str, ...] = ()

    @property
    def last(self) -> Attempt:
        """The last attempt; one that says nothing where there was none."""
        return self.attempts[-1] if self.attempts else Attempt("")

    def with_attempt(self, attempt: Attempt, *, spent: int = 0, crashes: int = 0, among: int | None = None) -> Story:
        """The story with one more attempt."""
        if among is None:  # its process outlived an attempt that failed by itself: it may share one with many again
            among = 0 if spent else self.among
        return msgspec.structs.replace(
            self,
            attempts=(*self.attempts, attempt)[-ATTEMPTS_TOLD:],
            spent=self.spent + spent,
            crashes=self.crashes + crashes,
            unknown_since_ms=0,  # a worker knew the task: the next one that does not starts the time anew
            among=among,
            refused_by=(),
        )


#: No JSON at all. Left out when written, but only if it is this very object: an equal one would be written as nothing.
NO_JSON = Raw(b"")


class Record(Struct, frozen=True, omit_defaults=True):
    """What is left of a job that has ended, until its time limit.

    What is short comes first: scripts read a dead letter's head, all before its story
    (`engine/lua/include/record_head.lua`).
    """

    state: State
    target: str = ""
    #: Of a dead letter: which others died alike, see engine/fingerprint.py.
    fingerprint: str = ""
    queue_from: str = ""
    reason: str = ""
    #: Of a dead letter: the error of its last attempt in one line, whose job it was, which relevo wrote this, and which
    #: job took its place.
    error: str = ""
    tenant: str = ""
    version: str = ""
    replaced_by: str = ""
    started_ms: int = 0
    ended_ms: int = 0
    worker: str = ""
    runs: int = 1
    result: Raw = NO_JSON
    not_kept: str = ""
    story: Story = Story()
    body: Raw = NO_JSON
    #: The body as it was found, where it could not be read.
    unreadable: bytes = b""
    #: Of a message: whether the waiter may see its traceback, and which service signed its end.
    shows_traceback: bool = False
    signature: str = ""


read_envelope = msgspec.json.Decoder(Envelope).decode

_read_record = msgspec.json.Decoder(Record).decode


def read_record(text: bytes) -> Record:
    """Read a record. Where a script wrote it, the body stands behind the JSON, parted by a sign that no JSON holds."""
    head, parted, body = text.partition(b"\x1e")
    record = _read_record(head)
    if not parted:
        return record
    try:
        envelope = read_envelope(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.structs.replace(record, unreadable=body)
    return msgspec.structs.replace(record, target=envelope.target, body=Raw(body))


read_story = msgspec.json.Decoder(Story).decode
write = msgspec.json.Encoder().encode
