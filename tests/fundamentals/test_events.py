"""Events: something happened, and every service that wants to know is told."""

from __future__ import annotations

import asyncio
from typing import Any

from relevo import Relevo, current_job
from relevo.store.subscriptions import Subscription, subscriptions
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.working import drain, working


async def subscribed(app: Relevo, count: int) -> None:
    """Until so many subscriptions are known: workers say when they start what their services want to hear."""

    async def are_known() -> bool:
        known: list[Subscription] = await app.arun(subscriptions(app.bus_keys))
        return len(known) == count

    await aeventually(are_known)


async def test_every_service_that_subscribed_gets_an_event_once(bus: Relevo) -> None:
    # Given two services that want to know when a document was processed
    told: list[str] = []
    ingestion, search, mail = bus.service("ingestion"), bus.service("search"), bus.service("mail")

    @search.on("ingestion.document_processed")
    async def index(document_id: str) -> None:
        told.append(f"index {document_id}")

    @mail.on("ingestion.>")
    async def notify(document_id: str) -> None:
        told.append(f"notify {document_id}")

    # If it is published
    async with working(bus):
        await subscribed(bus, 2)
        assert await ingestion.apublish("document_processed", {"document_id": "7"}) == 2
        await aeventually(lambda: len(told) == 2)

    # I expect each of them to be told once
    assert sorted(told) == ["index 7", "notify 7"]


async def test_of_many_processes_of_a_service_one_gets_an_event_and_a_broadcast_reaches_all(
    bus_factory: AppFactory,
) -> None:
    # Given a service with three processes
    told: list[str] = []
    processes = [bus_factory() for _ in range(3)]
    for app in processes:
        search = app.service("search")

        @search.on("shop.sold")
        async def index(n: int) -> None:
            told.append("indexed")

        @search.on("shop.*", broadcast=True)
        async def forget_cached(n: int) -> None:
            told.append("forgot")

    # If something happens
    shop = bus_factory().service("shop")
    async with working(processes[0]), working(processes[1]), working(processes[2]):
        await subscribed(shop.app, 4)
        await shop.apublish("sold", {"n": 1})
        await aeventually(lambda: len(told) == 4)

    # I expect one of them to do the work, and all to hear of it where each wants to
    assert sorted(told) == ["forgot"] * 3 + ["indexed"]
    await shop.app.aclose()


async def test_a_service_that_was_away_gets_what_it_missed(bus: Relevo) -> None:
    # Given a service that has run once
    got: list[int] = []
    shop, mail = bus.service("shop"), bus.service("mail")

    @mail.on("shop.sold", retention="7d")
    async def note(n: int) -> None:
        got.append(n)

    async with working(bus):
        await subscribed(bus, 1)

    # If things happen while no process of it lives
    for n in (1, 2, 3):
        await shop.apublish("sold", {"n": n})

    # I expect it to get them, in order, when it is back
    await drain(bus, concurrency=1)
    assert got == [1, 2, 3]


async def test_who_fails_is_tried_again_and_nobody_else_notices(bus: Relevo) -> None:
    # Given a service that fails the first time, and one that does not
    told: list[str] = []
    shop, mail, audit = bus.service("shop"), bus.service("mail"), bus.service("audit")

    @mail.on("shop.sold", retries=3, backoff=0)
    async def send(n: int) -> None:
        if current_job().attempt == 1:
            raise ConnectionError("the post office is closed")
        told.append("mail")

    @audit.on("shop.sold")
    async def note(n: int) -> None:
        told.append("audit")

    # If an event is published
    async with working(bus):
        await subscribed(bus, 2)
        await shop.apublish("sold", {"n": 1})
        await aeventually(lambda: len(told) == 2)

    # I expect one to have heard it once, and the other to have been tried again
    assert sorted(told) == ["audit", "mail"]


async def test_a_handler_knows_on_whose_behalf_something_happened(bus: Relevo) -> None:
    # Given a handler that publishes in turn
    seen: list[Any] = []
    shop, mail, audit = bus.service("shop"), bus.service("mail"), bus.service("audit")

    @mail.on("shop.sold")
    async def send(n: int) -> None:
        await mail.apublish("sent", {"n": n})

    @audit.on("mail.sent")
    async def note(n: int) -> None:
        seen.append(current_job().message)

    # If an event says to whom it belongs
    async with working(bus):
        await subscribed(bus, 2)
        await shop.apublish("sold", {"n": 1}, tenant="acme", task="order-7")
        await aeventually(lambda: seen)

    # I expect what it caused to belong to the same
    (message,) = seen
    assert (message.type, message.source, message.tenant, message.conversation_id) == (
        "mail.sent",
        "mail",
        "acme",
        "order-7",
    )


async def test_what_is_kept_can_be_heard_again(bus: Relevo) -> None:
    # Given a service whose events are kept
    got: list[int] = []
    shop, mail = bus.service("shop", keep_events="7d"), bus.service("mail")
    for n in (1, 2):
        await shop.apublish("sold", {"n": n})

    # If somebody who came later asks for them
    @mail.on("shop.sold")
    async def note(n: int) -> None:
        got.append(n)

    assert await mail.areplay("shop.sold", since="1h") == 2

    # I expect it to get them
    await drain(bus, concurrency=1)
    assert got == [1, 2]


async def test_what_was_made_for_a_task_is_cleaned_up_when_its_callback_was_handled(bus: Relevo) -> None:
    # Given a service that answers, and one that waits for the answer
    embedding, ingestion = bus.service("embedding"), bus.service("ingestion")
    done = asyncio.Event()

    @embedding.action("generate", result_ttl="1h")
    async def generate(n: int) -> int:
        return n * 2

    @ingestion.action("ready")
    async def ready(reply: Any) -> None:
        done.set()

    # If it asks on behalf of a task
    await ingestion.asend("embedding.generate", {"n": 1}, on_reply="ready", task="task_7")
    assert sorted(one.kind for one in await bus.amade_for("task_7")) == ["actions", "callbacks"]

    # I expect nothing to be left of the task after the callback
    async with working(bus):
        await asyncio.wait_for(done.wait(), 10)

        async def is_gone() -> bool:
            return await bus.amade_for("task_7") == []

        await aeventually(is_gone)
