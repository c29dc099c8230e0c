"""The queue manager of nooble4, as its callers know it."""

from __future__ import annotations

import asyncio

import pytest

from relevo import Relevo
from relevo.compat import DomainAction, DomainQueueManager, clean_task_queues, configure, current
from relevo.errors import OptionError
from tests.working import drain


@pytest.fixture
def manager(bus: Relevo) -> DomainQueueManager:
    return DomainQueueManager(bus)


def action(n: int, *, tier: str = "", tenant: str = "acme") -> DomainAction:
    return DomainAction(
        action_type="generate", task_id=f"task_{n}", data={"n": n}, tenant_id=tenant, tenant_tier=tier, session_id="s1"
    )


async def test_action_goes_to_the_queue_of_its_domain_and_is_taken_once_as_it_was_put(
    bus: Relevo, manager: DomainQueueManager
) -> None:
    named = await manager.enqueue_action("embedding", action(7, tier="enterprise"))
    assert named == f"{bus.settings.prefix}:test:embedding:actions" == manager.queue_name("embedding")
    await manager.enqueue_action("embedding", action(8, tier="enterprise"))
    assert (await bus.queue("embedding:actions").astats()).ready == 2
    taken = await manager.dequeue_action("embedding", "enterprise")
    assert taken is not None
    assert taken.pop("action_id")
    assert taken == {
        "action_type": "embedding.generate", "data": {"n": 7}, "task_id": "task_7", "tenant_id": "acme",
        "tenant_tier": "enterprise", "session_id": "s1", "correlation_id": "task_7",
    }  # fmt: skip
    assert (await manager.dequeue_action("embedding") or {})["data"] == {"n": 8}
    assert await manager.dequeue_action("embedding", "enterprise") is None


async def test_the_tier_is_that_of_the_tenant_unless_another_is_given(bus: Relevo, manager: DomainQueueManager) -> None:
    """Each is counted by its tier."""
    await manager.enqueue_action("embedding", action(1, tier="professional"))
    await manager.enqueue_action("embedding", action(2, tier="professional"), "enterprise")
    await manager.enqueue_action("embedding", action(3))
    tiers = [(await manager.dequeue_action("embedding") or {})["tenant_tier"] for _ in range(3)]
    assert sorted(tiers) == ["", "enterprise", "professional"]
    totals = (await bus.queue("embedding:actions").astats()).totals
    assert (totals["tier:professional"], totals["tier:enterprise"], totals["enqueued"]) == (1, 1, 3)
    with pytest.raises(OptionError, match="did you mean 'enterprise'"):
        await manager.enqueue_action("embedding", action(4, tier="enterprize"))


async def test_action_of_another_task_or_tier_is_neither_given_nor_removed(
    bus: Relevo, manager: DomainQueueManager
) -> None:
    for n, tier in enumerate(["enterprise", "professional", "enterprise", ""]):
        await manager.enqueue_action("embedding", action(n, tier=tier))
    assert await manager.dequeue_action("embedding", "enterprise", "task_1") is None
    assert await manager.dequeue_action("embedding", "enterprise", "task_9") is None
    assert await manager.dequeue_action("embedding", "advance") is None
    assert (await bus.queue("embedding:actions").astats()).ready == 4
    taken = [
        await manager.dequeue_action("embedding", "professional", "task_1"),
        await manager.dequeue_action("embedding", task_id="task_3"),
        await manager.dequeue_action("embedding", "enterprise"),
        await manager.dequeue_action("embedding", "enterprise", "task_2"),
    ]
    assert [one and one["task_id"] for one in taken] == ["task_1", "task_3", "task_0", "task_2"]
    assert (await bus.queue("embedding:actions").astats()).living == 0
    assert await manager.dequeue_action("embedding", "enterprise", "task_2") is None


async def test_action_of_a_task_is_found_behind_thousands_of_others_and_by_one_consumer_only(
    bus: Relevo, manager: DomainQueueManager
) -> None:
    for n in range(250):
        await manager.enqueue_action("embedding", action(n, tier="free"))
    await manager.enqueue_action("embedding", action(250, tier="enterprise"))
    taken = await asyncio.gather(*(manager.dequeue_action("embedding", "enterprise") for _ in range(8)))
    assert [one["task_id"] for one in taken if one] == ["task_250"]
    taken = await asyncio.gather(*(manager.dequeue_action("embedding", task_id="task_249") for _ in range(8)))
    assert [one["task_id"] for one in taken if one] == ["task_249"]
    assert (await bus.queue("embedding:actions").astats()).ready == 249
    await bus.queue("embedding:actions").aclear()


async def test_action_whose_data_stands_beside_its_body_is_given_whole(
    bus: Relevo, manager: DomainQueueManager
) -> None:
    text = "x" * 300_000
    await manager.enqueue_action("embedding", DomainAction(action_type="generate", task_id="t", data={"text": text}))
    taken = await manager.dequeue_action("embedding", task_id="t")
    assert taken is not None
    assert taken["data"] == {"text": text}


async def test_cleanup_removes_only_what_is_not_in_use(bus: Relevo, manager: DomainQueueManager) -> None:
    """0 when there is nothing."""

    @bus.service("embedding").action("generate", result_ttl="5m")
    async def generate(n: int) -> int:
        return n * 2

    assert await manager.clean_task_queues("task_7") == 0
    await manager.enqueue_action("embedding", action(7))
    assert await manager.clean_task_queues("task_7") == 0
    assert (await bus.queue("embedding:actions").astats()).ready == 1
    await drain(bus)
    assert len(await bus.conversations.alist("task_7")) == 1
    assert await manager.clean_task_queues("task_7") == 1
    assert await bus.conversations.alist("task_7") == []
    assert await manager.clean_task_queues("task_7") == 0


def test_the_function_uses_the_app_that_was_configured(bus: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "_current", current._Current())
    configure(bus)
    manager = DomainQueueManager()

    async def put_and_take() -> None:
        await manager.enqueue_action("query", action(1))
        await manager.dequeue_action("query")
        await bus.aclose()

    asyncio.run(put_and_take())
    assert clean_task_queues("task_1") == 1
    assert clean_task_queues("task_1") == 0


def test_former_names_of_queues_are_still_built() -> None:
    assert DomainQueueManager.legacy_queue_name("query", "search", "advance", "24680") == "query:search:advance:24680"
