"""Pools: entities that are not jobs and move through named states, such as machines: pending, ready, completed.

A pool stores each entity's state, since when it is in it, and its metadata. Each move is one step on the server, so an
entity is in exactly one state whatever crashes. An entity that is given up becomes a dead letter with all its metadata.
The purge acts on entities that stay in a state for too long.
"""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from relevo.engine.ids import looks_like_id
from relevo.engine.job import Record
from relevo.errors import OptionError, PayloadError
from relevo.pools import store
from relevo.pools.store import Dead, Entity
from relevo.queues import store as queues
from relevo.queues.queue import check_page
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.text.durations import Duration, seconds
from relevo.text.legible import words_of
from relevo.text.names import pool_name, state_word
from relevo.text.nearest import did_you_mean

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

__all__ = ["Dead", "Entity", "Pool", "StillThere"]

StillThere: TypeAlias = Callable[[Entity], bool | Awaitable[bool]]
"""Whether an entity still exists in the outside world, such as at the provider of machines."""

#: Characters of an entity's id.
LONGEST_ID = 200
#: Most fields of an imported dead letter: other writers may have given its entity more than MOST_FIELDS. It is restored
#: in one step on the server, which must stay short.
MOST_OF_A_LETTER = 10_000


class Pool:
    """Entities with metadata in named states. Given by `app.pool("vms")`.

    >>> vms = app.pool("vms", states=("pending", "ready", "completed"))  # doctest: +SKIP
    >>> vms.add("vm-1", template="centos-7")                             # doctest: +SKIP
    >>> vms.move("vm-1", "pending", "ready", ip="10.0.0.7")              # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        states: Sequence[str] | None = None,
        still_there: StillThere | None = None,
        data_ttl: Duration | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise OptionError(f"pool: the name of a pool is text, found {name!r:.80}")
        self._engine = engine
        self.name = name
        #: Its queue name, for commands that take one: `app.dead.list(queue=pool.queue)`.
        self.queue = pool_name(engine.name, name)
        if isinstance(states, str) or (states is not None and not isinstance(states, Sequence)):
            raise OptionError(f"states: a list of words is needed, such as ('pending', 'ready'), found {states!r:.80}")
        self.states: tuple[str, ...] = tuple(state_word(state) for state in states or ())
        if still_there is not None and not callable(still_there):
            raise OptionError(f"still_there: a function is needed, found {still_there!r:.80}")
        self.still_there = still_there
        ttl = engine.settings.failure_ttl if data_ttl is None else seconds(data_ttl, what="data_ttl")
        #: How long the metadata of an entity is kept once it left all states, in milliseconds.
        self.data_ms = round(ttl * 1000)

    def __repr__(self) -> str:
        return f"<Pool {self.name} of {self._engine.name}>"

    @property
    def keys(self) -> QueueKeys:
        """The keys of the pool, computed each time: a test may bind the app elsewhere."""
        return self._engine.keys_of(self.queue)

    # entities
    def add(self, id: str, /, state: str = "pending", **metadata: Any) -> bool:
        """Put a new entity into a state; False if the pool has it already."""
        return self._engine.run(self._add(id, state, metadata))

    async def aadd(self, id: str, /, state: str = "pending", **metadata: Any) -> bool:
        """`add` for async code."""
        return await self._engine.arun(self._add(id, state, metadata))

    def _add(self, id: str, state: str, metadata: dict[str, Any]) -> Generator[Call[Any], Any, bool]:
        call = store.add_entity(self.keys, checked_id(id), self.checked(state), self._encoded(metadata, new=True))
        yield from self._engine.list_pool(self.name)
        return self._fits((yield call)) > 0

    def move(self, id: str, from_: str, to: str, /, **metadata: Any) -> bool:
        """Move an entity from one state to another and change its metadata, in one step; False if it is not there.

        A field that is given as None is removed.
        """
        return self._engine.run(self._move(id, from_, to, metadata))

    async def amove(self, id: str, from_: str, to: str, /, **metadata: Any) -> bool:
        """`move` for async code."""
        return await self._engine.arun(self._move(id, from_, to, metadata))

    def _move(self, id: str, from_: str, to: str, metadata: dict[str, Any]) -> Generator[Call[Any], Any, bool]:
        encoded = self._encoded(metadata)
        call = store.move_entity(self.keys, checked_id(id), self.checked(from_), self.checked(to), encoded)
        yield from self._engine.list_pool(self.name)
        code, _ = yield call
        return self._fits(code) > 0

    def fail(self, id: str, error: BaseException | str, /, state: str | None = None, **metadata: Any) -> str | None:
        """Give an entity up: it leaves its state and becomes a dead letter; returns its id, or None if it is not there.

        `state`: the state it must be in. The dead letter holds all its metadata and is kept as long as other dead
        letters (`failure_ttl`, `dead_max`); `app.dead.list(queue=pool.queue)` shows it, `retry` restores the entity.
        """
        return self._engine.run(self._fail(id, error, state, metadata))

    async def afail(
        self, id: str, error: BaseException | str, /, state: str | None = None, **metadata: Any
    ) -> str | None:
        """`fail` for async code."""
        return await self._engine.arun(self._fail(id, error, state, metadata))

    def _fail(
        self, id: str, error: BaseException | str, state: str | None, metadata: dict[str, Any]
    ) -> Generator[Call[Any], Any, str | None]:
        from_ = "" if state is None else self.checked(state)
        encoded, why = self._encoded(metadata), _why(error)
        checked_id(id)
        yield from self._list_dead()
        letter = self._engine.new_id()
        code, _ = yield store.fail_entity(self.keys, self.name, id, from_, letter, why, self.keeping, encoded)
        return letter if self._fits(code) else None

    def remove(self, id: str, /, state: str | None = None) -> bool:
        """Remove an entity from the pool (if it is in that state); its metadata is kept for `data_ttl`."""
        return self._engine.run(self._remove(id, state))

    async def aremove(self, id: str, /, state: str | None = None) -> bool:
        """`remove` for async code."""
        return await self._engine.arun(self._remove(id, state))

    def _remove(self, id: str, state: str | None) -> Generator[Call[Any], Any, bool]:
        from_ = "" if state is None else self.checked(state)
        code, _ = yield store.remove_entity(self.keys, checked_id(id), from_, self.data_ms)
        return bool(code)

    def update(self, id: str, /, **metadata: Any) -> bool:
        """Change an entity's metadata; a field given as None is removed. False if the pool does not have it."""
        return self._fits(self._engine.run(self._update(id, metadata))) > 0

    async def aupdate(self, id: str, /, **metadata: Any) -> bool:
        """`update` for async code."""
        return self._fits(await self._engine.arun(self._update(id, metadata))) > 0

    def _update(self, id: str, metadata: dict[str, Any]) -> Call[int]:
        return store.update_entity(self.keys, checked_id(id), self._encoded(metadata))

    # looking
    def get(self, id: str, /) -> Entity | None:
        """An entity; its state is '' if it left the pool recently; None: it is unknown."""
        return self._engine.run(store.look(self.keys, self.name, checked_id(id)))

    async def aget(self, id: str, /) -> Entity | None:
        """`get` for async code."""
        return await self._engine.arun(store.look(self.keys, self.name, checked_id(id)))

    def items(
        self, state: str, *, older_than: Duration | None = None, limit: int = 50, offset: int = 0
    ) -> list[Entity]:
        """A page of the entities in a state, longest there first; with `older_than`, only those there for so long."""
        return self._engine.run(self._items(state, older_than, limit, offset))

    async def aitems(
        self, state: str, *, older_than: Duration | None = None, limit: int = 50, offset: int = 0
    ) -> list[Entity]:
        """`items` for async code."""
        return await self._engine.arun(self._items(state, older_than, limit, offset))

    def _items(self, state: str, older_than: Duration | None, limit: int, offset: int) -> Call[list[Entity]]:
        check_page(offset, limit)
        age_ms = 0 if older_than is None else round(seconds(older_than, what="older_than") * 1000)
        return store.list_entities(self.keys, self.name, self.checked(state), age_ms, offset, limit)

    def counts(self) -> dict[str, int]:
        """How many entities are in each state: the declared states, and all others that hold some."""
        return self._counted(self._engine.run(store.count_entities(self.keys)))

    async def acounts(self) -> dict[str, int]:
        """`counts` for async code."""
        return self._counted(await self._engine.arun(store.count_entities(self.keys)))

    def _counted(self, census: store.Census) -> dict[str, int]:
        return {**dict.fromkeys(self.states, 0), **census.counts}

    # dead letters
    def dead(self, *, limit: int = 50, offset: int = 0) -> list[Dead]:
        """Entities that were given up, newest first."""
        return self._engine.run(self._dead(limit, offset))

    async def adead(self, *, limit: int = 50, offset: int = 0) -> list[Dead]:
        """`dead` for async code."""
        return await self._engine.arun(self._dead(limit, offset))

    def _dead(self, limit: int, offset: int) -> Generator[Call[Any], Any, list[Dead]]:
        check_page(offset, limit)
        rows: list[queues.Listed] = yield queues.page(self.keys, "dead", offset, limit)
        found = (store.dead_of(row.id, row.record) for row in rows if row.record is not None)
        return [dead for dead in found if dead is not None]

    def retry(self, letter: str, /, to: str | None = None) -> bool:
        """Restore an entity from its dead letter, to the state it came from or `to` another. False the second time.

        Also False while the pool has an entity of that name.
        """
        return self._engine.run(self._retry(letter, to))

    async def aretry(self, letter: str, /, to: str | None = None) -> bool:
        """`retry` for async code."""
        return await self._engine.arun(self._retry(letter, to))

    def _retry(self, letter: str, to: str | None) -> Generator[Call[Any], Any, bool]:
        if not looks_like_id(letter):
            raise OptionError(f"the id of a dead letter is needed, as dead() and fail() give it, found {letter!r:.60}")
        known = yield store.letter(self.keys, letter)
        if known is None:
            return False
        record, body = known
        call = store.revive_letter(self.keys, letter, record, body, None if to is None else self.checked(to))
        yield from self._engine.list_pool(self.name)
        code = yield call
        return self._fits(code) > 0

    def check_letter(self, record: Record) -> None:
        """Refuse an imported dead letter that could not be restored as an entity of this pool."""
        body = store.body_of(record)
        if body is None:
            raise OptionError(f"what it holds is no entity of pool {self.name}")
        checked_id(body.entity)
        self.checked(record.queue_from)
        for name in body.metadata:
            _check_field(name)
        if len(body.metadata) > MOST_OF_A_LETTER:
            raise PayloadError(
                f"pool {self.name}: its metadata has {len(body.metadata):,} fields, the limit is {MOST_OF_A_LETTER:,}"
            )

    # for the purge
    @property
    def keeping(self) -> store.Keeping:
        """How long metadata and dead letters of entities are kept."""
        return store.Keeping(self._engine.failure_ms(None), self.data_ms, self._engine.settings.dead_max)

    def _list_dead(self) -> Generator[Call[Any], Any, None]:
        """Put the pool on the list of queues, where commands look for dead letters."""
        yield from self._engine.list_pool(self.name)
        yield from self._engine.list_queue(self.queue)

    def checked(self, state: str) -> str:
        """A state of this pool; if states were declared, others are refused."""
        word = state_word(state)
        if self.states and word not in self.states:
            near = did_you_mean(word, self.states) or f": {', '.join(self.states)}"
            raise OptionError(f"pool {self.name} has no state {word!r}{near}")
        return word

    def _encoded(self, metadata: dict[str, Any], *, new: bool = False) -> dict[str, bytes]:
        encoded = {}
        for name, value in metadata.items():
            _check_field(name)
            if value is None:
                if not new:
                    encoded[name] = b""
                continue
            try:
                encoded[name] = msgspec.json.encode(value)
            except (TypeError, ValueError, RecursionError) as error:
                raise PayloadError(f"pool {self.name}: metadata {name!r} cannot be kept as JSON: {error}") from error
        limit, size = self._engine.settings.max_payload, sum(map(len, encoded.values()))
        if len(encoded) > store.MOST_FIELDS or size > limit:
            raise PayloadError(
                f"pool {self.name}: metadata has {len(encoded)} fields of {size:,} bytes, the limit is "
                f"{store.MOST_FIELDS} fields of {limit:,} bytes (setting max_payload). Keep a reference instead."
            )
        return encoded

    def _fits(self, code: int) -> int:
        if code == -1:
            raise OptionError(
                f"pool {self.name} has {store.MOST_STATES} states already, which is the limit: a state is a word that "
                "many entities share"
            )
        if code == -3:
            raise PayloadError(
                f"pool {self.name}: the entity would have more than {store.MOST_FIELDS} fields of metadata, which is "
                "the limit. A field that is given as None is taken away; or keep a reference instead."
            )
        return code


class Pools:
    """The pools that this program declared with states or hooks."""

    def __init__(self, engine: Engine) -> None:
        self.declared: dict[str, Pool] = {}
        engine.entity_of = store.dead_of


def pool_of(engine: Engine, name: str) -> Pool:
    """A pool by its name, as this program declared it."""
    return engine.part(Pools).declared.get(name) or Pool(engine, name)


def checked_id(id: Any) -> str:
    """The id of an entity."""
    if not isinstance(id, str) or not 1 <= len(id) <= LONGEST_ID or not id.isprintable():
        raise OptionError(f"an entity's id is printable text of at most {LONGEST_ID} characters, found {id!r:.60}")
    return id


def _check_field(name: str) -> None:
    if not name or name.startswith("@") or len(name) > LONGEST_ID or not name.isprintable():
        raise OptionError(f"metadata: a field's name is text that does not begin with @, found {name!r:.60}")


def _why(error: Any) -> store.Reason:
    if isinstance(error, BaseException):
        trace = "".join(traceback.format_exception(error)) if error.__traceback__ else ""
        text = words_of(error)[:2000].encode(errors="backslashreplace").decode()
        return store.Reason("failed", type(error).__name__, text, trace[:20_000].encode(errors="replace").decode())
    if not isinstance(error, str) or not error:
        raise OptionError(f"an error, or a text that says what went wrong, is needed, found {error!r:.60}")
    return store.Reason("failed", "Failure", error[:2000].encode(errors="backslashreplace").decode())
