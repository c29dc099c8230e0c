"""Events: every service that subscribed to a topic gets what is published."""

from __future__ import annotations

import asyncio
from typing import Any

from relevo import Relevo, current_job
from relevo.bus.subscription_store import Subscription, subscriptions
from relevo.engine.engine import Engine
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.working import drain, working


async def subscribed(engine: Engine, count: int) -> None:
    """Wait until so many subscriptions are registered: workers register those of their services when they start."""

    async def are_registered() -> bool:
        known: list[Subscription] = await engine.arun(subscriptions(engine.bus_keys))
        return len(known) == count

    await aeventually(are_registered)


async def test_every_service_that_subscribed_gets_an_event_once(bus: Relevo) -> None:
    # Given two services that subscribe to an event
    handled: list[str] = []
    ingestion, search, mail = bus.service("ingestion"), bus.service("search"), bus.service("mail")

    @search.on("ingestion.document_processed")
    async def index(document_id: str) -> None:
        handled.append(f"index {document_id}")

    @mail.on("ingestion.>")
    async def notify(document_id: str) -> None:
        handled.append(f"notify {document_id}")

    # If the event is published
    async with working(bus):
        await subscribed(bus.engine, 2)
        assert await ingestion.apublish("document_processed", {"document_id": "7"}) == 2
        await aeventually(lambda: len(handled) == 2)

    # I expect each of them to handle it once
    assert sorted(handled) == ["index 7", "notify 7"]


async def test_one_process_of_a_service_handles_an_event_and_all_handle_a_broadcast(
    bus_factory: AppFactory,
) -> None:
    # Given a service with three processes
    handled: list[str] = []
    processes = [bus_factory() for _ in range(3)]
    for app in processes:
        search = app.service("search")

        @search.on("shop.sold")
        async def index(n: int) -> None:
            handled.append("indexed")

        @search.on("shop.*", broadcast=True)
        async def forget_cached(n: int) -> None:
            handled.append("forgot")

    # If an event is published
    shop = bus_factory().service("shop")
    async with working(processes[0]), working(processes[1]), working(processes[2]):
        await subscribed(shop.engine, 4)
        await shop.apublish("sold", {"n": 1})
        await aeventually(lambda: len(handled) == 4)

    # I expect one process to run the handler, and all of them the broadcast handler
    assert sorted(handled) == ["forgot"] * 3 + ["indexed"]
    await shop.engine.aclose()


async def test_a_service_that_was_down_gets_the_events_it_missed(bus: Relevo) -> None:
    # Given a service that has subscribed and stopped
    got: list[int] = []
    shop, mail = bus.service("shop"), bus.service("mail")

    @mail.on("shop.sold", retention="7d")
    async def note(n: int) -> None:
        got.append(n)

    async with working(bus):
        await subscribed(bus.engine, 1)

    # If events are published while no process of it runs
    for n in (1, 2, 3):
        await shop.apublish("sold", {"n": n})

    # I expect it to get them, in order, when it runs again
    await drain(bus, concurrency=1)
    assert got == [1, 2, 3]


async def test_a_handler_that_fails_is_retried_alone(bus: Relevo) -> None:
    # Given a handler that fails in its first attempt, and one that does not
    handled: list[str] = []
    shop, mail, audit = bus.service("shop"), bus.service("mail"), bus.service("audit")

    @mail.on("shop.sold", retries=3, backoff=0)
    async def send(n: int) -> None:
        if current_job().attempt == 1:
            raise ConnectionError("connection refused")
        handled.append("mail")

    @audit.on("shop.sold")
    async def note(n: int) -> None:
        handled.append("audit")

    # If an event is published
    async with working(bus):
        await subscribed(bus.engine, 2)
        await shop.apublish("sold", {"n": 1})
        await aeventually(lambda: len(handled) == 2)

    # I expect both to have succeeded once
    assert sorted(handled) == ["audit", "mail"]


async def test_an_event_of_a_handler_inherits_tenant_and_conversation(bus: Relevo) -> None:
    # Given a handler that publishes an event of its own
    seen: list[Any] = []
    shop, mail, audit = bus.service("shop"), bus.service("mail"), bus.service("audit")

    @mail.on("shop.sold")
    async def send(n: int) -> None:
        await mail.apublish("sent", {"n": n})

    @audit.on("mail.sent")
    async def note(n: int) -> None:
        seen.append(current_job().message)

    # If an event has a tenant and a conversation
    async with working(bus):
        await subscribed(bus.engine, 2)
        await shop.apublish("sold", {"n": 1}, tenant="acme", conversation="order-7")
        await aeventually(lambda: seen)

    # I expect the second event to have the same
    (message,) = seen
    assert (message.type, message.source, message.tenant, message.conversation_id) == (
        "mail.sent",
        "mail",
        "acme",
        "order-7",
    )


async def test_a_new_subscriber_can_catch_up_on_past_events(bus: Relevo) -> None:
    # Given a service whose events are kept
    got: list[int] = []
    shop, mail = bus.service("shop", keep_events="7d"), bus.service("mail")
    for n in (1, 2):
        await shop.apublish("sold", {"n": n})

    # If a service subscribes later and asks for the past events
    @mail.on("shop.sold")
    async def note(n: int) -> None:
        got.append(n)

    assert await mail.acatch_up("shop.sold", since="1h") == 2

    # I expect it to get them
    await drain(bus, concurrency=1)
    assert got == [1, 2]


async def test_records_of_a_conversation_are_removed_after_its_callback(bus: Relevo) -> None:
    # Given a service with an action, and one with a callback for it
    embedding, ingestion = bus.service("embedding"), bus.service("ingestion")
    done = asyncio.Event()

    @embedding.action("generate", result_ttl="1h")
    async def generate(n: int) -> int:
        return n * 2

    @ingestion.action("ready")
    async def ready(reply: Any) -> None:
        done.set()

    # If a message belongs to a conversation
    await ingestion.asend("embedding.generate", {"n": 1}, on_reply="ready", conversation="task_7")
    assert sorted(one.kind for one in await bus.conversations.alist("task_7")) == ["actions", "callbacks"]

    # I expect nothing to be left of it after the callback
    async with working(bus):
        await asyncio.wait_for(done.wait(), PATIENCE)

        async def is_gone() -> bool:
            return await bus.conversations.alist("task_7") == []

        await aeventually(is_gone)
