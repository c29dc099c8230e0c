"""A queue as a whole: counts, listings, pause and clear; and the list of queues."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from msgspec import Struct

from relevo.engine.job import Envelope, Record, State, Story
from relevo.engine.job_store import Claim, read_claim, readable, record_of, remove, story_of
from relevo.engine.offers_store import read_unknown
from relevo.errors import OptionError, ServerRefused
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.store.topology import slot_of

#: Jobs removed in one call: each costs the server some 20 µs, and half as much again if it is parked.
CLEARED = 100
#: Jobs that become ready in one call.
PROMOTED = 250
#: Bytes of bodies and records that one step of a walk reads.
WALKED_BYTES = 2**22
_STATES = ("ready", "scheduled", "running", "waiting", "done", "dead", "cancelled", "expired")


class QueueStats(Struct, frozen=True, kw_only=True):
    """A queue in one consistent snapshot."""

    name: str
    ready: int
    scheduled: int
    running: int
    waiting: int
    done: int
    dead: int
    cancelled: int
    expired: int
    #: Living jobs: always ready + scheduled + running + waiting.
    living: int
    idle_workers: int
    paused: bool
    next_due_ms: int | None
    #: Totals since the counters began: enqueued, done, retry, dead, lost, …
    totals: dict[str, int]
    #: Tasks unknown to all live workers, and how many jobs wait for one that does.
    unknown_tasks: dict[str, int] = {}


def count(queue: QueueKeys, name: str) -> Call[QueueStats]:
    """The counts of a queue."""
    script = queue.script("queues/count_jobs")

    def decode(reply: list[Any]) -> QueueStats:
        sizes: list[int]
        _, sizes, idle, paused, due, totals, unknown = reply
        by_state = dict(zip((*_STATES, "living"), sizes, strict=True))
        counters = {totals[i].decode(): int(totals[i + 1]) for i in range(0, len(totals), 2)}
        return QueueStats(
            name=name,
            **by_state,
            idle_workers=idle,
            paused=bool(paused),
            next_due_ms=due or None,
            totals=counters,
            unknown_tasks=read_unknown(unknown),
        )

    return Call([], decode, script, queue.of(script))


class Listed(Struct, frozen=True):
    """A job in a listing."""

    id: str
    state: State
    envelope: Envelope | None = None
    body: bytes = b""
    due_ms: int | None = None
    claim: Claim | None = None
    record: Record | None = None
    #: Of one that has not ended; with `walk` only.
    story: Story = Story()
    #: Its place in the listing, see `Mark`.
    score: str = ""


class Mark(Struct, frozen=True):
    """Where a walk goes on: behind this job of this score."""

    id: str = ""
    score: str = "0"


class Part(Struct, frozen=True):
    """What a step of a walk found."""

    jobs: list[Listed]
    #: How many entries it looked at; records of some of them may have ended.
    looked: int
    #: None: the walk is at its end.
    mark: Mark | None


def page(queue: QueueKeys, state: str, offset: int, limit: int) -> Call[list[Listed]]:
    """Jobs in one state: live ones in the order they will run, ended ones newest first."""
    if state not in _STATES:
        raise OptionError(f"state: one of {', '.join(_STATES)} is needed, found {state!r}")
    if offset < 0 or not 1 <= limit <= 1000:
        raise OptionError(f"a page starts at 0 or later and has 1 to 1000 jobs, found {offset!r} and {limit!r}")
    script = queue.script("queues/list_jobs")

    def decode(reply: list[Any]) -> list[Listed]:
        return [_listed(State(state), *row) for row in zip(*reply, strict=True)]

    return Call([state, offset, limit], decode, script, queue.of(script))


def walk(queue: QueueKeys, state: State, mark: Mark, limit: int) -> Call[Part]:
    """The next jobs in one state, in the order of `page`, from a place on that others do not shift."""
    script = queue.script("queues/walk_jobs")

    def decode(reply: list[Any]) -> Part:
        *columns, looked, last, score = reply
        found = [_listed(state, *row) for row in zip(*columns, strict=True)]
        return Part(found, looked, Mark(last.decode(), score.decode()) if last else None)

    return Call([state.value, mark.id, mark.score, limit, WALKED_BYTES], decode, script, queue.of(script))


def ended_before(queue: QueueKeys, state: State, before_ms: int, most: int) -> Call[list[str]]:
    """Ids of jobs that ended in this state before a time, the oldest first; records of some may have ended."""
    key, span = queue.key(state.value), (b"-inf", f"({before_ms}")
    command: list[Argument] = [b"ZRANGE", key, *span, b"BYSCORE", b"LIMIT", 0, most]
    return Call(command, lambda ids: [id.decode() for id in ids])


def count_ended_before(queue: QueueKeys, state: State, before_ms: int) -> Call[int]:
    """How many `ended_before` would find."""
    return Call([b"ZCOUNT", queue.key(state.value), b"-inf", f"({before_ms}"], int)


def _listed(state: State, id: bytes, score: bytes, text: bytes, claim: bytes, story: bytes = b"") -> Listed:
    at = score.decode()
    if state.has_ended:
        record = record_of(text, state)
        body = bytes(record.body)
        return Listed(id.decode(), state, readable(body), body, record=record, story=record.story, score=at)
    number = int(float(score))
    due = number // 1024 if state is State.SCHEDULED else number if state is State.RUNNING else None
    return Listed(id.decode(), state, readable(text), text, due, read_claim(claim), story=story_of(story), score=at)


def pause(queue: QueueKeys, pause: bool, ends_ms: int = 0, note: bytes = b"{}") -> Call[bool]:
    """Pause (or resume) a queue; returns whether that changed anything. `ends_ms` 0: until it is resumed."""
    script = queue.script("limits/pause_queue")
    return Call([int(pause), ends_ms, note], bool, script, queue.of(script))


def clear(queue: QueueKeys) -> Generator[Call[Any], Any, tuple[int, bool]]:
    """Remove all jobs that have not started, in bounded steps; returns how many, and whether to relay."""
    removed, relay = 0, False
    for state in ("waiting", "ready", "scheduled"):
        while True:
            listed: list[Listed] = yield page(queue, state, 0, CLEARED)
            if not listed:
                break
            rows = [(job.id, job.envelope.name if job.envelope else "") for job in listed]
            gone, posted = yield remove(queue, rows, "removed")
            removed, relay = removed + gone, relay or posted
    return removed, relay


def promote(queue: QueueKeys) -> Generator[Call[Any], Any, int]:
    """Move all jobs that are due to those that are ready, in bounded steps; returns how many this call moved.

    Turns do so, too. Repeated after a lost reply, it counts fewer than it moved.
    """
    script = queue.script("queues/promote_jobs")
    count = 0
    while True:
        moved: int = yield Call([PROMOTED], int, script, queue.of(script))
        count += moved
        if moved < PROMOTED:
            return count


class Place(Struct, frozen=True):
    """Where a cluster keeps a queue."""

    slot: int
    #: host:port
    node: str
    #: Keys in the slot, which move together; None: the user in the URL may not count them.
    keys: int | None


def place(queue: QueueKeys, node: str) -> Generator[Call[Any], Any, Place]:
    """Where a cluster keeps the queue; `node`: the one known to have its slot."""
    key = queue.key("jobs")
    slot, keys = slot_of(key), None
    try:
        keys = yield Call([b"CLUSTER", b"COUNTKEYSINSLOT", slot], keys=(key,))
    except ServerRefused:
        pass
    return Place(slot, node, keys)
