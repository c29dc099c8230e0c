"""The purge in the store: find what may be too old, part by part, and act only on what nothing happened to since."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.leader import LEAD_MS, remember
from relevo.engine.push import CHUNK_BYTES, KEEP_MS
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Entries of one look: none takes longer than some milliseconds, however long the queue is.
PART = 250
#: Ended in one step.
ACTS = 50
#: How long it is noted what held jobs back: their ages count from then, and no limit in use is longer.
HELD_MS = 30 * 86_400_000
#: What is short comes first in a record: see engine/job.py.
_TARGET = re.compile(rb'{"state":"done","target":("(?:[^"\\]|\\.)*")')


class Candidate(Struct, frozen=True, kw_only=True):
    """A job that may be too old, as it was seen."""

    id: str
    #: As the server wrote it: an entry with another score is another one.
    score: bytes
    body: bytes
    claim: bytes
    story: bytes
    bytes: int
    is_in_line: bool
    #: Of one that is done, of which there is no body any more.
    task: str = ""


class OldJobs(Struct, frozen=True):
    """A part of the jobs in one state."""

    looked: int
    has_more: bool
    found: list[Candidate]


def find_old_jobs(queue: QueueKeys, state: str, before_ms: int, offset: int) -> Call[OldJobs]:
    """Those of a part that may be there since then, or for longer."""
    script = queue.script("upkeep/find_old_jobs")

    def decode(reply: list[Any]) -> OldJobs:
        looked, more, *flat = reply
        rows = zip(*(flat[i::7] for i in range(7)), strict=True)
        return OldJobs(looked, bool(more), [_candidate(state, *row) for row in rows])

    args: list[Argument] = [state, before_ms, offset, PART, CHUNK_BYTES]
    return Call(args, decode, script, queue.of(script))


def _candidate(
    state: str, id: bytes, score: bytes, body: bytes, claim: bytes, story: bytes, size: int, line: int
) -> Candidate:
    task = ""
    if state == "done":
        task, body = _task_of(body), b""
    return Candidate(
        id=id.decode(errors="backslashreplace"),
        score=score,
        body=body,
        claim=claim,
        story=story,
        bytes=size,
        is_in_line=bool(line),
        task=task,
    )


def _task_of(record: bytes) -> str:
    """The task of a finished job, by the beginning of its record."""
    found = _TARGET.match(record)
    return msgspec.json.decode(found[1], type=str) if found else ""


class Ending(Struct, frozen=True, kw_only=True):
    """What becomes of an entry."""

    verb: str
    ms: int = 0
    text: bytes = b""
    name: str = ""
    follow_id: str = ""
    follow_priority: int = 0
    follow_body: bytes = b""


class Act(Struct, frozen=True, kw_only=True):
    """What is to become of an entry, if it is the one that was seen: see the contract of upkeep/purge_jobs.lua."""

    id: str
    state: str
    score: Argument
    claim: Argument
    since_ms: int
    limit_ms: int
    end: Ending

    @property
    def size(self) -> int:
        """Bytes that it takes to say so."""
        return len(self.end.text) + len(self.end.follow_body)


def purge_jobs(
    queue: QueueKeys, owner: str, acts: Sequence[Act], dead_max: int
) -> Call[tuple[list[bool], bool] | None]:
    """Which of them were done, and whether to relay; None: another process leads by now."""
    script = queue.script("upkeep/purge_jobs")
    args: list[Argument] = [KEEP_MS, 0, dead_max, owner, LEAD_MS]
    for one in acts:
        args += (one.id, one.state, one.score, one.claim, one.since_ms, one.limit_ms)
        args += msgspec.structs.astuple(one.end)

    def decode(reply: list[int]) -> tuple[list[bool], bool] | None:
        return ([did == 1 for did in reply[:-1]], bool(reply[-1])) if reply else None

    # A repeated call would say that something happened to them: it was the first one that did.
    return Call(args, decode, script, queue.of(script), repeatable=False)


def take_back_jobs(
    queue: QueueKeys, owner: str, held: Sequence[tuple[str, Argument]], *, lease_ms: int, limit_ms: int
) -> Call[list[tuple[bytes, bytes, bytes] | None] | None]:
    """Take (id, end of its lease)s back: claim, body and story of each, or None; None: another process leads by now."""
    script = queue.script("upkeep/take_back_jobs")
    args: list[Argument] = [KEEP_MS, owner, LEAD_MS, lease_ms, limit_ms]
    for pair in held:
        args += pair

    def decode(reply: list[list[bytes]]) -> list[tuple[bytes, bytes, bytes] | None] | None:
        return [(row[0], row[1], row[2]) if row else None for row in reply] if reply else None

    return Call(args, decode, script, queue.of(script), repeatable=False)


class Orphan(Struct, frozen=True, kw_only=True):
    """Something is kept under an id that is in no set."""

    id: str
    #: A name that it holds, if that is how it was found.
    name: str
    #: Since when that is known; 0: it is not.
    noted_ms: int
    claim: bytes
    body: bytes
    bytes: int


class Position(Struct, frozen=True):
    """Where in the search for orphans: which key of those in `upkeep/find_orphans.lua`, and where in it."""

    key: int = 1
    cursor: str = "0"


class Orphans(Struct, frozen=True):
    """A part of that search."""

    #: None: that was all.
    then: Position | None
    looked: int
    found: list[Orphan]


def find_orphans(queue: QueueKeys, place: Position) -> Call[Orphans]:
    """What is kept under ids that are in no set, in a part of all that is kept."""
    script = queue.script("upkeep/find_orphans")

    def decode(reply: list[Any]) -> Orphans:
        key, cursor, looked, *flat = reply
        rows = zip(*(flat[i::6] for i in range(6)), strict=True)
        return Orphans(Position(key, cursor.decode()) if key else None, looked, [_orphan(*row) for row in rows])

    return Call([place.key, place.cursor, PART, CHUNK_BYTES], decode, script, queue.of(script))


def _orphan(id: bytes, name: bytes, noted: bytes, claim: bytes, body: bytes, size: int) -> Orphan:
    owner, held = (part.decode(errors="backslashreplace") for part in (id, name))
    return Orphan(id=owner, name=held, noted_ms=int(float(noted)), claim=claim, body=body, bytes=size)


def job_position(queue: QueueKeys) -> Call[int]:
    """Where among the ready the last purge stopped."""
    return Call([b"GET", queue.key("walk")], lambda text: int(text or 0))


def remember_job_position(queue: QueueKeys, offset: int) -> Call[Any]:
    """The next purge begins there."""
    return remember(queue, queue.key("walk"), str(offset) if offset else "")


def last_held(queue: QueueKeys) -> Call[dict[str, int]]:
    """What paused jobs when a purge last looked, and when that was."""

    def decode(text: bytes | None) -> dict[str, int]:
        try:
            return msgspec.json.decode(text or b"{}", type=dict[str, int])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}

    return Call([b"GET", queue.own("walk", "held")], decode)


def remember_held(queue: QueueKeys, names: dict[str, int]) -> Call[Any]:
    """The next purges count the ages of their jobs from then."""
    return remember(queue, queue.own("walk", "held"), msgspec.json.encode(names).decode() if names else "", HELD_MS)


def orphan_position(queue: QueueKeys) -> Call[Position]:
    """Where in its search for orphans the last purge stopped."""

    def decode(text: bytes | None) -> Position:
        key, _, cursor = (text or b"1 0").decode().partition(" ")
        return Position(int(key), cursor)

    return Call([b"GET", queue.own("walk", "strays")], decode)


def remember_orphan_position(queue: QueueKeys, place: Position | None) -> Call[Any]:
    """The next purge begins there."""
    return remember(queue, queue.own("walk", "strays"), f"{place.key} {place.cursor}" if place else "")


def unlisted_cursor(pool: QueueKeys) -> Call[str]:
    """Where among all keys the last purge of a pool stopped."""
    return Call([b"GET", pool.own("walk", "unlisted")], lambda text: (text or b"0").decode())


def remember_unlisted_cursor(pool: QueueKeys, cursor: str) -> Call[Any]:
    """The next purge begins there."""
    return remember(pool, pool.own("walk", "unlisted"), "" if cursor == "0" else cursor)
