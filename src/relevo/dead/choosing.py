"""Which dead letters an operation is about: some by id, or all that fit and died before the operation began."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from relevo.dead import store as letters
from relevo.dead.walk import Letter, Walk
from relevo.dead.wanted import Filters, Wanted, fits, wanted_of
from relevo.engine import job_store as jobs
from relevo.engine.ids import looks_like_id
from relevo.engine.lists import listed_queues, others
from relevo.errors import OptionError, ServerRefused
from relevo.store.plan import Ahead, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

Ids: TypeAlias = list[str]
Letters: TypeAlias = list[Letter]
#: Called with the number done so far.
Watch: TypeAlias = Callable[[int], None]
#: Acts on some dead letters at once; returns on how many it could act.
Deed: TypeAlias = Callable[["Engine", Letters], Steps[int]]

#: Dead letters fetched before the first answer is read: each is some KB, and costs the server some microseconds.
LOOKED_AHEAD = 20


def asked(engine: Engine, filters: Filters) -> Generator[Call[Any], Any, Wanted]:
    """The filters, with times by the server's clock."""
    now_ms = yield from engine.now_ms()
    wanted = wanted_of(filters, now_ms)
    if wanted.queue is not None:
        engine.keys_of(wanted.queue)  # refuses a name that cannot be one
    return wanted


def chosen(
    engine: Engine, ids: Iterable[str] | None, all: bool, filters: Filters
) -> Generator[Call[Any], Any, tuple[Ids | None, Wanted]]:
    """The ids that were given, or None for all that fit; refuses a request that could mean all by mistake."""
    picked = None if ids is None else checked(ids)
    wanted = yield from asked(engine, filters)
    if picked is None:
        refuse_everything(all, wanted, "Name them by ids=[…], say")
    elif all or not wanted.is_anything:
        raise OptionError(
            "ids name the dead letters already: leave out all=True and what they have in common; not both"
        )
    return picked, wanted


def refuse_everything(all: bool, wanted: Wanted, what_to_do: str = "Say") -> None:
    """Require all=True to act on all dead letters, of all queues or of one: a forgotten filter must not select them."""
    if not all and wanted.is_anything:
        raise OptionError(
            f"which dead letters? {what_to_do} what they have in common (error_group=, error=, task=, …), or all=True; "
            "all of a queue are queue= and all=True"
        )


def checked(ids: Iterable[str]) -> Ids:
    """Ids as a list; invalid ones are refused."""
    found = [] if isinstance(ids, str) or not isinstance(ids, Iterable) else [*ids]
    strange = [id for id in found if not looks_like_id(id)]
    if strange:
        raise OptionError(f"ids: {strange[0]!r:.60} is not the id of a job: those have 20 letters and digits")
    if not found and ids != []:
        raise OptionError(f"ids: a list of ids is needed, found {ids!r:.80}")
    return list(dict.fromkeys(found))


def named(engine: Engine, ids: Ids, queue: str | None) -> Steps[Letters]:
    """The dead letters with these ids: in the app's queues, and those not found there in other queues of the bus.

    An event has one id in the queues of all subscribers: each of them that belongs to the app is included.
    """
    names = yield from listed_queues(engine, queue)
    found = yield from _in_queues(engine, names, ids)
    if queue is None and (left := missing(ids, (one.id for one in found))):
        for name in (yield from others(engine, names)):
            with suppress(ServerRefused):
                found += yield from _in_queues(engine, [name], left)
    return found


def missing(ids: Ids, found: Iterable[str]) -> Ids:
    """The ids that were not found."""
    there = set(found)
    return [id for id in ids if id not in there]


def _in_queues(engine: Engine, names: list[str], ids: Ids) -> Steps[Letters]:
    found: Letters = []
    for name in names if ids else []:
        keys = engine.keys_of(name)
        for start in range(0, len(ids), letters.CHUNK):
            died: dict[str, int] = yield letters.are_dead(keys, ids[start : start + letters.CHUNK])
            looks: list[jobs.Seen] = yield Ahead((jobs.look(keys, id) for id in died), LOOKED_AHEAD)
            for (id, at_ms), seen in zip(died.items(), looks, strict=True):
                if seen.record is not None:
                    found.append(Letter(name, id, at_ms, seen.record))
    return found


def each_that_fits(
    engine: Engine, wanted: Wanted, deed: Deed, limit: int | None = None, watch: Watch | None = None
) -> Steps[int]:
    """Act on all dead letters that fit and died before now, the oldest first; returns on how many it could act."""
    check_limit(limit)
    walk = Walk(engine, (yield from up_to_now(engine, wanted)), oldest=True)
    done = 0
    while limit is None or done < limit:
        some = yield from next_that_fit(walk, wanted, None if limit is None else limit - done)
        if not some:
            break
        done += yield from _telling(done, deed(engine, some), watch)
    return done


def next_that_fit(walk: Walk, wanted: Wanted, most: int | None = None) -> Generator[Call[Any], Any, Letters]:
    """The next dead letters that fit, one batch (as many as may be in memory); empty: there are no more."""
    some: Letters = []
    size, most = 0, letters.CHUNK if most is None else min(most, letters.CHUNK)
    while len(some) < most and size < letters.CHUNK_BYTES:
        letter = yield from walk.next()
        if letter is None:
            break
        if fits(wanted, letter.record, letter.envelope):
            some.append(letter)
            size += len(bytes(letter.record.body))
    return some


def each_of(engine: Engine, ids: Ids, queue: str | None, deed: Deed, watch: Watch | None = None) -> Steps[int]:
    """Act on the dead letters with these ids; returns on how many it could act."""
    done = 0
    for start in range(0, len(ids), letters.CHUNK):
        some = yield from named(engine, ids[start : start + letters.CHUNK], queue)
        done += yield from _telling(done, deed(engine, some), watch)
    return done


def _telling(before: int, doing: Steps[int], watch: Watch | None) -> Steps[int]:
    """Act, and report how many are done so far."""
    done = yield from doing
    if watch is not None and done:
        watch(before + done)
    return done


def check_limit(limit: Any, most: int | None = None) -> None:
    """Refuse an invalid limit; None is no limit."""
    if limit is None and most is None:
        return
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1 or (most is not None and limit > most):
        upper = "on" if most is None else f"to {most}"
        raise OptionError(f"limit: a whole number from 1 {upper} is needed, found {limit!r:.80}")


def up_to_now(engine: Engine, wanted: Wanted) -> Generator[Call[Any], Any, Wanted]:
    """Only letters that died before now: one that is retried and dies again must not be selected twice."""
    now_ms = yield from engine.now_ms()
    return msgspec.structs.replace(wanted, until_ms=now_ms if wanted.until_ms is None else min(wanted.until_ms, now_ms))
