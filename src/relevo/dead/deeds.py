"""What can be done to dead letters: run them again, forget them, bring back what was forgotten a moment ago."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from relevo.dead.choosing import Ids, checked, chosen, each_that_fits, named
from relevo.dead.walk import Letter
from relevo.errors import JobError, OptionError
from relevo.model.wanted import Filters
from relevo.store import jobs, letters
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo

#: How long a discarded letter can be restored: whoever saw that it was the wrong one has seen it by then, and whoever
#: discards to make room on the server need not wait longer.
UNDO_MS = 600_000
#: Letters restored in one call: each is copied as a whole.
RESTORED_AT_ONCE = 20


def revive(app: Relevo, letter: Letter) -> Generator[Call[Any], Any, int]:
    """Run a letter again: 1; 0 if somebody just did, -1 if it cannot run again."""
    envelope = letter.envelope
    if envelope is None:
        return -1
    keys = app.keys_of(letter.queue)
    revived, _ = yield jobs.revive(keys, letter.id, envelope, bytes(letter.record.body))
    if revived == 2:
        yield from app.relay(letter.queue)
    return min(1, int(revived))


def retrying(
    app: Relevo, ids: Iterable[str] | None, all: bool, limit: int | None, filters: Filters
) -> Generator[Call[Any], Any, int]:
    """Run letters again: how many."""
    picked, wanted = yield from chosen(app, ids, all, filters)
    if picked is None:
        return (yield from each_that_fits(app, wanted, revive, limit))
    done = 0
    for letter in (yield from named(app, picked, wanted.queue)):
        said = yield from revive(app, letter)
        if said < 0 and letter.envelope is not None:
            raise JobError(
                f"job {letter.id} cannot run again by itself: a job that it depends on has failed. Retry that one "
                "(or its whole workflow), and this one comes back with it"
            )
        done += said > 0
    return done


def discarding(
    app: Relevo, ids: Iterable[str] | None, all: bool, limit: int | None, undo: bool, filters: Filters
) -> Generator[Call[Any], Any, int]:
    """Forget letters: how many."""
    picked, wanted = yield from chosen(app, ids, all, filters)
    bin = _Bin(app, UNDO_MS if undo else 0)
    if picked is None:
        yield from each_that_fits(app, wanted, bin.put, limit)
    else:
        for letter in (yield from named(app, picked, wanted.queue)):
            yield from bin.put(app, letter)
    return (yield from bin.empty())


class _Bin:
    """Gathers letters to discard, so that many go in one call."""

    def __init__(self, app: Relevo, undo_ms: int) -> None:
        self._app = app
        self._undo_ms = undo_ms
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
        if posted:
            yield from self._app.relay(queue)


def restoring(app: Relevo, ids: Iterable[str] | None, all: bool, queue: str | None) -> Generator[Call[Any], Any, int]:
    """Bring back letters that were discarded a moment ago: how many."""
    if (ids is None) == (not all):
        raise OptionError("name the letters to restore by ids=[…], or say all=True; not both")
    picked = None if ids is None else checked(ids)
    names: list[str] = [queue] if queue is not None else (yield from app.listed_queues())
    back = 0
    for name in names:
        keys = app.keys_of(name)
        binned: Ids = yield letters.discarded(keys)
        wanted = binned if picked is None else [id for id in picked if id in set(binned)]
        for start in range(0, len(wanted), RESTORED_AT_ONCE):
            some = wanted[start : start + RESTORED_AT_ONCE]
            came, posted = yield letters.restore(keys, some, app.settings.dead_max)
            back += came
            if posted:
                yield from app.relay(name)
    return back
