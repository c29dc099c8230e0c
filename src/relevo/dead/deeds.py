"""Retries and discards dead letters."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from relevo.dead.choosing import Deed, Ids, Letters, Watch, chosen, each_of, each_that_fits
from relevo.dead.resigning import vouched_for
from relevo.dead.restoring import UNDO_MS
from relevo.dead.walk import Letter
from relevo.dead.wanted import Filters
from relevo.engine import job_store as jobs
from relevo.engine.revival import Ended, reviving
from relevo.errors import JobError, OptionError
from relevo.pools import store as pools
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


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
