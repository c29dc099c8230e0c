"""A pool in the store: entities with metadata in named states, each move one step.

A pool is addressed like a queue, so that all its keys share a slot and its dead letters are kept as queues keep theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from relevo.engine.fingerprint import error_line, fingerprint
from relevo.engine.job import Attempt, Record, State
from relevo.engine.job_store import record_of
from relevo.engine.push import KEEP_MS
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call
from relevo.version import __version__

#: States of one pool: any words, but one per entity would be a mistake.
MOST_STATES = 100
#: Fields of one entity's metadata: enough to describe it, too few to be a database.
MOST_FIELDS = 100
#: Entities that are looked at in one step of the orphan check.
PART = 500
#: Keys of the server that are looked at in one step of the search for unlisted metadata: half a millisecond.
SCANNED = 1_000


class Entity(Struct, frozen=True, kw_only=True):
    """An entity of a pool: its state, since when, and its metadata."""

    id: str
    pool: str
    #: '' once it has left all states; its metadata is kept for the pool's `data_ttl`.
    state: str
    #: When it entered its state, by the server's clock.
    since_ms: int
    metadata: dict[str, Any] = {}
    #: How often it was revived from the dead letters.
    retries: int = 0
    #: Bytes of its metadata.
    bytes: int = 0


class Dead(Struct, frozen=True, kw_only=True):
    """A dead letter of a pool: an entity that was given up."""

    #: Of the dead letter.
    id: str
    entity: str
    pool: str
    #: The state it was in.
    queue_from: str
    reason: str
    error_class: str
    error_message: str
    failed_at_ms: int
    retry_count: int
    request_id: str = ""
    alias: str = ""
    metadata: dict[str, Any] = {}
    traceback: str = ""


class Census(Struct, frozen=True):
    """A pool in one snapshot."""

    #: All entities with metadata.
    total: int
    counts: dict[str, int]

    @property
    def astray(self) -> int:
        """How many of them are in no state; 0, unless another program removed them from it."""
        return self.total - sum(self.counts.values())


class Only(Struct, frozen=True):
    """Condition of the purge: an entity is moved only if it is in its state since exactly then, and for long enough."""

    since_ms: int
    older_ms: int


def _conditions(only: Only | None) -> tuple[Argument, Argument]:
    return ("", "") if only is None else (only.since_ms, only.older_ms)


def _pairs(metadata: Mapping[str, bytes]) -> list[Argument]:
    return [part for pair in metadata.items() for part in pair]


def _outcome(reply: list[Any]) -> tuple[int, str]:
    return reply[0], reply[1].decode()


def add_entity(pool: QueueKeys, id: str, state: str, metadata: Mapping[str, bytes]) -> Call[int]:
    """Put an entity into a state: 1 done, 0 the pool has it, -1 too many states."""
    script = pool.script("pools/add_entity")
    args: list[Argument] = [KEEP_MS, id, state, MOST_STATES, *_pairs(metadata)]
    # A repeated call would return 0 although the first one, whose reply was lost, did it.
    return Call(args, int, script, pool.of(script), repeatable=False)


def move_entity(
    pool: QueueKeys, id: str, from_: str, to: str, metadata: Mapping[str, bytes], only: Only | None = None
) -> Call[tuple[int, str]]:
    """Move an entity: 1 done, 0 it is not in `from_`, -1 too many states, -3 too many fields; and its state."""
    script = pool.script("pools/move_entity")
    args: list[Argument] = [KEEP_MS, id, from_, to, *_conditions(only), MOST_STATES, MOST_FIELDS, *_pairs(metadata)]
    return Call(args, _outcome, script, pool.of(script), repeatable=False)


class Reason(Struct, frozen=True):
    """Why an entity is given up."""

    reason: str
    error: str = ""
    message: str = ""
    traceback: str = ""
    how: str = "failed"


class Keeping(Struct, frozen=True):
    """How long the remains of an entity are kept."""

    letter_ms: int
    data_ms: int
    dead_max: int


def fail_entity(
    pool: QueueKeys,
    name: str,
    id: str,
    from_: str,
    letter: str,
    why: Reason,
    keeping: Keeping,
    metadata: Mapping[str, bytes],
    only: Only | None = None,
) -> Call[tuple[int, str]]:
    """Make an entity a dead letter: 1 done, 0 it is not in `from_`, -3 too many fields; and its state."""
    script = pool.script("pools/fail_entity")
    write = msgspec.json.encode
    args: list[Argument] = [KEEP_MS, 0, keeping.dead_max, id, from_, *_conditions(only), letter, keeping.letter_ms]
    last = Attempt(why.how, error=why.error, message=why.message, traceback=why.traceback)
    traits = {"fingerprint": fingerprint(why.reason, last), "error": error_line(last), "version": __version__}
    args += [
        keeping.data_ms,
        write(name),
        write(f"pool:{name}"),
        write(traits)[1:-1],
        write(why.reason),
        write(last)[:-1],
    ]
    args += [MOST_FIELDS, *_pairs(metadata)]
    return Call(args, _outcome, script, pool.of(script), repeatable=False)


def remove_entity(
    pool: QueueKeys, id: str, from_: str, data_ms: int, only: Only | None = None
) -> Call[tuple[int, str]]:
    """Take an entity out of its pool: 1 done, 0 it is not in `from_`; and its state."""
    script = pool.script("pools/remove_entity")
    args: list[Argument] = [KEEP_MS, id, from_, *_conditions(only), data_ms]
    return Call(args, _outcome, script, pool.of(script), repeatable=False)


def update_entity(pool: QueueKeys, id: str, metadata: Mapping[str, bytes]) -> Call[int]:
    """Change the metadata of an entity: 1 done, 0 the pool does not have it, -3 too many fields."""
    script = pool.script("pools/update_entity")
    return Call([id, MOST_FIELDS, *_pairs(metadata)], int, script, pool.of(script))


def look(pool: QueueKeys, name: str, id: str) -> Call[Entity | None]:
    """An entity; None: unknown."""

    def decode(reply: list[bytes]) -> Entity | None:
        return _entity(name, id, reply) if reply else None

    return Call([b"HGETALL", pool.own("entity", id)], decode)


def list_entities(pool: QueueKeys, name: str, state: str, older_ms: int, offset: int, limit: int) -> Call[list[Entity]]:
    """A page of the entities in a state, longest in it first."""
    script = pool.script("pools/list_entities")

    def decode(reply: list[Any]) -> list[Entity]:
        rows = zip(*reply, strict=True)
        return [_entity(name, id.decode(), fields, state, int(float(at))) for id, at, fields in rows]

    return Call([state, older_ms, offset, limit], decode, script, pool.of(script))


def count_entities(pool: QueueKeys) -> Call[Census]:
    """How many entities are in each state."""
    script = pool.script("pools/count_entities")

    def decode(reply: list[Any]) -> Census:
        total, *rows = reply
        return Census(total, {word.decode(): size for word, size in zip(rows[::2], rows[1::2], strict=True)})

    return Call([MOST_STATES], decode, script, pool.of(script))


def revive_entity(
    pool: QueueKeys, letter: str, id: str, state: str, retries: int, metadata: Mapping[str, bytes]
) -> Call[int]:
    """Revive an entity from its dead letter: 1 done, 0 no such dead letter, -1 too many states, -2 id taken."""
    script = pool.script("pools/revive_entity")
    args: list[Argument] = [KEEP_MS, letter, id, state, retries, MOST_STATES, 0, *_pairs(metadata)]
    return Call(args, int, script, pool.of(script), again=6)


def revive_letter(pool: QueueKeys, letter: str, record: Record, body: Body, to: str | None = None) -> Call[int]:
    """`revive_entity` from what a dead letter holds: into the state that the entity came from, or another."""
    metadata = {name: bytes(value) for name, value in body.metadata.items()}
    return revive_entity(pool, letter, body.entity, to or record.queue_from, record.runs + 1, metadata)


class Stray(Struct, frozen=True):
    """An entity in no state."""

    id: str
    since_ms: int
    bytes: int


def find_unplaced(pool: QueueKeys, before_ms: int, offset: int) -> Call[tuple[int, list[Stray]]]:
    """How many entities were scanned, and those among them that are in no state."""
    script = pool.script("pools/find_unplaced")

    def decode(reply: list[Any]) -> tuple[int, list[Stray]]:
        rows = zip(reply[1::3], reply[2::3], reply[3::3], strict=True)
        return reply[0], [Stray(id.decode(), int(float(since)), size) for id, since, size in rows]

    return Call([before_ms, offset, PART], decode, script, pool.of(script))


def expire_entity(pool: QueueKeys, id: str, only: Only, data_ms: int) -> Call[bool]:
    """Let the metadata of an entity in no state expire: whether it is still in none."""
    script = pool.script("pools/expire_entity")
    return Call([KEEP_MS, id, only.since_ms, only.older_ms, data_ms], bool, script, pool.of(script))


class Unlisted(Struct, frozen=True):
    """Metadata of an entity that is on no list."""

    stray: Stray
    is_old: bool


def scan_metadata(pool: QueueKeys, cursor: str) -> Call[tuple[str, list[str]]]:
    """A part of all keys of the pool's server: where to go on ("0": nowhere), and entities with metadata."""
    prefix = pool.own("entity", "")
    pattern = re.sub(rb"([\[\]?*\\])", rb"\\\1", prefix) + b"*"

    def decode(reply: list[Any]) -> tuple[str, list[str]]:
        return reply[0].decode(), [key[len(prefix) :].decode(errors="surrogateescape") for key in reply[1]]

    return Call([b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCANNED], decode, keys=(pool.key("entities"),))


def expire_unlisted(
    pool: QueueKeys, ids: Sequence[str], older_ms: int, data_ms: int, *, dry_run: bool
) -> Call[list[Unlisted]]:
    """Those of these entities that are on no list of the pool; the metadata of those that are old expires."""
    script = pool.script("pools/expire_unlisted")

    def decode(reply: list[Any]) -> list[Unlisted]:
        rows = zip(*(reply[n::4] for n in range(4)), strict=True)
        return [
            Unlisted(Stray(id.decode(errors="replace"), int(since), size), bool(is_old))
            for id, since, size, is_old in rows
        ]

    args: list[Argument] = [KEEP_MS, older_ms, data_ms, int(not dry_run)]
    return Call([*args, *(id.encode(errors="surrogateescape") for id in ids)], decode, script, pool.of(script))


class Body(Struct, frozen=True):
    """What a dead letter of a pool holds of its entity."""

    entity: str
    pool: str
    metadata: dict[str, Raw] = {}


_read_body = msgspec.json.Decoder(Body).decode


def letter(pool: QueueKeys, id: str) -> Call[tuple[Record, Body] | None]:
    """A dead letter of a pool, by its id."""

    def decode(text: bytes | None) -> tuple[Record, Body] | None:
        record = None if text is None else record_of(text)
        body = body_of(record) if record else None
        return (record, body) if record and body else None

    return Call([b"GET", pool.own("ended", id)], decode)


def body_of(record: Record) -> Body | None:
    """The entity in a pool's dead letter; None for any other record, and for an unreadable one."""
    if record.state is not State.DEAD:
        return None
    try:
        return _read_body(record.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def dead_of(id: str, record: Record) -> Dead | None:
    """A dead letter of a pool as the API shows it; None for anything else."""
    body = body_of(record)
    if body is None:
        return None
    last = record.story.last
    metadata = {name: _value(bytes(value)) for name, value in body.metadata.items()}
    counted = metadata.get("retry_count")
    return Dead(
        id=id,
        entity=body.entity,
        pool=body.pool,
        queue_from=record.queue_from,
        reason=record.reason,
        error_class=last.error,
        error_message=last.message,
        failed_at_ms=record.ended_ms,
        retry_count=counted if isinstance(counted, int) else record.runs,
        request_id=str(metadata.get("request_id") or ""),
        alias=str(metadata.get("alias") or metadata.get("pool_alias") or ""),
        metadata=metadata,
        traceback=last.traceback,
    )


def _entity(pool: str, id: str, known: Sequence[bytes], state: str = "", since_ms: int = 0) -> Entity:
    fields = {known[i].decode(errors="replace"): known[i + 1] for i in range(0, len(known), 2)}
    if not state:
        state = fields.get("@state", b"").decode(errors="replace")
        since_ms = _number(fields.get("@since", b""))
    metadata = {name: _value(text) for name, text in fields.items() if not name.startswith("@")}
    return Entity(
        id=id,
        pool=pool,
        state=state,
        since_ms=since_ms,
        metadata=metadata,
        retries=_number(fields.get("@retries", b"")),
        bytes=sum(len(part) for part in known),
    )


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # written by another program
        return text.decode(errors="replace")
