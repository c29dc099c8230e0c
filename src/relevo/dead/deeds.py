"""Retries, discards and restores dead letters."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from relevo.dead import store as letters
from relevo.dead.choosing import Deed, Ids, Letters, Watch, checked, chosen, each_of, each_that_fits, missing
from relevo.dead.resigning import vouched_for
from relevo.dead.walk import Letter
from relevo.dead.wanted import Filters
from relevo.engine import job_store as jobs
from relevo.engine.lists import listed_queues, others
from relevo.engine.revival import Ended, reviving
from relevo.errors import JobError, OptionError, ServerRefused
from relevo.pools import store as pools
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: How long a discarded letter can be restored: long enough to notice a mistake, and short enough for those who discard
#: to make room on the server.
UNDO_MS = 600_000
#: Letters restored in one call: each is copied as a whole.
RESTORED_AT_ONCE = 20


class Revival:
    """Revives dead letters: a job returns to its queue, an entity to its state of a pool."""

    def __init__(self, *, sign: bool = False) -> None:
        self._sign = sign
        #: Ids of those that were not revived, and why.
        self.left: dict[str, str] = {}
        #: Why the last of those cannot be revived.
        self.refusal = ""

    def of(self, engine: Engine, some: Letters) -> Steps[int]:
        """Revive these; returns how many were revived."""
        back = 0
        ended: list[Ended] = []
        for letter in some:
            if letter.pool is not None:
                back += yield from self._entity(engine, letter, letter.pool)
            elif (body := (yield from self._body(engine, letter))) is not None:
                ended.append(Ended(letter.queue, letter.id, body, letter.record.ended_ms, letter.at_ms))
        for one, revival in zip(ended, (yield from reviving(engine, ended)), strict=True):
            back += self._refuse(one.id, revival.refusal) if revival.refusal else self._came(one.id, revival.number)
        return back

    def _body(self, engine: Engine, letter: Letter) -> Steps[bytes | None]:
        """The body of a job, signed if that was asked for; None: that is not possible."""
        envelope = letter.envelope
        if not self._sign or envelope is None:
            return bytes(letter.record.body)
        try:
            return (yield from vouched_for(engine, letter, envelope))
        except JobError as error:
            self._refuse(letter.id, str(error))
            return None

    def _entity(self, engine: Engine, letter: Letter, pool: str) -> Generator[Call[Any], Any, int]:
        body = pools.body_of(letter.record)
        if body is None:
            return self._refuse(letter.id, _no_entity(letter, "its metadata is unreadable"))
        yield from engine.list_pool(pool)
        code: int = yield pools.revive_letter(engine.keys_of(letter.queue), letter.id, letter.record, body)
        if code == -2:
            why = f"pool {pool} has an entity {body.entity!r} already: remove that or discard this"
            return self._refuse(letter.id, _no_entity(letter, why))
        if code < 0:
            return self._refuse(letter.id, _no_entity(letter, f"pool {pool} has too many states"))
        return self._came(letter.id, code)

    def _came(self, id: str, number: int) -> int:
        if not number:
            self.left[id] = f"{id} is not a dead letter any more"
        return min(1, number)

    def _refuse(self, id: str, refusal: str) -> int:
        self.refusal = self.left[id] = refusal
        return 0


def _no_entity(letter: Letter, why: str) -> str:
    return f"dead letter {letter.id} cannot come back: {why}"


class Bin:
    """Discards dead letters; with `undo` they can be restored for ten minutes."""

    def __init__(self, *, undo: bool) -> None:
        self._undo_ms = UNDO_MS if undo else 0

    def of(self, engine: Engine, some: Letters) -> Steps[int]:
        """Discard these; returns how many there were."""
        ids: dict[str, Ids] = {}
        for letter in some:
            ids.setdefault(letter.queue, []).append(letter.id)
        answers: list[tuple[int, bool]] = yield Ahead(
            jobs.discard(engine.keys_of(queue), part, undo_ms=self._undo_ms) for queue, part in ids.items()
        )
        for queue, (_, posted) in zip(ids, answers, strict=True):
            if posted:
                yield from engine.relay(queue)
        return sum(gone for gone, _ in answers)


def retrying(
    engine: Engine,
    ids: Iterable[str] | None,
    all: bool,
    limit: int | None,
    sign: bool,
    watch: Watch | None,
    filters: Filters,
) -> Steps[int]:
    """Retry dead letters; returns how many. JobError if none of them can run again."""
    if sign and not engine.keyring:
        raise OptionError("sign: there are no signing_keys here to sign with")
    revival = Revival(sign=sign)
    done = yield from _to_chosen(engine, revival.of, ids, all, limit, watch, filters)
    if not done and revival.refusal:
        raise JobError(revival.refusal)
    return done


def discarding(
    engine: Engine,
    ids: Iterable[str] | None,
    all: bool,
    limit: int | None,
    undo: bool,
    watch: Watch | None,
    filters: Filters,
) -> Steps[int]:
    """Discard dead letters; returns how many."""
    return _to_chosen(engine, Bin(undo=undo).of, ids, all, limit, watch, filters)


def _to_chosen(
    engine: Engine,
    deed: Deed,
    ids: Iterable[str] | None,
    all: bool,
    limit: int | None,
    watch: Watch | None,
    filters: Filters,
) -> Steps[int]:
    picked, wanted = yield from chosen(engine, ids, all, filters)
    if picked is None:
        return (yield from each_that_fits(engine, wanted, deed, limit, watch))
    return (yield from each_of(engine, picked, wanted.queue, deed, watch))


def restoring(
    engine: Engine, ids: Iterable[str] | None, all: bool, queue: str | None, watch: Watch | None
) -> Steps[int]:
    """Restore dead letters that were discarded in the last ten minutes; returns how many."""
    if (ids is None) == (not all):
        raise OptionError("name the letters to restore by ids=[…], or pass all=True; not both")
    picked = None if ids is None else checked(ids)
    names = yield from listed_queues(engine, queue)
    bins: list[Ids] = yield Ahead(letters.discarded(engine.keys_of(name)) for name in names)
    undo = _Undo(engine, watch)
    for name, binned in zip(names, bins, strict=True):
        yield from undo.of(name, binned, picked)
    if queue is None and picked and (left := missing(picked, chain.from_iterable(bins))):
        for name in (yield from others(engine, names)):
            binned = []
            with suppress(ServerRefused):
                binned = yield letters.discarded(engine.keys_of(name))
            yield from undo.of(name, binned, left)
    if undo.full:
        most = engine.settings.dead_max
        where = ", ".join(f"{name} has no room for {count:,} of them" for name, count in undo.full.items())
        raise JobError(
            f"{where}: a queue keeps {most:,} dead letters (dead_max), and these are older than all that are there. "
            "Retry or discard others, or raise dead_max; what was discarded can be restored for "
            f"{UNDO_MS // 60_000} minutes"
        )
    return undo.back


class _Undo:
    """Restores discarded letters, and counts them."""

    def __init__(self, engine: Engine, watch: Watch | None) -> None:
        self._engine = engine
        self._watch = watch
        self.back = 0
        #: How many stay in the bin of each queue whose list is full of newer ones.
        self.full: dict[str, int] = {}

    def of(self, queue: str, binned: Ids, picked: Ids | None) -> Generator[Call[Any], Any, None]:
        """Restore the picked ones of a queue's bin; None: all."""
        keys, there = self._engine.keys_of(queue), set(binned)
        wanted = binned if picked is None else [id for id in picked if id in there]
        for start in range(0, len(wanted), RESTORED_AT_ONCE):
            some = wanted[start : start + RESTORED_AT_ONCE]
            came, posted, left = yield letters.restore(keys, some, self._engine.settings.dead_max)
            self.back += came
            if self._watch is not None and came:
                self._watch(self.back)
            if posted:
                yield from self._engine.relay(queue)
            if left:
                self.full[queue] = self.full.get(queue, 0) + left
