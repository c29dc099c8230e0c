"""Pools over HTTP: entities that are no jobs, where each of them is, and what an operator may do to it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from relevo.engine.ids import looks_like_id
from relevo.errors import OptionError
from relevo.pools import store
from relevo.pools.pool import Dead, Entity, Pool, Pools
from relevo.text.masking import masked
from relevo.web.access import Role
from relevo.web.asked import Dry, Limit, Offset, refuse_hidden
from relevo.web.problems import conflict, invalid, not_there
from relevo.web.route import Desk, Did, Page, get, post
from relevo.web.shown import shown_letter

State = Annotated[str, Meta(min_length=1, max_length=50)]
Metadata = Annotated[dict[str, Any], Meta(description="what is known of it, by name; null takes a field away")]


class PoolInfo(Struct, frozen=True):
    """A pool, and how many entities are in which state."""

    name: str
    #: Its name among the queues, under which its dead letters are.
    queue: str
    counts: dict[str, int]


class InState(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the entities in one state."""

    state: State = "pending"
    older_than: Annotated[str, Meta(max_length=40, description='there for so long: "2h"')] | None = None
    offset: Offset = 0
    limit: Limit = 50


class Some(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of a list."""

    offset: Offset = 0
    limit: Limit = 50


class NewEntity(Struct, frozen=True, forbid_unknown_fields=True):
    """An entity, the state it begins in, and what is known of it."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]
    state: State = "pending"
    metadata: Metadata = {}


class EntityMove(Struct, frozen=True, forbid_unknown_fields=True):
    """From where to where, and what is known of it by now."""

    to: State
    from_: State = msgspec.field(name="from")
    metadata: Metadata = {}


class EntityUpdate(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of it by now."""

    metadata: Metadata


class EntityFailure(Struct, frozen=True, forbid_unknown_fields=True):
    """Why it is given up, and where it must be, if that matters."""

    error: Annotated[str, Meta(min_length=1, max_length=2000)]
    state: State | None = None
    metadata: Metadata = {}


class EntityBack(Struct, frozen=True, forbid_unknown_fields=True):
    """Where it comes back to; without it, to the state it came from."""

    to: State | None = None


class FailedEntity(Struct, frozen=True):
    """An entity that is a dead letter now."""

    entity: str
    #: Of the letter.
    id: str


class RemovedEntity(Struct, frozen=True):
    """What was taken out of its pool, or would be."""

    entity: Entity
    dry_run: bool


@get("/pools")
async def pools(desk: Desk) -> Page[PoolInfo]:
    """All pools, with how many entities are in which state."""
    found = [desk.app.pool(name) for name in await desk.app.apools()]
    return Page.whole([PoolInfo(pool.name, pool.queue, await pool.acounts()) for pool in found])


@get("/pools/{pool}/items")
async def items(desk: Desk, pool: str, query: InState) -> Page[Entity]:
    """Entities in one state of a pool, those that are there longest first."""
    found = await _in_use(desk, pool)
    await _check_state(found, query.state)
    rows = await found.aitems(query.state, older_than=query.older_than, limit=query.limit, offset=query.offset)
    return Page.of([_shown(desk, row) for row in rows], query.offset, query.limit)


@get("/pools/{pool}/items/{entity}")
async def show(desk: Desk, pool: str, entity: str) -> Entity:
    """One entity; its state is '' once it has left the pool."""
    return _shown(desk, await _find(await _in_use(desk, pool), entity))


@get("/pools/{pool}/dead")
async def dead(desk: Desk, pool: str, query: Some) -> Page[Dead]:
    """Entities that were given up, newest first."""
    rows = await (await _in_use(desk, pool)).adead(limit=query.limit, offset=query.offset)
    return Page.of([shown_letter(desk.app, row, all=desk.sees_all) for row in rows], query.offset, query.limit)


@post("/pools/{pool}/items", "pool.add")
async def add(desk: Desk, pool: str, body: NewEntity) -> Did[Entity]:
    """Put an entity into a pool. A pool that is neither in use nor named by the app's code is refused."""
    found = await _in_use(desk, pool)
    _check_metadata(body.metadata)
    if not await found.aadd(body.id, body.state, **body.metadata):
        raise conflict(f"pool {pool} has {body.id!r:.80} already: see /pools/{pool}/items/{body.id}")
    return Did(
        answer=_shown(desk, await _find(found, body.id)), count=1, about={"pool": pool, "id": body.id, "to": body.state}
    )


@post("/pools/{pool}/items/{entity}/move", "pool.move")
async def move(desk: Desk, pool: str, entity: str, body: EntityMove) -> Did[Entity]:
    """Move an entity from one state to another and change what is known of it, in one step."""
    found = await _in_use(desk, pool)
    refuse_hidden(body.metadata)
    if not await found.amove(entity, body.from_, body.to, **body.metadata):
        raise await _not_so(found, entity, body.from_)
    about = {"pool": pool, "id": entity, "from": body.from_, "to": body.to, "changed": sorted(body.metadata) or None}
    return Did(answer=_shown(desk, await _find(found, entity)), count=1, about=about)


@post("/pools/{pool}/items/{entity}/update", "pool.update")
async def update(desk: Desk, pool: str, entity: str, body: EntityUpdate) -> Did[Entity]:
    """Change what is known of an entity."""
    found = await _in_use(desk, pool)
    refuse_hidden(body.metadata)
    if not await found.aupdate(entity, **body.metadata):
        raise await _not_so(found, entity)
    about = {"pool": pool, "id": entity, "changed": sorted(body.metadata)}
    return Did(answer=_shown(desk, await _find(found, entity)), count=1, about=about)


@post("/pools/{pool}/items/{entity}/fail", "pool.fail")
async def fail(desk: Desk, pool: str, entity: str, body: EntityFailure) -> Did[FailedEntity]:
    """Give an entity up: it becomes a dead letter, from which it can be brought back."""
    found = await _in_use(desk, pool)
    _check_metadata(body.metadata)
    letter = await found.afail(entity, body.error, body.state, **body.metadata)
    if letter is None:
        raise await _not_so(found, entity, body.state)
    return Did(
        answer=FailedEntity(entity, letter),
        count=1,
        about={"pool": pool, "id": entity, "letter": letter, "from": body.state},
    )


@post("/pools/{pool}/dead/{id}/retry", "pool.retry")
async def retry(desk: Desk, pool: str, id: str, body: EntityBack) -> Did[Entity]:
    """Bring an entity back from its dead letter, once."""
    found = await _in_use(desk, pool)
    letter = await desk.app.engine.arun(store.letter(found.keys, id)) if looks_like_id(id) else None
    if letter is None:
        raise not_there(f"dead letter of pool {pool}", id)
    entity = letter[1].entity
    if not await found.aretry(id, body.to):
        raise conflict(f"pool {pool} has {entity!r:.80}: it came back already, or another one of that name is there")
    return Did(
        answer=_shown(desk, await _find(found, entity)),
        count=1,
        about={"pool": pool, "id": entity, "letter": id, "to": body.to},
    )


@post("/pools/{pool}/items/{entity}/remove", "pool.remove", Role.ADMIN)
async def remove(desk: Desk, pool: str, entity: str, query: Dry) -> Did[RemovedEntity]:
    """Take an entity out of its pool; what is known of it can be read for a while."""
    found = await _in_use(desk, pool)
    there = await _find(found, entity)
    if not there.state or not (query.dry_run or await found.aremove(entity, there.state)):
        raise await _not_so(found, entity)
    return Did(
        answer=RemovedEntity(_shown(desk, there), query.dry_run),
        count=1,
        about={"pool": pool, "id": entity},
        dry=query.dry_run,
    )


async def _in_use(desk: Desk, name: str) -> Pool:
    """A pool that has been used, or that the code names: a misspelt one is refused."""
    known = {*desk.app.engine.part(Pools).declared, *await desk.app.apools()}
    if name not in known:
        raise not_there("pool in use", name, known)
    return desk.app.pool(name)


def _check_metadata(metadata: dict[str, Any]) -> None:
    refuse_hidden(metadata)
    if "state" in metadata:  # where it is has a place of its own, here as in Python
        raise invalid("metadata: no field can be called 'state' here: say it beside metadata")


async def _check_state(pool: Pool, state: str) -> None:
    try:
        pool.checked(state)
    except OptionError as error:
        raise not_there("state", state, list(await pool.acounts())) from error


async def _find(pool: Pool, id: str) -> Entity:
    try:
        found = await pool.aget(id)
    except OptionError:
        found = None
    if found is None:
        raise not_there(f"entity in pool {pool.name}", id)
    return found


async def _not_so(pool: Pool, id: str, state: str | None = None) -> Exception:
    """Why nothing was done to an entity."""
    now = (await _find(pool, id)).state
    if not now:
        return conflict(f"{id!r:.80} has left pool {pool.name}")
    return conflict(f"{id!r:.80} is {now} in pool {pool.name}" + (f", not {state}" if state else ""))


def _shown(desk: Desk, entity: Entity) -> Entity:
    return msgspec.structs.replace(entity, metadata=masked(entity.metadata, desk.app.settings.mask))


ROUTES = (pools, items, show, dead, add, move, update, fail, retry, remove)
