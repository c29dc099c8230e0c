"""What can be done to dead letters: run them again, forget them, bring back what was forgotten a moment ago."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from relevo.dead.choosing import Ids, Watch, checked, chosen, each_that_fits, missing, named
from relevo.dead.walk import Letter
from relevo.errors import JobError, OptionError, ServerRefused
from relevo.lists import others
from relevo.model.names import is_pool_name, pool_of
from relevo.model.wanted import Filters
from relevo.store import jobs, letters, pools
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.app import Relevo

#: How long a discarded letter can be restored: whoever saw that it was the wrong one has seen it by then, and whoever
#: discards to make room on the server need not wait longer.
UNDO_MS = 600_000
#: Letters restored in one call: each is copied as a whole.
RESTORED_AT_ONCE = 20


class Revival:
    """Brings letters back, each to where it came from: a job to its queue, an entity to its state of a pool."""

    def __init__(self) -> None:
        #: Why the last one that cannot come back cannot.
        self.refusal = ""

    def of(self, app: Relevo, letter: Letter) -> Generator[Call[Any], Any, int]:
        """1: it is back; 0: somebody just brought it back, or it cannot be."""
        keys = app.keys_of(letter.queue)
        if is_pool_name(letter.queue):
            body = pools.body_of(letter.record)
            if body is None:
                return self._refuse(letter, "what it holds is unreadable")
            pool = pool_of(letter.queue)
            yield from app.list_pool(pool)
            said: int = yield pools.come_back(keys, letter.id, letter.record, body)
            if said == -2:
                return self._refuse(
                    letter, f"pool {pool} has an entity {body.entity!r} already: remove that or discard this"
                )
            return self._refuse(letter, f"pool {pool} has too many states") if said < 0 else said
        if letter.envelope is None:
            return self._refuse(letter, "its body is unreadable")
        record = letter.record
        revived, _ = yield jobs.revive(
            keys, letter.id, letter.envelope, bytes(record.body), record.ended_ms, died_ms=letter.at_ms
        )
        if revived < 0:
            return self._refuse(
                letter,
                "a job that it depends on has failed. Retry that one (or its whole workflow), and this one comes back "
                "with it",
            )
        if revived == 2:
            yield from app.relay(letter.queue)
        return min(1, int(revived))

    def _refuse(self, letter: Letter, why: str) -> int:
        self.refusal = f"dead letter {letter.id} cannot come back: {why}"
        return 0


def retrying(
    app: Relevo, ids: Iterable[str] | None, all: bool, limit: int | None, watch: Watch | None, filters: Filters
) -> Generator[Call[Any], Any, int]:
    """Run letters again: how many. If that is none because they cannot, it is an error that says why."""
    picked, wanted = yield from chosen(app, ids, all, filters)
    revival = Revival()
    if picked is None:
        done = yield from each_that_fits(app, wanted, revival.of, limit, watch)
    else:
        done = 0
        for letter in (yield from named(app, picked, wanted.queue)):
            if (yield from revival.of(app, letter)):
                done += 1
                if watch is not None:
                    watch(done)
    if not done and revival.refusal:
        raise JobError(revival.refusal)
    return done


def discarding(
    app: Relevo,
    ids: Iterable[str] | None,
    all: bool,
    limit: int | None,
    undo: bool,
    watch: Watch | None,
    filters: Filters,
) -> Generator[Call[Any], Any, int]:
    """Forget letters: how many."""
    picked, wanted = yield from chosen(app, ids, all, filters)
    bin = _Bin(app, UNDO_MS if undo else 0, watch)
    if picked is None:
        yield from each_that_fits(app, wanted, bin.put, limit)
    else:
        for letter in (yield from named(app, picked, wanted.queue)):
            yield from bin.put(app, letter)
    return (yield from bin.empty())


class _Bin:
    """Gathers letters to discard, so that many go in one call."""

    def __init__(self, app: Relevo, undo_ms: int, watch: Watch | None) -> None:
        self._app = app
        self._undo_ms = undo_ms
        self._watch = watch
        self._held: dict[str, Ids] = {}
        self._gone = 0

    def put(self, _app: Relevo, letter: Letter) -> Generator[Call[Any], Any, int]:
        held = self._held.setdefault(letter.queue, [])
        held.append(letter.id)
        if len(held) == letters.CHUNK:
            yield from self._discard(letter.queue)
        return 1

    def empty(self) -> Generator[Call[Any], Any, int]:
        for queue in list(self._held):
            yield from self._discard(queue)
        return self._gone

    def _discard(self, queue: str) -> Generator[Call[Any], Any, None]:
        ids = self._held.pop(queue)
        gone, posted = yield jobs.discard(self._app.keys_of(queue), ids, undo_ms=self._undo_ms)
        self._gone += gone
        if self._watch is not None and gone:
            self._watch(self._gone)
        if posted:
            yield from self._app.relay(queue)


def restoring(app: Relevo, ids: Iterable[str] | None, all: bool, queue: str | None, watch: Watch | None) -> Steps[int]:
    """Bring back letters that were discarded a moment ago: how many."""
    if (ids is None) == (not all):
        raise OptionError("name the letters to restore by ids=[…], or say all=True; not both")
    picked = None if ids is None else checked(ids)
    names = yield from app.listed_queues(queue)
    bins: list[Ids] = yield Ahead(letters.discarded(app.keys_of(name)) for name in names)
    undo = _Undo(app, watch)
    for name, binned in zip(names, bins, strict=True):
        yield from undo.of(name, binned, picked)
    if queue is None and picked and (left := missing(picked, chain.from_iterable(bins))):
        for name in (yield from others(app, names)):
            binned = []
            with suppress(ServerRefused):
                binned = yield letters.discarded(app.keys_of(name))
            yield from undo.of(name, binned, left)
    if undo.full:
        most = app.settings.dead_max
        where = ", ".join(f"{name} has no room for {count:,} of them" for name, count in undo.full.items())
        raise JobError(
            f"{where}: a queue keeps {most:,} dead letters (dead_max), and these are older than all that are there. "
            "Retry or discard others, or raise dead_max; what was discarded can be restored for "
            f"{UNDO_MS // 60_000} minutes"
        )
    return undo.back


class _Undo:
    """Brings discarded letters back, and counts them."""

    def __init__(self, app: Relevo, watch: Watch | None) -> None:
        self._app = app
        self._watch = watch
        self.back = 0
        #: How many stay in the bin of a queue, whose list is full of younger ones.
        self.full: dict[str, int] = {}

    def of(self, queue: str, binned: Ids, picked: Ids | None) -> Generator[Call[Any], Any, None]:
        """Those that were picked of what is in a queue's bin; None: all."""
        keys, there = self._app.keys_of(queue), set(binned)
        wanted = binned if picked is None else [id for id in picked if id in there]
        for start in range(0, len(wanted), RESTORED_AT_ONCE):
            some = wanted[start : start + RESTORED_AT_ONCE]
            came, posted, left = yield letters.restore(keys, some, self._app.settings.dead_max)
            self.back += came
            if self._watch is not None and came:
                self._watch(self.back)
            if posted:
                yield from self._app.relay(queue)
            if left:
                self.full[queue] = self.full.get(queue, 0) + left
