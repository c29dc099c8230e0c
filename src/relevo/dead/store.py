"""Dead letters in the store: pages of the list, error groups, and what can be done to a dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.engine.job import Envelope, Record, read_record
from relevo.engine.job_store import record_of
from relevo.engine.push import KEEP_MS
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: Dead letters and bytes in one call: enough for a page, few enough that other clients are served in between.
CHUNK = 100
CHUNK_BYTES = 1024 * 1024
#: Error groups in one call, and heads of the newest of each.
KINDS_AT_ONCE = 10
SAMPLE = 10
#: The trend of an error group: what died in the last hour, against the day before that.
RECENT_MS = 3_600_000
BEFORE_MS = 24 * 3_600_000
#: Digits at the end of a discarded dead letter: when its own time limit ends.
_TIME_LIMIT = 15


class Place(Struct, frozen=True):
    """Where in the order of deaths a page begins: after this dead letter, or with it."""

    at_ms: int
    id: str
    with_it: bool = False


class Part(Struct, frozen=True):
    """Dead letters as one call found them."""

    ids: list[str]
    times: list[int]
    records: list[Record]
    #: The last one that was read; None: there was none.
    place: Place | None
    behind: int


class Alike(Struct, frozen=True, kw_only=True):
    """An error group within one queue."""

    first_ms: int
    #: Of the first dead letter, without its story.
    head: Record | None
    count: int
    last_ms: int
    recent: int
    before: int
    newest: tuple[Record, ...] = ()


def part(
    queue: QueueKeys,
    *,
    kind: str = "",
    since_ms: int | None = None,
    until_ms: int | None = None,
    place: Place | None = None,
    oldest: bool = False,
    limit: int = CHUNK,
) -> Call[Part]:
    """Dead letters of a queue in the order of their deaths, from a place on; found in O(log n), wherever it is."""
    script = queue.script("dead/list_letters")
    args: list[Argument] = [
        kind,
        "-inf" if since_ms is None else since_ms,
        "+inf" if until_ms is None else until_ms,
        "" if place is None else place.at_ms,
        "" if place is None else place.id,
        int(place is not None and place.with_it),
        int(oldest),
        limit,
        CHUNK_BYTES,
    ]

    def decode(reply: list[Any]) -> Part:
        ids, times, texts, at, id, behind = reply
        last = Place(_ms(at), id.decode()) if id else None
        records = [record_of(text) for text in texts]
        return Part([one.decode() for one in ids], [_ms(one) for one in times], records, last, behind)

    return Call(args, decode, script, queue.of(script))


def _ms(score: bytes) -> int:
    return int(float(score))


def count_between(queue: QueueKeys, kind: str, since_ms: int | None, until_ms: int | None) -> Call[int]:
    """How many dead letters died in a time span; of one error group, or all."""
    key = queue.own("alike", kind) if kind else queue.key("dead")
    low = "-inf" if since_ms is None else since_ms
    return Call([b"ZCOUNT", key, low, "+inf" if until_ms is None else until_ms], int)


def are_dead(queue: QueueKeys, ids: Sequence[str]) -> Call[dict[str, int]]:
    """Which of these are dead letters of a queue, and when each died."""

    def decode(scores: list[bytes | None]) -> dict[str, int]:
        return {id: _ms(score) for id, score in zip(ids, scores, strict=True) if score is not None}

    return Call([b"ZMSCORE", queue.key("dead"), *ids], decode)


def kinds(queue: QueueKeys) -> Call[list[str]]:
    """The fingerprints of a queue's error groups."""
    return Call([b"HKEYS", queue.key("kinds")], lambda names: sorted(name.decode(errors="replace") for name in names))


def alike(queue: QueueKeys, fingerprints: Sequence[str]) -> Call[list[Alike]]:
    """The figures of error groups."""
    script = queue.script("dead/read_error_groups")
    args: list[Argument] = [RECENT_MS, BEFORE_MS, SAMPLE, *fingerprints]
    return Call(args, lambda reply: [_alike(*row) for row in reply], script, queue.of(script))


def _alike(known: bytes, count: int, last: bytes, recent: int, before: int, heads: list[bytes]) -> Alike:
    first, _, head = known.partition(b" ")
    newest = tuple(record for record in map(_head, heads) if record is not None)
    return Alike(
        first_ms=int(first or 0),
        head=_head(head),
        count=count,
        last_ms=_ms(last or b"0"),
        recent=recent,
        before=before,
        newest=newest,
    )


def _head(text: bytes) -> Record | None:
    try:
        return read_record(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # cut off: its edges alone exceed a head


def restore(queue: QueueKeys, ids: Sequence[str], dead_max: int) -> Call[tuple[int, bool, int]]:
    """Restore dead letters discarded shortly before: how many; whether to relay; how many have no room."""
    script = queue.script("dead/restore_letters")
    # A repeated call would return 0 although the first one, whose reply was lost, did it.
    args: list[Argument] = [KEEP_MS, dead_max, *ids]
    return Call(args, lambda r: (r[0], bool(r[1]), r[2]), script, queue.of(script), repeatable=False)


def discarded(queue: QueueKeys) -> Call[list[str]]:
    """Dead letters that were discarded shortly before, in that order."""
    return Call([b"ZRANGE", queue.key("bin"), 0, -1], lambda ids: [id.decode(errors="replace") for id in ids])


def in_bin(queue: QueueKeys, id: str) -> Call[Record | None]:
    """A discarded dead letter; None: it is there no more."""

    def decode(text: bytes | None) -> Record | None:
        return None if text is None else record_of(text[:-_TIME_LIMIT])

    return Call([b"GET", queue.own("binned", id)], decode)


def replace(queue: QueueKeys, id: str, new_id: str, envelope: Envelope, body: bytes) -> Call[int]:
    """Queue a job in place of a dead letter: 1; 0 if it is none (any more), -1 if others wait for that very job."""
    script = queue.script("dead/replace_letter")
    args: list[Argument] = [
        id,
        new_id,
        envelope.priority,
        envelope.tenant,
        envelope.weight,
        body,
        envelope.name,
        KEEP_MS,
    ]
    return Call(args, int, script, queue.of(script))


class Arrival(Struct, frozen=True):
    """A dead letter that comes from elsewhere, such as an import."""

    id: str
    died_ms: int
    record: bytes
    #: What its job takes with it, see engine/carried.py.
    carried: dict[str, str] = {}

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        return len(self.record) + sum(map(len, self.carried.values()))


def bury(
    queue: QueueKeys, letters: Sequence[Arrival], *, ttl_ms: int, dead_max: int
) -> Call[tuple[list[bool], int, bool]]:
    """File dead letters from elsewhere: for each whether it was new; how many old ones went; whether to relay."""
    script = queue.script("dead/add_letters")
    args: list[Argument] = [KEEP_MS, dead_max, ttl_ms]
    for one in letters:
        args += [one.id, one.died_ms, one.record, len(one.carried)]
        args += [part for pair in one.carried.items() for part in pair]
    return Call(args, lambda r: (list(map(bool, r[:-2])), r[-2], bool(r[-1])), script, queue.of(script))
