"""Which queues belong to an app: its own, and those of services that it serves. Those of others are left alone."""

from __future__ import annotations

import time

import pytest

from relevo import Relevo, metrics
from relevo.engine.handle import Job
from relevo.errors import UnknownJob
from relevo.upkeep.lists import AT_ONCE, tidying
from tests.conftest import AppFactory
from tests.eventually import aeventually
from tests.servers import Server
from tests.system.shell import relevo
from tests.working import drain, drained, working

MONTH_MS = 30 * 86_400_000
PAY, SOLD = "invoices:actions", "invoices:notifications:shop.sold"


def billing(bus_factory: AppFactory, name: str = "billing") -> Relevo:
    """An app whose service fails at whatever it is asked for."""
    app = bus_factory(name)
    svc = app.service("invoices")

    @svc.action("pay", retries=0)
    async def pay(n: int) -> None:
        raise ValueError("no money")

    return app


def tidied(app: Relevo) -> list[str]:
    """The names that a tidying of the lists removes."""
    return [one.name for one in app.engine.run(tidying(app.engine)).purged]


def asked(app: Relevo) -> Job[None]:
    """A message to that service."""
    return app.service("shop").send("invoices.pay", {"n": 1})


@pytest.fixture
def other(bus_factory: AppFactory) -> Relevo:
    """An app that serves the bus, with a dead letter."""
    app = billing(bus_factory)
    asked(app)
    drained(app)
    return app


@pytest.fixture
def shop(bus_factory: AppFactory, other: Relevo) -> Relevo:
    """An app on the same bus that serves nothing there, with a dead letter of its own."""
    app = bus_factory("shop")

    @app.task(name="charge", retries=0)
    def charge() -> None:
        raise ValueError("no money")

    charge.enqueue()
    drained(app)
    return app


def test_queues_pauses_and_metrics_are_those_of_the_apps_own_services(shop: Relevo, other: Relevo) -> None:
    assert shop.queues() == ["default"] and PAY in other.queues()
    assert PAY.encode() not in metrics.exposition(shop)
    assert f'queue="{PAY}"'.encode() in metrics.exposition(other)
    other.queue(PAY).pause(tenant="acme")
    assert ([one.queue for one in other.pauses()], shop.pauses()) == ([PAY], [])
    assert shop.pause(tenant="acme") == shop.resume(tenant="acme") == ["default"]
    assert other.queue(PAY).resume(tenant="acme")


def test_operations_on_all_dead_letters_leave_those_of_other_apps(server: Server, shop: Relevo, other: Relevo) -> None:
    assert [one.queue for one in shop.dead.list()] == ["default"]
    assert sum(one.count for one in shop.dead.error_groups()) == 1
    assert shop.dead.retry(all=True) == 1
    drained(shop)
    assert shop.dead.discard(all=True) == 1
    assert shop.dead.restore(all=True) == 1
    assert shop.dead.replay(all=True).total == 1
    drained(shop)
    assert other.dead.discard(all=True) == 1
    assert shop.dead.restore(all=True) == 0
    assert other.dead.restore(all=True) == 1
    words = ("dead", "discard", "--all", "--yes", "--name", "shop")
    seen = relevo(*words, url=server.url, RELEVO_PREFIX=shop.settings.prefix)
    assert (seen.code, shop.dead.list()) == (0, [])
    assert [one.queue for one in other.dead.list()] == [PAY]


def test_queue_of_another_app_is_reached_by_name(server: Server, shop: Relevo, other: Relevo) -> None:
    assert [one.queue for one in shop.dead.list(queue=PAY)] == [PAY]
    for words in ("dead list --queue", "purge --queue", "pause", "resume", "limits"):
        seen = relevo(*words.split(), PAY, "--name", "shop", url=server.url, RELEVO_PREFIX=shop.settings.prefix)
        assert (seen.code, seen.err) == (0, ""), words
    assert shop.dead.discard(all=True, queue=PAY) == 1
    assert other.dead.list() == []


def test_jobs_and_dead_letters_of_another_app_are_reached_by_id(shop: Relevo, other: Relevo) -> None:
    ids = [one.id for one in (*shop.dead.list(), *other.dead.list())]
    assert shop.job(ids[1]).queue == PAY
    with pytest.raises(UnknownJob, match="on any of"):
        shop.job(shop.engine.new_id())
    assert shop.dead.discard(ids=ids) == 2
    assert shop.dead.restore(ids=ids) == 2
    assert shop.dead.retry(ids=ids) == 2
    drained(other)
    assert [one.id for one in other.dead.list()] == ids[1:]
    drained(shop)


def test_services_of_code_are_the_apps_own_before_any_worker_ran(bus_factory: AppFactory) -> None:
    app = billing(bus_factory)
    asked(bus_factory("shop"))
    assert app.queues() == [PAY]
    assert [one.name for one in app.health().queues] == [PAY]


def test_queues_served_by_workers_are_known_by_the_apps_name_alone(bus_factory: AppFactory, other: Relevo) -> None:
    """A monitor has neither the code nor a worker that lives."""
    monitor = bus_factory("billing")
    assert [one.queue for one in monitor.dead.list()] == [PAY]
    assert PAY in [one.name for one in monitor.health().queues]


async def test_queues_of_a_broadcast_are_listed_by_the_name_that_they_share(
    server: Server, bus_factory: AppFactory
) -> None:
    """Each process has one, and those of former processes are not listed."""
    app, monitor = bus_factory("billing"), bus_factory("billing")

    @app.service("invoices").on("shop.sold", broadcast=True)
    async def sold() -> None: ...

    async def there() -> list[str]:
        return [name for name in await monitor.aqueues() if ":notifications:" in name]

    async with working(app) as worker:
        await aeventually(there, what="its name is on the lists")
        assert await there() == [f"invoices:{worker.id}:notifications:shop.sold"]
    on_list = server.command("ZRANGE", monitor.engine.keys.queues, 0, -1)
    assert sorted(on_list) == [b"default", SOLD.encode()]
    await monitor.aclose()


# names of queues without recent use


def unused(server: Server, key: bytes, *names: str) -> None:
    """Make their last use more than a month old."""
    for name in names:
        server.command("ZADD", key, "XX", int(time.time() * 1000) - MONTH_MS - 60_000, name)


def tasks(app: Relevo) -> Relevo:
    """The same app, with a task."""

    @app.task(name="greet", retries=0)
    async def greet() -> None: ...

    return app


def test_a_queue_leaves_the_list_a_month_after_its_last_use_when_nothing_is_left_of_it(
    server: Server, app: Relevo
) -> None:
    greet = tasks(app).tasks["greet"]
    names = ["tenant-1", "tenant-2", "kept", "waiting", "limited", "used"]
    for name in names:
        greet.using(queue=name, result_ttl="1h" if name == "kept" else 0).enqueue()
    drained(app, queues=[name for name in names if name != "waiting"])
    app.queue("limited").limit(concurrency=1)
    unused(server, app.engine.keys.queues, *names[:-1])
    assert set(app.queues()) >= set(names)
    assert sorted(tidied(app)) == ["tenant-1", "tenant-2"]
    assert app.queues() == ["kept", "limited", "used", "waiting"]
    assert tidied(app) == [], "what stays is not looked at each time"
    assert server.command("ZCOUNT", app.engine.keys.queues, "-inf", int(time.time() * 1000) - MONTH_MS) == 0
    app.queue("limited").unlimit()
    app.queue("waiting").clear()


def test_a_pool_leaves_the_list_when_it_has_no_entities(server: Server, app: Relevo) -> None:
    app.pool("empty").add("vm-1")
    app.pool("empty").remove("vm-1")
    app.pool("full").add("vm-1")
    unused(server, app.engine.keys.pools, "empty", "full")
    assert tidied(app) == ["empty"]
    assert app.pools() == ["full"]
    app.pool("full").remove("vm-1")


def test_malformed_names_are_removed_from_the_list(server: Server, app: Relevo) -> None:
    tasks(app).tasks["greet"].enqueue()
    drained(app)
    for name in ("a:responses", b"\xff"):
        server.command("ZADD", app.engine.keys.queues, 1, name)
    assert len(tidied(app)) == 2
    assert server.command("ZRANGE", app.engine.keys.queues, 0, -1) == [b"default"]


def test_many_names_leave_the_list_some_at_a_time(server: Server, app: Relevo) -> None:
    tasks(app).tasks["greet"].enqueue()
    drained(app)
    names = [f"tenant-{n}" for n in range(AT_ONCE + 20)]
    server.command("ZADD", app.engine.keys.queues, *(word for name in names for word in (1, name)))
    assert len(tidied(app)) == AT_ONCE
    assert len(tidied(app)) == 20
    assert app.queues() == ["default"]


async def test_workers_take_unused_names_off_the_list(server: Server, app: Relevo) -> None:
    greet = tasks(app).tasks["greet"]
    await greet.using(queue="tenant-1", result_ttl=0).aenqueue()
    await drain(app, queues=["tenant-1"])
    unused(server, app.engine.keys.queues, "tenant-1")

    async def is_gone() -> bool:
        return await app.aqueues() == ["default"]

    async with working(app):
        await aeventually(is_gone, what="only what is used is left")
