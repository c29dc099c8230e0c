"""Tiers and tenants share the workers, and none starves."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from relevo import Relevo, current_job
from relevo.engine.lists import known_queues
from relevo.engine.message import Message, Reply
from relevo.errors import OptionError
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.servers import Server
from tests.system.timed import MINUTE, Times
from tests.working import drain, working

QUEUE = "render:actions"


@pytest.fixture
def order(bus: Relevo) -> list[str]:
    """The tenants whose messages were handled, in order."""
    tenants: list[str] = []
    serve(bus, tenants)
    return tenants


def serve(app: Relevo, tenants: list[str], **options: Any) -> None:
    @app.service("render").action("page", **options)
    async def page() -> None:
        tenants.append(current_job().tenant)


async def flood(app: Relevo, tenant: str, count: int, **about: Any) -> None:
    shop = app.service("shop")
    await asyncio.gather(*(shop.asend("render.page", tenant=tenant, **about) for _ in range(count)))


# --- shares


async def test_every_tier_gets_its_share_in_any_order_of_arrival(bus: Relevo, order: list[str]) -> None:
    tiers = {"free": 1, "advance": 2, "professional": 4, "enterprise": 8}
    for tier in tiers:
        await flood(bus, tier, 80, tier=tier)
    await drain(bus, concurrency=1)
    counts = Counter(order[:135])
    assert {tier: round(counts[tier] / 9) for tier in tiers} == tiers, counts
    assert len(order) == 320


async def test_priority_goes_before_tiers(bus: Relevo, order: list[str]) -> None:
    await flood(bus, "big", 20, tier="enterprise")
    await flood(bus, "small", 3, tier="free", priority=50)
    await drain(bus, concurrency=1)
    assert order[:3] == ["small"] * 3


async def test_messages_that_are_retried_or_delayed_keep_their_share(server: Server, bus_factory: AppFactory) -> None:
    times, order = Times(server, bus_factory), list[str]()
    app = times.app

    @app.service("render").action("page", retries=1, backoff="5m")
    async def page(fails: bool) -> None:
        if fails and current_job().attempt == 1:
            raise ConnectionError
        order.append(current_job().tenant)

    shop = app.service("shop")
    for about in ({"data": {"fails": True}, "delay": 0}, {"data": {"fails": False}, "delay": "1m"}):
        for tenant, tier in (("small", "free"), ("big", "enterprise")):
            for _ in range(45):
                await shop.asend("render.page", about["data"], tenant=tenant, tier=tier, delay=about["delay"])
        await drain(app)
        assert order == []
        times.move(6 * MINUTE)
        await drain(app, concurrency=1)
        counts = Counter(order[:27])
        assert abs(counts["big"] - 24) <= 2, counts
        assert len(order) == 90
        order.clear()


async def test_callbacks_have_the_share_of_their_messages(bus: Relevo) -> None:
    order: list[str] = []
    serve(bus, [])

    @bus.service("shop").action("rendered")
    async def rendered(reply: Reply[None]) -> None:
        order.append(current_job().tenant)

    await flood(bus, "small", 45, tier="free", on_reply="rendered")
    await flood(bus, "big", 45, tier="enterprise", on_reply="rendered")
    await drain(bus, queues=[QUEUE])
    await drain(bus, concurrency=1)
    assert abs(Counter(order[:27])["big"] - 24) <= 2
    assert len(order) == 90


# --- headers and settings


def test_an_unknown_tier_is_refused_with_the_nearest_and_nothing_is_stored(bus: Relevo) -> None:
    shop = bus.service("shop")
    with pytest.raises(OptionError, match="did you mean 'enterprise'"):
        shop.send("render.page", tenant="a", tier="entreprise", on_reply="rendered")
    with pytest.raises(OptionError, match="free, advance, professional, enterprise"):
        shop.send("render.page", tenant="a", tier="platinum")
    with pytest.raises(OptionError, match="tier"):
        shop.request("render.page", tenant="a", tier="Free")
    assert bus.engine.run(known_queues(bus.engine)) == []


async def test_tiers_of_the_settings_are_the_ones_that_count(bus_factory: AppFactory) -> None:
    app, order = bus_factory(tiers={"bronze": 1, "gold": 4}), list[str]()
    serve(app, order)
    await flood(app, "small", 50, tier="bronze")
    await flood(app, "big", 50, tier="gold")
    await drain(app, concurrency=1)
    assert abs(Counter(order[:50])["big"] - 40) <= 2
    with pytest.raises(OptionError, match="bronze, gold"):
        await app.service("shop").asend("render.page", tier="free")


# --- nothing is stranded


async def test_a_tier_that_changes_while_messages_wait_strands_none(bus_factory: AppFactory) -> None:
    """The tenant is upgraded, then downgraded, then the tiers themselves change."""
    app, order = bus_factory(), list[str]()
    serve(app, order)
    for tier in ("free", "enterprise", "professional", "free"):
        await flood(app, "acme", 5, tier=tier)
    await flood(app, "acme", 5)
    other = bus_factory(tiers={"only": 3})
    await flood(other, "acme", 5, tier="only")
    served = list[str]()
    serve(other, served)
    await drain(other)
    assert (len(served), (await app.queue(QUEUE).astats()).living) == (30, 0)


async def test_a_tier_that_is_not_known_here_any_more_is_no_reason_to_fail(bus_factory: AppFactory) -> None:
    old, new = bus_factory(tiers={"gold": 4}), bus_factory()
    seen: list[Message | None] = []
    render = new.service("render")

    @render.action("page", retries=0)
    async def page() -> None:
        await render.asend("render.ink")

    @render.action("ink")
    async def ink() -> None:
        seen.append(current_job().message)

    await old.service("shop").asend("render.page", tenant="acme", tier="gold")
    await drain(new)
    await drain(new)
    assert await new.dead.alist() == []
    assert [message and message.tenant for message in seen] == ["acme"]


@pytest.mark.parametrize("tenant", ["a b", "ñandú", "a:b", "{x}", "%", '"', "\\", "x" * 200])
async def test_a_tenant_may_have_any_name(bus: Relevo, order: list[str], tenant: str) -> None:
    await flood(bus, tenant, 2, tier="free", delay=0.01)
    await flood(bus, tenant, 2, tier="free")
    async with working(bus):
        await aeventually(lambda: len(order) == 4, what="all were handled")
    assert order == [tenant] * 4
