"""Requests: call an action of another service and wait for its answer."""

from __future__ import annotations

import asyncio

import pytest

from relevo import Relevo, current_job
from relevo.errors import NoResponders, RemoteError, RequestTimeout
from tests.answering import answering
from tests.eventually import PATIENCE, aeventually


async def test_a_request_is_answered(bus: Relevo) -> None:
    # Given a service with an action
    embedding = bus.service("embedding")

    @embedding.action("generate_batch")
    async def generate_batch(texts: list[str], *, size: int = 2) -> list[list[float]]:
        return [[float(len(text))] * size for text in texts]

    # If another service requests it, with named arguments
    ingestion = bus.service("ingestion")
    async with answering(bus):
        vectors = await ingestion.arequest("embedding.generate_batch", {"texts": ["a", "bcd"]}, timeout=PATIENCE)

    # I expect what the function returned
    assert vectors == [[1.0, 1.0], [3.0, 3.0]]


def test_blocking_code_can_send_requests(bus: Relevo) -> None:
    # Given an action that is a plain function
    billing = bus.service("billing")

    @billing.action("charge")
    def charge(cents: int) -> str:
        return f"charged {cents}"

    # If code without an event loop requests it, I expect the answer, decoded as the type I name
    shop = bus.service("shop")
    with answering(bus):
        assert shop.request("billing.charge", {"cents": 990}, timeout=PATIENCE, returns=str) == "charged 990"


async def test_a_request_to_a_service_without_workers_fails_at_once(bus: Relevo) -> None:
    # Given no worker that serves the action
    shop = bus.service("shop")

    # If I request it, I expect an error, long before the timeout
    with pytest.raises(NoResponders, match=r"billing\.charge"):
        await shop.arequest("billing.charge", {"cents": 990}, timeout="1h")


async def test_a_request_can_wait_for_a_worker(bus: Relevo) -> None:
    # Given a service whose worker is not up yet
    billing = bus.service("billing")

    @billing.action("charge")
    async def charge(cents: int) -> int:
        return cents

    # If I request it with wait=True, I expect the answer once a worker runs
    asked = asyncio.create_task(bus.service("shop").arequest("billing.charge", {"cents": 990}, wait=True))
    await aeventually(lambda: bus.queue(billing.queue).stats().ready)
    async with answering(bus):
        assert await asked == 990


async def test_an_error_of_the_action_is_raised_at_the_caller(bus: Relevo) -> None:
    # Given an action that fails
    billing = bus.service("billing")

    @billing.action("charge", give_up_on=[ValueError])
    async def charge(cents: int) -> None:
        raise ValueError("the card has expired")

    async with answering(bus):
        # If I request it, I expect its error, and whether a retry may help
        with pytest.raises(RemoteError, match="the card has expired") as failed:
            await bus.service("shop").arequest("billing.charge", {"cents": 990})
        assert (failed.value.type, failed.value.retryable) == ("ValueError", False)

        # and the same for arguments that do not fit
        with pytest.raises(RemoteError, match="cents") as refused:
            await bus.service("shop").arequest("billing.charge", {"cents": "a lot"})
        assert (refused.value.reason, refused.value.retryable) == ("bad_arguments", False)


async def test_a_request_that_times_out_stops_the_action(bus: Relevo) -> None:
    # Given an action that never ends
    started, stopped = asyncio.Event(), asyncio.Event()
    billing = bus.service("billing")

    @billing.action("charge")
    async def charge() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    # If I request it with a short timeout, I expect an error
    async def times_out() -> bool:
        with pytest.raises(RequestTimeout, match=r"no answer within 0\.2 s"):
            await bus.service("shop").arequest("billing.charge", timeout=0.2)
        return started.is_set()  # on a busy machine the time may be up before the action begins

    # and the action to be stopped
    async with answering(bus):
        await aeventually(times_out)
        await asyncio.wait_for(stopped.wait(), PATIENCE)


async def test_a_request_inside_a_request_inherits_its_tenant_and_operation(bus: Relevo) -> None:
    # Given an action that sends a request of its own
    shop, billing, ledger = bus.service("shop"), bus.service("billing"), bus.service("ledger")

    @ledger.action("book")
    async def book() -> dict[str, str]:
        message = current_job().message
        assert message is not None
        return {"tenant": message.tenant, "operation": message.correlation_id, "from": message.source}

    @billing.action("charge")
    async def charge() -> dict[str, str]:
        answer: dict[str, str] = await billing.arequest("ledger.book", timeout=PATIENCE)
        return answer

    # If I request it, I expect the inner request to have the tenant and the operation of the outer one
    async with answering(bus):
        answer = await shop.arequest("billing.charge", tenant="acme", correlation_id="order-7", timeout=PATIENCE)
    assert answer == {"tenant": "acme", "operation": "order-7", "from": "billing"}


async def test_the_same_idempotency_key_is_the_same_request(bus: Relevo) -> None:
    # Given an action that must not run twice
    charged = []
    billing = bus.service("billing")

    @billing.action("charge")
    async def charge(cents: int) -> int:
        charged.append(cents)
        return len(charged)

    # If I request it several times with one key, I expect one run, and its answer each time
    shop = bus.service("shop")
    async with answering(bus):
        asked = [shop.arequest("billing.charge", {"cents": 990}, idempotency_key="order-7") for _ in range(5)]
        assert await asyncio.gather(*asked) == [1] * 5
        assert await shop.arequest("billing.charge", {"cents": 990}, idempotency_key="order-7") == 1
    assert charged == [990]
