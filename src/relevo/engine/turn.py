"""A worker's side of a queue: settle and claim, renew leases, wait, leave, note."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from relevo.engine.push import CHUNK_BYTES, KEEP_MS
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Entries of each kind in one turn, so that no script runs long and no argument list is too large for Lua.
MOST = 1000
#: The server's time that settlements other than plain 'done' may take in one turn, and what each takes in microseconds:
#: a dead letter is filed, grouped and announced; a retry only changes its place.
MOVED_MICROS = 3000
_MICROS = {"retry": 8, "back": 8, "done": 12, "reroute": 15, "offer": 15}
_MICROS_OF_OTHERS = 25


class Limits(Struct, frozen=True):
    """The terms on which a worker claims jobs of a queue."""

    lease_ms: int
    idle_ms: int
    done_max: int
    dead_max: int


class Moved(Struct, frozen=True, gc=False):
    """A settlement that is more than 'done': see the contract of engine/turn.lua."""

    id: str
    token: int
    verb: str
    priority: int
    tenant: str
    weight: float
    ms: int
    text: bytes
    name: str = ""
    follow_id: str = ""
    follow_priority: int = 0
    follow_body: bytes = b""


class Settled(Struct, gc=False):
    """What a worker finished since its last turn."""

    #: Ids of jobs that succeeded at the first attempt (token 1) and leave nothing.
    plain: list[Argument] = []
    #: The same for those that leave a record: their ids; ttl, record, …
    kept: list[Argument] = []
    records: list[Argument] = []
    moved: list[Moved] = []

    def __len__(self) -> int:
        return len(self.plain) + len(self.kept) + len(self.moved)

    def has(self, id: str) -> bool:
        """Whether it holds the end of this job."""
        return id in self.plain or id in self.kept or any(one.id == id for one in self.moved)

    def held(self) -> list[tuple[str, int]]:
        """Ids and tokens of these jobs, which this worker holds until they are settled."""
        return [(str(id), 1) for id in (*self.plain, *self.kept)] + [(one.id, one.token) for one in list(self.moved)]

    def cut(self) -> Settled:
        """Take out what fits in one turn."""
        kept = fitting(map(len, self.records[1 : MOST * 2 : 2]))  # type: ignore[arg-type]  # records are bytes
        moved = min(_affordable(self.moved), fitting(len(one.text) + len(one.follow_body) for one in self.moved[:MOST]))
        part = Settled(self.plain[:MOST], self.kept[:kept], self.records[: kept * 2], self.moved[:moved])
        del self.plain[:MOST], self.kept[:kept], self.records[: kept * 2], self.moved[:moved]
        return part

    def put_back(self, part: Settled) -> None:
        """A turn failed: its settlements must be sent again, before the newer ones."""
        self.plain[:0], self.kept[:0], self.records[:0] = part.plain, part.kept, part.records
        self.moved[:0] = part.moved


def _affordable(moved: Sequence[Moved]) -> int:
    """How many of these settlements fit in one turn, by the server's time."""
    total = 0
    for count, one in enumerate(moved):
        total += _MICROS.get(one.verb, _MICROS_OF_OTHERS)
        if total > MOVED_MICROS:
            return count
    return len(moved)


def fitting(sizes: Iterable[int]) -> int:
    """How many of these sizes fit in one turn: results may be large, and the server serves no other client in it."""
    total = 0
    count = 0
    for count, size in enumerate(sizes, 1):
        total += size
        if total > CHUNK_BYTES and count > 1:
            return count - 1
    return count


class Turn(Struct, gc=False):
    """The reply to a turn. Claims are as the server wrote them: b'token worker since [c]'."""

    now_ms: int
    wake_ms: int
    refused: list[bytes]
    ids: list[bytes]
    bodies: list[bytes]
    #: index in `ids` -> (claim, story) of jobs that were handed out before.
    again: dict[int, tuple[bytes, bytes]]
    #: (id, claim, body, story) of jobs whose lease has ended, now leased to this worker to decide on. Those whose claim
    #: names this worker were its own: a renewal or the reply to the claim was lost.
    lost: list[list[bytes]]
    #: When the next entry of the outbox (a message, a schedule) is due; 0: there is none.
    errand_ms: int = 0
    #: Ids of jobs that were offered to other workers; no live one would take them, and this worker keeps them.
    unwanted: list[bytes] = []


def turn(queue: QueueKeys, worker: str, limits: Limits, want: int, settled: Settled) -> Call[Turn]:
    """Settle, promote, take back, claim: one round trip. Returns at most MOST jobs."""
    script = queue.script("engine/turn")
    args: list[Argument] = [
        worker,
        limits.lease_ms,
        limits.idle_ms,
        min(want, MOST),
        KEEP_MS,
        limits.done_max,
        limits.dead_max,
        len(settled.plain) + len(settled.kept),
        len(settled.kept),
        len(settled.moved),
        *settled.plain,
        *settled.kept,
        *settled.records,
    ]
    for one in settled.moved:
        args += (one.id, one.token, one.verb, one.priority, one.tenant, one.weight)
        args += (one.ms, one.text, one.name, one.follow_id, one.follow_priority, one.follow_body)
    return Call(args, _turn, script, queue.of(script), repeatable=False)


def _turn(reply: list[Any]) -> Turn:
    now, wake, refused, ids, bodies, again, lost, errand, unwanted = reply
    before = {again[i]: (again[i + 1], again[i + 2]) for i in range(0, len(again), 3)} if again else {}
    return Turn(now, wake, refused, ids, bodies, before, lost, errand, unwanted)


class Claimed(NamedTuple):
    """A job that was claimed by its id: as the server wrote it."""

    now_ms: int
    claim: bytes
    body: bytes
    story: bytes


def claim(queue: QueueKeys, id: str, worker: str, lease_ms: int, token: str = "") -> Call[Claimed | None]:
    """Claim this job, if it is ready; with `token`, if it runs under that. None: it is not to be had."""
    script = queue.script("engine/claim_job")
    args: list[Argument] = [id, worker, lease_ms, token]
    return Call(args, lambda reply: Claimed(*reply) if len(reply) > 1 else None, script, queue.of(script))


class Renewed(NamedTuple):
    """The answer to a renewal of leases."""

    #: ids whose lease was lost
    lost: list[str]
    #: ids that are to be cancelled
    cancelled: list[str]
    now_ms: int


def renew(queue: QueueKeys, held: Sequence[tuple[str, int]], lease_ms: int) -> Call[Renewed]:
    """Extend the leases of (id, token)s."""
    script = queue.script("engine/renew_leases")
    args: list[Argument] = [lease_ms]
    for pair in held:
        args += pair

    def decode(reply: list[Any]) -> Renewed:
        return Renewed([id.decode() for id in reply[0]], [id.decode() for id in reply[1]], reply[2])

    return Call(args, decode, script, queue.of(script))


def abandon(queue: QueueKeys, held: Sequence[tuple[str, int]]) -> Call[int]:
    """End the leases of (id, token)s whose holder is known to be dead: how many."""
    script = queue.script("engine/release_leases")
    args: list[Argument] = [len(held)]
    for pair in held:
        args += pair
    return Call(args, int, script, queue.of(script))


def rest(queue: QueueKeys, worker: str, lease_ms: int, idle_ms: int) -> Call[tuple[int, int, bool, int]]:
    """Still waiting: (now, when to ask again or 0, whether we are registered, when the outbox is due or 0)."""
    script = queue.script("engine/rest")
    return Call([worker, lease_ms, idle_ms], lambda r: (r[0], r[1], bool(r[2]), r[3]), script, queue.of(script))


def leave(queue: QueueKeys, worker: str) -> Call[list[bytes]]:
    """Stop waiting: returns what is left on the worker's bell."""
    script = queue.script("engine/stop_waiting")
    return Call([worker], list, script, queue.of(script), repeatable=False)


class Note(NamedTuple):
    """Output, log or progress of a job."""

    id: str
    #: '' when the job ends with this note.
    token: int | str
    #: '' where only `ms` is new.
    field: str
    text: str
    #: How long all notes of the job are kept, where that is known already; 0: they are removed.
    ms: int | Literal[""] = ""


def note(queue: QueueKeys, notes: Sequence[Note], living_ms: int) -> Call[int]:
    """Write notes; they are kept for `living_ms`, or for as long as the record of their job once that has ended."""
    script = queue.script("engine/write_logs")
    args: list[Argument] = [living_ms]
    for one in notes:
        args += one
    return Call(args, int, script, queue.of(script))
