"""The bus over HTTP: its services, traces of operations, and remains of conversations."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from relevo.bus.asyncapi import document
from relevo.bus.catalogue import ServiceInfo, catalogue, concerns
from relevo.bus.conversation_store import Left
from relevo.bus.conversations import Made, Tally
from relevo.bus.span import Span
from relevo.web.access import Role
from relevo.web.asked import DryRun
from relevo.web.problems import not_there
from relevo.web.route import Desk, Did, Page, get, post


class Services(Struct, frozen=True):
    """Services, and what needs attention."""

    prefix: str
    env: str
    #: When they were looked at, by the server's clock.
    now_ms: int
    warnings: list[str]
    services: list[ServiceInfo]


class Cleanup(Struct, frozen=True, forbid_unknown_fields=True):
    """What to remove."""

    dry_run: DryRun = True
    #: Its dead letters, too.
    dead: bool = False


class Cleaned(Struct, frozen=True, kw_only=True):
    """What was removed, or would be, and what stays."""

    conversation: str
    dry_run: bool
    removed: int
    #: Messages still in use.
    living: int
    #: Dead letters that were left.
    dead: int
    queues: dict[str, Left]


@get("/services")
async def services(desk: Desk) -> Services:
    """The services of the bus: their instances, their actions, and the state of their queues."""
    found = await desk.app.engine.arun(catalogue(desk.app.engine))
    return Services(found.prefix, found.env, found.now_ms, concerns(found), list(found.services))


@get("/services/{service}")
async def service(desk: Desk, service: str) -> Services:
    """One service, in all its contexts."""
    every = await desk.app.engine.arun(catalogue(desk.app.engine))
    found = every.of(service)
    if not found.services:
        raise not_there("service", service, {one.name for one in every.services})
    return Services(found.prefix, found.env, found.now_ms, concerns(found), list(found.services))


@get("/asyncapi.json")
async def asyncapi(desk: Desk) -> dict[str, Any]:
    """What all services offer, as an AsyncAPI 3.0 document."""
    return document(await desk.app.engine.arun(catalogue(desk.app.engine)))


@get("/tallies")
async def tallies(desk: Desk) -> dict[str, Tally]:
    """How many actions, callbacks and notifications were made on the bus, and what became of them."""
    return await desk.app.conversations.acounts()


@get("/traces/{operation}")
async def trace(desk: Desk, operation: str) -> Page[Span]:
    """The path of an operation through all services, by its correlation id, conversation, or the id of a message."""
    found = await desk.app.conversations.atrace(operation)
    if not found:
        raise not_there("trace of an operation, conversation or message", operation)
    return Page.whole(found)


@get("/conversations/{conversation}")
async def conversation(desk: Desk, conversation: str) -> Page[Made]:
    """What was made on behalf of a conversation of the bus and still exists, oldest first."""
    found = await desk.app.conversations.alist(conversation)
    if not found:
        raise not_there("conversation", conversation)
    return Page.whole(found)


@post("/conversations/{conversation}/cleanup", "conversation.cleanup", Role.ADMIN)
async def cleanup(desk: Desk, conversation: str, query: Cleanup) -> Did[Cleaned]:
    """Remove the remains of a conversation: records, results and logs. What is in use stays, and so do dead
    letters.
    """
    done = await desk.app.conversations.aclean(conversation, dead=query.dead, dry_run=query.dry_run)
    result = Cleaned(
        conversation=conversation,
        dry_run=done.dry_run,
        removed=done.removed,
        living=done.living,
        dead=done.dead,
        queues=done.queues,
    )
    return Did(
        answer=result, count=done.removed, about={"conversation": conversation, "dead": query.dead}, dry=done.dry_run
    )


ROUTES = (services, service, asyncapi, tallies, trace, conversation, cleanup)
