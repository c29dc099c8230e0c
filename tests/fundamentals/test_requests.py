"""Requests: ask another service and wait for the answer, as one calls a function."""

from __future__ import annotations

import asyncio
import time

import pytest

from relevo import Relevo, current_job
from relevo.errors import NoResponders, RemoteError, RequestTimeout
from tests.answering import answering
from tests.eventually import aeventually


async def test_a_request_is_answered(bus: Relevo) -> None:
    # Given a service with an action
    embedding = bus.service("embedding")

    @embedding.action("generate_batch")
    async def generate_batch(texts: list[str], *, size: int = 2) -> list[list[float]]:
        return [[float(len(text))] * size for text in texts]

    # If another service asks for it by its name, with the arguments by theirs
    ingestion = bus.service("ingestion")
    async with answering(bus):
        vectors = await ingestion.arequest("embedding.generate_batch", {"texts": ["a", "bcd"]}, timeout=5)

    # I expect what the function returned
    assert vectors == [[1.0, 1.0], [3.0, 3.0]]


def test_plain_code_asks_in_the_same_way(bus: Relevo) -> None:
    # Given an action that is a plain function
    billing = bus.service("billing")

    @billing.action("charge")
    def charge(cents: int) -> str:
        return f"charged {cents}"

    # If code without an event loop asks for it, I expect the answer, read as the type I name
    shop = bus.service("shop")
    with answering(bus):
        assert shop.request("billing.charge", {"cents": 990}, timeout=5, returns=str) == "charged 990"


async def test_if_nobody_serves_an_action_who_asks_is_told_at_once(bus: Relevo) -> None:
    # Given nobody who serves, if somebody asks
    shop = bus.service("shop")
    began = time.monotonic()
    with pytest.raises(NoResponders, match=r"nobody serves billing\.charge"):
        await shop.arequest("billing.charge", {"cents": 990}, timeout=30)

    # I expect no waiting
    assert time.monotonic() - began < 15


async def test_or_waits_for_somebody_who_does(bus: Relevo) -> None:
    # Given a service whose worker is not up yet
    billing = bus.service("billing")

    @billing.action("charge")
    async def charge(cents: int) -> int:
        return cents

    # If somebody asks and may wait, I expect the answer as soon as there is a worker
    asked = asyncio.create_task(bus.service("shop").arequest("billing.charge", {"cents": 990}, wait=True))
    await aeventually(lambda: bus.queue(billing.queue).stats().ready)
    async with answering(bus):
        assert await asked == 990


async def test_what_fails_there_is_an_error_here(bus: Relevo) -> None:
    # Given an action that fails
    billing = bus.service("billing")

    @billing.action("charge", give_up_on=[ValueError])
    async def charge(cents: int) -> None:
        raise ValueError("the card has expired")

    async with answering(bus):
        # If somebody asks for it, I expect an error that says what happened and whether asking again may help
        with pytest.raises(RemoteError, match="the card has expired") as failed:
            await bus.service("shop").arequest("billing.charge", {"cents": 990})
        assert (failed.value.type, failed.value.retryable) == ("ValueError", False)

        # and the same for arguments that do not fit
        with pytest.raises(RemoteError, match="cents") as refused:
            await bus.service("shop").arequest("billing.charge", {"cents": "a lot"})
        assert (refused.value.reason, refused.value.retryable) == ("bad_arguments", False)


async def test_no_answer_in_time_is_an_error_and_the_work_is_stopped(bus: Relevo) -> None:
    # Given an action that takes too long
    stopped = asyncio.Event()
    billing = bus.service("billing")

    @billing.action("charge")
    async def charge() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    # If somebody waits for it for a moment, I expect an error after that
    async with answering(bus):
        with pytest.raises(RequestTimeout, match=r"no answer within 0\.2 s"):
            await bus.service("shop").arequest("billing.charge", timeout=0.2)
        # and that nobody works for nobody
        await asyncio.wait_for(stopped.wait(), 5)


async def test_a_request_inside_a_request_belongs_to_it(bus: Relevo) -> None:
    # Given a service that asks another one while it is asked itself
    shop, billing, ledger = bus.service("shop"), bus.service("billing"), bus.service("ledger")

    @ledger.action("book")
    async def book() -> dict[str, str]:
        message = current_job().message
        assert message is not None
        return {"tenant": message.tenant, "operation": message.correlation_id, "from": message.source}

    @billing.action("charge")
    async def charge() -> dict[str, str]:
        answer: dict[str, str] = await billing.arequest("ledger.book", timeout=60)
        return answer

    # If it is asked, I expect that the inner request says for whom and of which operation it is, by itself
    async with answering(bus):
        answer = await shop.arequest("billing.charge", tenant="acme", correlation_id="order-7", timeout=5)
    assert answer == {"tenant": "acme", "operation": "order-7", "from": "billing"}


async def test_the_same_idempotency_key_is_the_same_request(bus: Relevo) -> None:
    # Given an action that must not be done twice
    charged = []
    billing = bus.service("billing")

    @billing.action("charge")
    async def charge(cents: int) -> int:
        charged.append(cents)
        return len(charged)

    # If it is asked for several times under one key, I expect one run, and its answer each time
    shop = bus.service("shop")
    async with answering(bus):
        asked = [shop.arequest("billing.charge", {"cents": 990}, idempotency_key="order-7") for _ in range(5)]
        assert await asyncio.gather(*asked) == [1] * 5
        assert await shop.arequest("billing.charge", {"cents": 990}, idempotency_key="order-7") == 1
    assert charged == [990]
