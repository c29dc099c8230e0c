"""The purge in the store: find what may be too old, part by part, and act only on what nothing happened to since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.store.push import CHUNK_BYTES, KEEP_MS
from relevo.store.subscriptions import unlock as unlock

#: Entries of one look: none takes longer than two milliseconds, however long the queue is.
PART = 250
#: Of the ready only the ids are looked at first, which is quicker.
PART_READY = 500
#: Ended in one step.
ACTS = 50
#: One purge of a queue at a time; whoever dies in it holds up the next for so long.
LOCK_MS = 60_000
#: How long it is remembered where in a long queue the last purge stopped.
WALK_MS = 86_400_000


class Candidate(Struct, frozen=True):
    """A job that may be too old, as it was seen."""

    id: str
    #: As the server wrote it: an entry with another score is another one.
    score: bytes
    body: bytes
    claim: bytes
    story: bytes
    bytes: int
    is_in_line: bool


class Survey(Struct, frozen=True):
    """A part of the jobs in one state."""

    looked: int
    has_more: bool
    found: list[Candidate]


def survey(queue: QueueKeys, state: str, before_ms: int, offset: int) -> Call[Survey]:
    """Those of a part that may be there since then, or for longer."""
    script = queue.script("survey")

    def decode(reply: list[Any]) -> Survey:
        looked, more, *flat = reply
        rows = zip(*(flat[i::7] for i in range(7)), strict=True)
        return Survey(looked, bool(more), [_candidate(*row) for row in rows])

    args: list[Argument] = [state, before_ms, offset, PART_READY if state == "ready" else PART, CHUNK_BYTES]
    return Call(args, decode, script, queue.of(script))


def _candidate(id: bytes, score: bytes, body: bytes, claim: bytes, story: bytes, size: int, line: int) -> Candidate:
    return Candidate(id.decode(errors="backslashreplace"), score, body, claim, story, size, bool(line))


class Ending(Struct, frozen=True):
    """What becomes of an entry."""

    verb: str
    ms: int = 0
    text: bytes = b""
    name: str = ""
    follow_id: str = ""
    follow_priority: int = 0
    follow_body: bytes = b""


class Act(Struct, frozen=True):
    """What is to become of an entry, if it is the one that was seen: see the contract of purge.lua."""

    id: str
    state: str
    score: Argument
    claim: Argument
    since_ms: int
    limit_ms: int
    end: Ending

    def ending(self, end: Ending) -> Act:
        """The same with another end."""
        return msgspec.structs.replace(self, end=end)

    @property
    def size(self) -> int:
        """Bytes that it takes to say so."""
        return len(self.end.text) + len(self.end.follow_body)


def purge(queue: QueueKeys, owner: str, acts: Sequence[Act], dead_max: int) -> Call[tuple[list[bool], bool] | None]:
    """Which of them were done, and whether to relay; None: somebody else purges this queue by now."""
    script = queue.script("purge")
    args: list[Argument] = [KEEP_MS, 0, dead_max, owner, LOCK_MS]
    for one in acts:
        args += (one.id, one.state, one.score, one.claim, one.since_ms, one.limit_ms)
        args += msgspec.structs.astuple(one.end)

    def decode(reply: list[int]) -> tuple[list[bool], bool] | None:
        return ([did == 1 for did in reply[:-1]], bool(reply[-1])) if reply else None

    # A repeated call would say that something happened to them: it was the first one that did.
    return Call(args, decode, script, queue.of(script), repeatable=False)


class Recovery(Struct, frozen=True):
    """How jobs are taken back."""

    lease_ms: int
    limit_ms: int


def recover(
    queue: QueueKeys, owner: str, held: Sequence[tuple[str, Argument]], terms: Recovery
) -> Call[list[tuple[bytes, bytes, bytes] | None] | None]:
    """Take (id, end of its lease)s back: claim, body and story of each, or None; None: somebody else purges by now."""
    script = queue.script("recover")
    args: list[Argument] = [KEEP_MS, owner, LOCK_MS, terms.lease_ms, terms.limit_ms]
    for pair in held:
        args += pair

    def decode(reply: list[list[bytes]]) -> list[tuple[bytes, bytes, bytes] | None] | None:
        return [(row[0], row[1], row[2]) if row else None for row in reply] if reply else None

    return Call(args, decode, script, queue.of(script), repeatable=False)


class Stray(Struct, frozen=True):
    """A body in no set."""

    id: str
    body: bytes
    claim: bytes
    #: Since when that is known; 0: it is not.
    noted_ms: int


def bodies(queue: QueueKeys, cursor: bytes, count: int) -> Call[tuple[bytes, list[tuple[bytes, bytes]]]]:
    """Where the next part begins (0: there is none), and about so many of all bodies. Only asked if some are astray."""

    def decode(reply: list[Any]) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        cursor, flat = reply
        return cursor, list(zip(flat[::2], flat[1::2], strict=True))

    return Call([b"HSCAN", queue.key("jobs"), cursor, b"COUNT", count], decode)


def astray(queue: QueueKeys, jobs: Sequence[tuple[bytes, bytes]]) -> Call[list[Stray]]:
    """Those of some (id, body)s that are in no set."""
    script = queue.script("astray")

    def decode(reply: list[Any]) -> list[Stray]:
        found = []
        for index, noted, claim in zip(reply[::3], reply[1::3], reply[2::3], strict=True):
            id, body = jobs[index]
            found.append(Stray(id.decode(errors="backslashreplace"), body, claim, int(float(noted))))
        return found

    return Call([id for id, _ in jobs], decode, script, queue.of(script))


def lock(queue: QueueKeys, owner: str) -> Call[bool]:
    """Be the one that purges this queue: whether nobody else is."""
    return Call([b"SET", queue.key("sweeping"), owner, b"NX", b"PX", LOCK_MS], bool, repeatable=False)


def hold(queue: QueueKeys, owner: str) -> Call[bool]:
    """Go on being the one: whether we still are."""
    script = queue.script("hold")
    return Call([owner, LOCK_MS], bool, script, queue.of(script))


def walked(queue: QueueKeys) -> Call[int]:
    """Where among the ready the last purge stopped."""
    return Call([b"GET", queue.key("walk")], lambda text: int(text or 0))


def walk_on(queue: QueueKeys, offset: int) -> Call[Any]:
    """The next purge begins there."""
    if not offset:
        return Call([b"DEL", queue.key("walk")])
    return Call([b"SET", queue.key("walk"), offset, b"PX", WALK_MS])
