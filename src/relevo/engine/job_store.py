"""One job: look at it, wait for it, cancel it, bring it back, forget it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.job import Envelope, Record, State, Story, read_envelope, read_record, read_story
from relevo.engine.push import KEEP_MS
from relevo.engine.signed_ends import cancelled_by_hand
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Argument, Call, Steps


class Claim(Struct, frozen=True):
    """The worker that holds a job, since when, and with which token."""

    token: int
    worker: str
    since_ms: int
    cancel_asked: bool = False


def read_claim(text: bytes) -> Claim | None:
    """Read an entry of `claims`."""
    match text.decode(errors="replace").split():
        case [token, worker, since, *flags] if token.isdigit() and since.isdigit():
            return Claim(int(token), worker, int(since), flags == ["c"])
    return None


def record_of(text: bytes, state: State = State.DEAD) -> Record:
    """The record of an ended job in a listing; an unreadable one must not hide the others."""
    try:
        return read_record(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Record(state, reason="unreadable", unreadable=text)


class Seen(Struct, frozen=True):
    """A job as one look found it."""

    id: str
    state: State
    envelope: Envelope | None = None
    body: bytes = b""
    #: When a scheduled job is due, or a running one's lease ends.
    due_ms: int | None = None
    claim: Claim | None = None
    story: Story = Story()
    record: Record | None = None
    notes: dict[str, str] = {}
    #: Of a waiting job: how many jobs it still waits for.
    open: int = 0
    #: Of one that some workers cannot take: how many live workers can; None: it does not wait for such a worker.
    takers: int | None = None


def look(queue: QueueKeys, id: str) -> Call[Seen]:
    """Everything about a job; state `unknown` if there is none."""
    script = queue.script("engine/read_job")
    return Call([id], lambda reply: _seen(id, reply), script, queue.of(script))


def _seen(id: str, reply: list[Any]) -> Seen:
    state, score, body, claim, story, record, notes, waits_for, takers = reply
    written = {notes[i].decode(): notes[i + 1].decode(errors="replace") for i in range(0, len(notes), 2)}
    if state == b"ended":
        ended = read_record(record)
        return Seen(id, ended.state, record=ended, story=ended.story, body=bytes(ended.body), notes=written)
    if not state:
        return Seen(id, State.UNKNOWN, notes=written)
    due = int(float(score))
    return Seen(
        id,
        State(state.decode()),
        readable(body),
        body,
        due // 1024 if state == b"scheduled" else due if state == b"running" else None,
        read_claim(claim),
        story_of(story),
        notes=written,
        open=waits_for,
        takers=takers if takers >= 0 else None,
    )


def readable(body: bytes) -> Envelope | None:
    """The envelope; None if the text is none."""
    try:
        return read_envelope(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def story_of(text: bytes) -> Story:
    """The story so far; a new one if there is none, or it is unreadable."""
    try:
        return read_story(text) if text else Story()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Story()


def holder(queue: QueueKeys, name: str) -> Call[str]:
    """The id of the job that holds this name, which may have ended; '': none."""
    return Call([b"HGET", queue.key("names"), name], lambda reply: reply.decode() if reply else "")


def attach(queue: QueueKeys, id: str, inbox: bytes) -> Call[Record | bool | None]:
    """The record of a job that has ended; True: the inbox will be notified; None: there is no such job."""
    script = queue.script("engine/wait_for_end")

    def decode(reply: list[bytes]) -> Record | bool | None:
        match reply:
            case [b"ended", record]:
                return read_record(record)
            case [b"waits", _]:
                return True
            case _:
                return None

    return Call([id, inbox], decode, script, queue.of(script))


def attach_all(jobs: Sequence[tuple[QueueKeys, str]], inbox: bytes) -> Steps[list[Record | bool | None]]:
    """The same for many jobs."""
    found: list[Record | bool | None] = yield Ahead(attach(queue, id, inbox) for queue, id in jobs)
    return found


def cancel(queue: QueueKeys, jobs: Sequence[tuple[str, int, str]], dead_max: int) -> Call[tuple[list[str], bool]]:
    """Cancel (id, ttl of its record in ms, name)s: 'cancelled', 'asked' or 'unknown' of each; whether to relay."""
    script = queue.script("engine/cancel_jobs")
    args: list[Argument] = [0, dead_max, KEEP_MS]
    for job in jobs:
        args += (*job, cancelled_by_hand(queue.signer, job[0]))
    return Call(args, lambda r: ([one.decode() for one in r[:-1]], bool(r[-1])), script, queue.of(script))


#: Of `revive`: it is back in its queue, and its outbox has messages.
REVIVED_AND_POSTED = 2


def revive(
    queue: QueueKeys, id: str, envelope: Envelope, body: bytes, ended_ms: int, *, died_ms: int | None = None
) -> Call[tuple[int, int]]:
    """Put an ended job back in its queue: 0 if another call did so before, -1 if a parent forbids it, else 1, or
    `REVIVED_AND_POSTED` if there is something to relay; and the number under which its dependents are notified.

    `died_ms`: only if it is the dead letter that died then, and not again since.
    """
    script = queue.script("engine/revive_job")
    args: list[Argument] = [id, envelope.priority, envelope.tenant, envelope.weight, body, envelope.name, KEEP_MS]
    args += (ended_ms, "" if died_ms is None else died_ms, 0)
    return Call(args, tuple, script, queue.of(script), again=len(args) - 1)


def discard(queue: QueueKeys, ids: Sequence[str], *, undo_ms: int = 0) -> Call[tuple[int, bool]]:
    """Forget ended jobs: how many there were; whether to relay. Dead letters can be restored for `undo_ms`."""
    script = queue.script("engine/discard_ended")
    return Call([KEEP_MS, undo_ms, *ids], lambda r: (r[0], bool(r[1])), script, queue.of(script))


def remove(queue: QueueKeys, jobs: Iterable[tuple[str, str]], state: str) -> Call[tuple[int, bool]]:
    """Remove (id, name)s that have not started, and notify their dependents: how many; whether to relay."""
    script = queue.script("queues/clear_queue")
    args: list[Argument] = [KEEP_MS, state, 0, 0]
    for job in jobs:
        args += (*job, cancelled_by_hand(queue.signer, job[0], "cleared"))
    return Call(args, lambda reply: (reply[0], bool(reply[1])), script, queue.of(script))
