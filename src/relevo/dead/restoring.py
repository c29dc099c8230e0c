"""Restores dead letters that were discarded in the last ten minutes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from relevo.dead import store as letters
from relevo.dead.choosing import LOOKED_AHEAD, Ids, Watch, check_limit, chosen, missing
from relevo.dead.wanted import Filters, Wanted, fits
from relevo.engine.job import Record
from relevo.engine.job_store import readable
from relevo.engine.lists import listed_queues, others
from relevo.errors import JobError, ServerRefused
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: How long a discarded letter can be restored: long enough to notice a mistake, and short enough for those who discard
#: to make room on the server.
UNDO_MS = 600_000
#: Letters restored in one call: each is copied as a whole.
RESTORED_AT_ONCE = 20


def restoring(
    engine: Engine, ids: Iterable[str] | None, all: bool, limit: int | None, watch: Watch | None, filters: Filters
) -> Steps[int]:
    """Restore discarded dead letters, by id or those that fit; returns how many."""
    check_limit(limit)
    picked, wanted = yield from chosen(engine, ids, all, filters)
    names = yield from listed_queues(engine, wanted.queue)
    bins: list[Ids] = yield Ahead(letters.discarded(engine.keys_of(name)) for name in names)
    undo = _Undo(engine, watch)
    if picked is None:
        room = limit
        for name, binned in zip(names, bins, strict=True):
            some = (yield from _that_fit(engine, name, binned, wanted))[:room]
            room = None if room is None else room - len(some)
            yield from undo.of(name, some)
    else:
        for name, binned in zip(names, bins, strict=True):
            yield from undo.of(name, _both(picked, binned))
    if picked and wanted.queue is None and (left := missing(picked, chain.from_iterable(bins))):
        for name in (yield from others(engine, names)):
            binned = []
            with suppress(ServerRefused):
                binned = yield letters.discarded(engine.keys_of(name))
            yield from undo.of(name, _both(left, binned))
    undo.refuse_full()
    return undo.back


def _both(picked: Ids, binned: Ids) -> Ids:
    there = set(binned)
    return [id for id in picked if id in there]


def _that_fit(engine: Engine, queue: str, binned: Ids, wanted: Wanted) -> Steps[Ids]:
    """Those in the bin of a queue that fit; their records are read only where the filters need them."""
    if wanted.is_anything:
        return binned
    keys, found = engine.keys_of(queue), []
    for some in _parts(binned, letters.CHUNK):
        records: list[Record | None] = yield Ahead((letters.in_bin(keys, id) for id in some), LOOKED_AHEAD)
        found += [id for id, record in zip(some, records, strict=True) if record and _fits(wanted, record)]
    return found


def _fits(wanted: Wanted, record: Record) -> bool:
    """Whether a discarded letter fits; no index has it any more."""
    if wanted.error_group not in (None, record.fingerprint):
        return False
    if wanted.since_ms is not None and record.ended_ms < wanted.since_ms:
        return False
    if wanted.until_ms is not None and record.ended_ms > wanted.until_ms:
        return False
    return fits(wanted, record, readable(bytes(record.body)))


def _parts(ids: Ids, size: int) -> Iterator[Ids]:
    return (ids[start : start + size] for start in range(0, len(ids), size))


class _Undo:
    """Restores discarded letters, and counts them."""

    def __init__(self, engine: Engine, watch: Watch | None) -> None:
        self._engine = engine
        self._watch = watch
        self.back = 0
        #: How many stay in the bin of each queue whose list is full of newer ones.
        self._full: dict[str, int] = {}

    def of(self, queue: str, wanted: Ids) -> Generator[Call[Any], Any, None]:
        """Restore some of a queue's bin."""
        keys = self._engine.keys_of(queue)
        for some in _parts(wanted, RESTORED_AT_ONCE):
            came, posted, left = yield letters.restore(keys, some, self._engine.settings.dead_max)
            self.back += came
            if self._watch is not None and came:
                self._watch(self.back)
            if posted:
                yield from self._engine.relay(queue)
            if left:
                self._full[queue] = self._full.get(queue, 0) + left

    def refuse_full(self) -> None:
        """Say which queues have no room for what was to be restored."""
        if not self._full:
            return
        most = self._engine.settings.dead_max
        where = ", ".join(f"{name} has no room for {count:,} of them" for name, count in self._full.items())
        raise JobError(
            f"{where}: a queue keeps {most:,} dead letters (dead_max), and these are older than all that are there. "
            "Retry or discard others, or raise dead_max; what was discarded can be restored for "
            f"{UNDO_MS // 60_000} minutes"
        )
