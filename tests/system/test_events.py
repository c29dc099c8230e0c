"""Events from service to service: which services get them, when and how often, and what is left behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from relevo import Relevo, State, current_job
from relevo.bus.bus import Bus
from relevo.bus.event_store import relay_events
from relevo.bus.events import delivering, publishing
from relevo.bus.headers import Sending
from relevo.bus.history_store import NO_LOG
from relevo.bus.service import Service
from relevo.bus.subscription_store import Subscription, subscribe, subscriptions, unsubscribe
from relevo.engine.message import Message
from relevo.errors import ConfigurationError, OptionError, PayloadError, PayloadTooLarge, TargetError
from relevo.store.plan import Call
from relevo.testing.leaks import leaks
from relevo.upkeep.report import UpkeepReport
from tests.conftest import AppFactory
from tests.eventually import aeventually, eventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import drain, working

DAY = 24 * HOUR
QUEUE = "mail:notifications:shop.sold"
KEYS = ("k1:the-first-secret-of-all",)


class Sold(msgspec.Struct):
    n: int


@pytest.fixture
def times(server: Server, bus_factory: AppFactory) -> Times:
    """Apps on a bus of this test's own, whose time it can move."""
    return Times(server, bus_factory)


# --- doing


def hearing(app: Relevo, service: str, pattern: str = "shop.sold", **options: Any) -> list[Any]:
    """A service that notes the numbers of the events it gets."""
    got: list[Any] = []

    @app.service(service).on(pattern, **options)
    async def note(n: int) -> None:
        got.append(n)

    return got


async def known(app: Relevo) -> list[Subscription]:
    return await app.engine.arun(subscriptions(app.engine.bus_keys))


async def subscribed(app: Relevo, count: int = 1) -> None:
    """Until the bus knows of so many subscriptions."""

    async def are_there() -> bool:
        return len(await known(app)) >= count

    await aeventually(are_there, what=f"{count} subscriptions")


@asynccontextmanager
async def all_working(*apps: Relevo, subscriptions: int, **options: Any) -> AsyncIterator[None]:
    """A worker for each of these apps, until the bus knows of so many subscriptions."""
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(working(app, **options))
        await subscribed(apps[0], subscriptions)
        yield


async def registered(app: Relevo, count: int = 1) -> None:
    """Register the subscriptions of an app, without a worker that handles events afterwards."""
    async with working(app):
        await subscribed(app, count)


async def quiet(app: Relevo, *queues: str) -> None:
    """Until nothing lives in these queues."""

    async def is_so() -> bool:
        return not any([(await app.queue(queue).astats()).living for queue in queues])

    await aeventually(is_so, what=f"nothing lives in {queues}")


async def sweep_now(app: Relevo) -> UpkeepReport:
    """Sweep, also beside a worker that sweeps, or that was stopped in the middle of its sweep a moment ago."""

    async def swept() -> UpkeepReport | None:
        await app.engine.arun(Call(["DEL", app.engine.bus_keys.key("leader")]))
        report = await app.asweep(dry_run=False)
        return None if report.skipped else report

    return await aeventually(swept, what="no worker sweeps")


def left_of(app: Relevo) -> list[str]:
    """What is on the bus without an end."""
    return leaks(app.engine.run, f"*{app.settings.prefix}*")


def ask(app: Relevo, *command: Any) -> Any:
    return app.engine.run(Call(list(command)))


# --- delivery


async def test_each_of_k_services_gets_each_event_once_whatever_the_number_of_its_workers(
    bus_factory: AppFactory,
) -> None:
    """K groups get K deliveries, within a group one member does."""
    got: Counter[tuple[str, int]] = Counter()
    by_worker: Counter[tuple[str, str]] = Counter()
    apps = []
    for name in ("search", "mail", "audit"):
        for _ in range(3):  # processes of one service, as far as the bus can tell
            app = bus_factory(name)

            @app.service(name).on("shop.sold")
            async def note(n: int, name: str = name) -> None:
                got[name, n] += 1
                by_worker[name, current_job().worker] += 1
                # One at a time in each worker, so the next event goes to another one.
                await aeventually(lambda: sum(service == name for service, _ in by_worker) > 1, what="another worker")

            apps.append(app)
    shop = bus_factory("shop").service("shop")
    async with all_working(*apps, subscriptions=3, concurrency=1):
        for n in range(30):
            assert await shop.apublish("sold", {"n": n}) == 3
        await aeventually(lambda: sum(got.values()) >= 90, what="all deliveries")
        await quiet(apps[0], *(f"{name}:notifications:shop.sold" for name in ("search", "mail", "audit")))
    assert got == {(name, n): 1 for name in ("search", "mail", "audit") for n in range(30)}
    await shop.engine.aclose()


async def test_a_broadcast_reaches_each_live_instance_once(bus_factory: AppFactory) -> None:
    apps = [bus_factory("cache") for _ in range(3)]
    got = [hearing(app, "cache", broadcast=True) for app in apps]
    sender = bus_factory("shop")
    shop = sender.service("shop")
    async with all_working(*apps[:2], subscriptions=2):
        async with working(apps[2]):
            await subscribed(apps[0], 3)
            assert await shop.apublish("sold", {"n": 1}) == 3
            await aeventually(lambda: got == [[1]] * 3, what="all three heard it")
        assert await shop.apublish("sold", {"n": 2}) == 2, "the third has stopped"
        await aeventually(lambda: got == [[1, 2], [1, 2], [1]], what="those that live heard it")
    assert await shop.apublish("sold", {"n": 3}) == 0
    assert await known(sender) == []
    await sender.aclose()


async def test_a_broadcast_reaches_a_killed_instance_no_longer_than_its_lease(times: Times) -> None:
    app = times.app
    got = hearing(app, "cache", broadcast=True)
    shop = app.service("shop")
    killed = Subscription(
        pattern="shop.sold",
        service="cache",
        queue="cache:0000000000000000000w:notifications:shop.sold",
        lease_ms=30_000,
    )
    await app.engine.arun(subscribe(app.engine.bus_keys, [killed]))
    assert await shop.apublish("sold", {"n": 1}) == 1
    times.move(31_000)
    assert await shop.apublish("sold", {"n": 2}) == 0
    times.move(6_000)
    async with working(app):
        await quiet(app, killed.queue)
        await subscribed(app)
        assert await shop.apublish("sold", {"n": 3}) == 1
        await aeventually(lambda: got == [3], what="only what is its own")
    assert left_of(app) == []


async def test_several_handlers_of_a_service_each_get_what_their_own_pattern_stands_for(bus: Relevo) -> None:
    exact, wide = hearing(bus, "mail"), hearing(bus, "mail", "shop.*")
    async with all_working(bus, subscriptions=2):
        assert await bus.service("shop").apublish("sold", {"n": 1}) == 2
        await aeventually(lambda: (exact, wide) == ([1], [1]), what="both heard it")


def test_publishing_from_plain_code_reaches_plain_and_typed_handlers(bus: Relevo) -> None:
    got: list[Any] = []

    @bus.service("mail").on("shop.sold")
    def plainly(n: int) -> None:
        got.append(n)

    @bus.service("audit").on("shop.*")
    def whole(sold: Sold) -> None:
        got.append(sold)

    with working(bus):
        eventually(lambda: len(bus.engine.run(subscriptions(bus.engine.bus_keys))) == 2)
        assert bus.service("shop").publish("sold", Sold(7)) == bus.service("shop").publish("sold", {"n": 8}) == 2
        eventually(lambda: len(got) == 4, what="all deliveries")
    assert Counter(map(repr, got)) == Counter(map(repr, [7, 8, Sold(7), Sold(8)]))


async def test_environments_and_prefixes_are_separate(bus_factory: AppFactory) -> None:
    ours, theirs = bus_factory("mail"), bus_factory("mail", env="staging")
    got, others = hearing(ours, "mail"), hearing(theirs, "mail")
    async with all_working(ours, subscriptions=1), all_working(theirs, subscriptions=1):
        assert await theirs.service("shop").apublish("sold", {"n": 1}) == 1
        await aeventually(lambda: others == [1])
    assert got == []


# --- while no worker runs


async def test_a_service_that_was_away_gets_what_it_missed_in_order(bus: Relevo) -> None:
    got = hearing(bus, "mail")
    shop = bus.service("shop")
    await registered(bus)
    for n in range(30):
        assert await shop.apublish("sold", {"n": n}) == 1
    assert got == []
    worker = await drain(bus, concurrency=1)
    assert (worker.done, got) == (30, list(range(30)))


async def test_what_was_missed_longer_ago_than_the_retention_is_not_handled(times: Times) -> None:
    app = times.app
    got, all_of_it = hearing(app, "mail", retention="1h"), hearing(app, "audit", retention="3d")
    shop = app.service("shop")
    await registered(app, 2)
    await shop.apublish("sold", {"n": 1})
    times.move(59 * MINUTE)
    await shop.apublish("sold", {"n": 2})
    times.move(2 * MINUTE)
    await shop.apublish("sold", {"n": 3})
    await drain(app)
    assert (sorted(got), sorted(all_of_it)) == ([2, 3], [1, 2, 3])
    stats = await app.queue(QUEUE).astats()
    assert (stats.living, stats.expired, stats.totals["expired"]) == (0, 1, 1), "what is lost is counted"


# --- slow subscribers


async def calls_to_publish(app: Relevo, n: int) -> int:
    """Publish, and count the calls that it takes."""

    async def carried_out(plan: Any) -> tuple[Any, int]:
        calls, answer = 0, None
        while True:
            try:
                call = plan.send(answer)
            except StopIteration as over:
                return over.value, calls
            calls += 1
            answer = await app.engine.arun(call)

    event, written = await carried_out(publishing(app.engine, "shop", "sold", {"n": n}, Sending(), NO_LOG))
    return written + (await carried_out(delivering(app.engine, event)))[1]


async def test_a_slow_subscriber_delays_neither_the_publisher_nor_other_subscribers(bus_factory: AppFactory) -> None:
    """Publishing takes as many calls with hundreds of events waiting as with none."""
    slow, quick = bus_factory("slow"), bus_factory("quick")
    hold = asyncio.Event()

    @slow.service("slow").on("shop.sold", max_backlog=300)
    async def wait(n: int) -> None:
        await hold.wait()

    got = hearing(quick, "quick")
    async with all_working(slow, quick, subscriptions=2, concurrency=20):
        first = await calls_to_publish(quick, 0)
        shop = quick.service("shop")
        for start in range(1, 431, 43):
            await asyncio.gather(*(shop.apublish("sold", {"n": n}) for n in range(start, start + 43)))
        await aeventually(lambda: len(got) == 431, what="the quick service got them all")
        queue = slow.queue("slow:notifications:shop.sold")
        stats = await queue.astats()
        assert stats.ready == 300, "no more wait than its backlog allows"
        assert stats.totals["overflow"] == 431 - 300 - stats.running
        assert await calls_to_publish(quick, 431) == first == 4  # the outbox message, two queues, and its receipt
        hold.set()
        await quiet(slow, queue.name)


@pytest.mark.parametrize(("discard", "kept"), [("old", [7, 8, 9]), ("new", [0, 1, 2])])
async def test_a_full_backlog_loses_the_old_or_the_new_as_its_owner_chose(
    bus: Relevo, discard: str, kept: list[int]
) -> None:
    got, all_of_it = hearing(bus, "mail", max_backlog=3, discard=discard), hearing(bus, "audit")
    await registered(bus, 2)
    for n in range(10):
        assert await bus.service("shop").apublish("sold", {"n": n}) == 2
    stats = await bus.queue(QUEUE).astats()
    assert (stats.ready, stats.totals["overflow"]) == (3, 7), "what was lost is counted"
    await drain(bus, concurrency=1)
    assert (got, all_of_it) == (kept, list(range(10)))


# --- failures


async def test_each_subscription_has_retries_and_dead_letters_of_its_own(bus: Relevo) -> None:
    tried: Counter[str] = Counter()
    fails = True

    @bus.service("mail").on("shop.sold", retries=2, backoff=0)
    async def fail(n: int) -> None:
        tried["mail"] += 1
        if fails:
            raise ConnectionError("the post office is closed")

    @bus.service("audit").on("shop.sold", retries=2, backoff=0)
    async def fail_once(n: int) -> None:
        tried["audit"] += 1
        if tried["audit"] == 1:
            raise ValueError("not yet")

    got = hearing(bus, "search")
    async with all_working(bus, subscriptions=3):
        assert await bus.service("shop").apublish("sold", {"n": 1}) == 3

        async def is_dead() -> bool:
            return len(await bus.dead.alist()) == 1 and tried["audit"] == 2 and got == [1]

        await aeventually(is_dead, what="one dead letter")
    (dead,) = await bus.dead.alist()
    assert (dead.queue, dead.reason) == (QUEUE, "retries_exhausted")
    assert tried == {"mail": 3, "audit": 2}
    fails = False
    assert await bus.dead.aretry([dead.id]) == 1
    await drain(bus)
    assert (tried, got) == ({"mail": 4, "audit": 2}, [1]), "run again only for the subscription that failed"
    assert await bus.dead.alist() == []


async def test_data_of_the_wrong_type_is_dead_lettered_in_its_own_subscription(bus: Relevo) -> None:
    got: list[Any] = []
    numbers = hearing(bus, "mail")

    @bus.service("audit").on("shop.sold")
    async def anything(**data: Any) -> None:
        got.append(data)

    await registered(bus, 2)
    elsewhere = bus.queue("audit:notifications:shop.sold")
    await elsewhere.apause()
    await bus.service("shop").apublish("sold", {"n": "seven", "more": [1]})
    await drain(bus)
    (dead,) = await bus.dead.alist()
    assert (dead.queue, dead.reason) == (QUEUE, "bad_arguments")
    found = await asyncio.to_thread(bus.dead.show, dead.id)
    assert (found.state, found.queue) == (State.DEAD, QUEUE), "also while the event waits in another subscription"
    await elsewhere.aresume()
    await drain(bus)
    assert (got, numbers) == ([{"n": "seven", "more": [1]}], [])


# --- what an event says


def saying(app: Relevo, service: str, pattern: str) -> list[Message]:
    """A service that notes the messages it gets."""
    got: list[Message] = []

    @app.service(service).on(pattern)
    async def note() -> None:
        message = current_job().message
        assert message is not None
        got.append(message)

    return got


async def test_a_handler_sees_the_headers_of_an_event(bus: Relevo) -> None:
    got, other = saying(bus, "mail", "shop.sold"), saying(bus, "audit", "shop.>")
    async with all_working(bus, subscriptions=2):
        await bus.service("shop").apublish(
            "sold",
            tenant="acme",
            tier="enterprise",
            session="s1",
            conversation="chat 7",
            correlation_id="op-1",
            version="2",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        )
        await aeventually(lambda: got and other)
    (one,) = got
    assert (one.type, one.intent, one.source, one.attempt, one.reply_to) == ("shop.sold", "event", "shop", 1, "")
    assert (one.tenant, one.tier, one.session, one.version) == ("acme", "enterprise", "s1", "2")
    assert (one.conversation_id, one.correlation_id, one.causation_id) == ("chat 7", "op-1", "")
    assert one.traceparent == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert one.instance == bus.engine.part(Bus).instance or one.instance
    assert msgspec.structs.replace(other[0], deadline_ms=0) == msgspec.structs.replace(one, deadline_ms=0)


async def test_an_event_that_causes_itself_is_dead_lettered(bus: Relevo) -> None:
    shop = bus.service("shop")
    turns: list[int] = []

    @shop.on("shop.sold", retries=0)
    async def again(n: int) -> None:
        turns.append(n)
        await shop.apublish("sold", {"n": n + 1})

    async with all_working(bus, subscriptions=1):
        await shop.apublish("sold", {"n": 0})
        await aeventually(bus.dead.alist, what="the circle ends")
    assert turns == list(range(33))
    (dead,) = await bus.dead.alist()
    assert "BusError" in dead.error


async def test_a_plain_task_publishes_as_well(bus: Relevo) -> None:
    got = hearing(bus, "mail")
    shop = bus.service("shop")

    @bus.task(name="import")
    async def work(n: int) -> None:
        await shop.apublish("sold", {"n": n})

    @bus.task(name="import-plainly")
    def work_plainly(n: int) -> None:
        shop.publish("sold", {"n": n})

    async with all_working(bus, subscriptions=1):
        await work.aenqueue(1)
        await work_plainly.aenqueue(2)
        await aeventually(lambda: sorted(got) == [1, 2])


async def test_tenants_share_a_subscription_by_the_weight_of_their_tier(bus: Relevo) -> None:
    order: list[str] = []

    @bus.service("mail").on("shop.sold")
    async def note() -> None:
        order.append(current_job().tenant)

    await registered(bus)
    shop = bus.service("shop")
    for _ in range(8):
        await shop.apublish("sold", tenant="big", tier="free")
    for _ in range(2):
        await shop.apublish("sold", tenant="small", tier="enterprise")
    await drain(bus, concurrency=1)
    assert Counter(order) == {"big": 8, "small": 2}
    assert "small" in order[:2], "a long backlog does not delay a short one"


# --- hearing it again


def logged(app: Relevo, **options: Any) -> tuple[Service, list[int]]:
    """A shop whose events are kept, and what the mail heard of them."""
    return app.service("shop", keep_events="30d"), hearing(app, "mail", **options)


async def heard_after(app: Relevo, got: list[int]) -> list[int]:
    """What a worker makes of what waits."""
    got.clear()
    await drain(app, concurrency=1)
    return got


async def test_events_are_delivered_again_since_an_age_or_a_time(times: Times) -> None:
    app = times.app
    shop, got = logged(app)
    mail = app.service("mail")
    await registered(app)
    for n in range(4):
        await shop.apublish("sold", {"n": n}, tenant="acme", correlation_id=f"op-{n}")
        times.move(HOUR)
    now = datetime.fromtimestamp(times.now_ms() / 1000, UTC)
    assert await heard_after(app, got) == [0, 1, 2, 3]
    assert await mail.acatch_up("shop.sold", since="90m") == 1
    assert await heard_after(app, got) == [3]
    assert await mail.acatch_up("shop.sold", since=timedelta(hours=2, minutes=30)) == 2
    assert await heard_after(app, got) == [2, 3]
    assert await mail.acatch_up("shop.sold", since=now - timedelta(hours=3, minutes=30)) == 3
    assert await heard_after(app, got) == [1, 2, 3]
    assert await mail.acatch_up("shop.sold", since=now) == 0
    assert await mail.acatch_up("shop.sold", since=now + timedelta(days=1)) == 0
    for _ in range(2):
        assert await mail.acatch_up("shop.sold", since="20d") == 4, "it may be heard any number of times"
    assert await heard_after(app, got) == [0, 1, 2, 3, 0, 1, 2, 3]
    earlier: list[Any] = [datetime(1969, 12, 31, tzinfo=UTC), datetime.min.replace(tzinfo=UTC), "30000d"]
    assert [await mail.acatch_up("shop.sold", since=since) for since in earlier] == [4, 4, 4]


async def test_only_the_service_that_replays_gets_events_again_with_their_first_headers(bus: Relevo) -> None:
    shop = bus.service("shop", keep_events="1h")
    got, others = saying(bus, "mail", "shop.*"), saying(bus, "audit", "shop.*")
    await registered(bus, 2)
    await shop.apublish("sold", tenant="acme", conversation="chat", correlation_id="op", priority=7, tier="enterprise")
    await drain(bus)
    assert await bus.service("mail").acatch_up("shop.*", since="1h") == 1
    await drain(bus)
    assert len(others) == 1
    first, second = got
    assert first.id != second.id, "it is a message of its own: the first may still be known"
    assert msgspec.structs.replace(second, id=first.id, deadline_ms=first.deadline_ms) == first


async def test_a_later_service_can_replay_earlier_events(bus: Relevo) -> None:
    """The log is for services that did not exist when the event was published."""
    shop = bus.service("shop", keep_events="1h")
    for n in range(250):
        assert await shop.apublish("sold", {"n": n}) == 0
    got = hearing(bus, "mail")
    assert await bus.service("mail").acatch_up("shop.sold", since="1h") == 250
    assert await heard_after(bus, got) == list(range(250))


async def test_a_replay_reaches_back_as_far_as_the_log_and_not_only_the_retention(times: Times) -> None:
    shop, got = logged(times.app, retention="1h")
    await registered(times.app)
    await shop.apublish("sold", {"n": 1})
    await heard_after(times.app, got)
    times.move(2 * HOUR)
    assert await times.app.service("mail").acatch_up("shop.sold", since="1d") == 1
    assert await heard_after(times.app, got) == [1]


async def test_a_replay_into_a_full_backlog_counts_only_delivered_events(bus: Relevo) -> None:
    shop, got = logged(bus, max_backlog=3, discard="new")
    await registered(bus)
    for n in range(6):
        await shop.apublish("sold", {"n": n})
    assert await heard_after(bus, got) == [0, 1, 2]
    assert await bus.service("mail").acatch_up("shop.sold", since="1h") == 3
    assert await heard_after(bus, got) == [0, 1, 2]


async def test_a_malformed_entry_of_the_log_does_not_stop_catching_up(bus: Relevo) -> None:
    shop, got = logged(bus)
    await registered(bus)
    await shop.apublish("sold", {"n": 1})
    log = bus.engine.keys_of("shop:notifications").key("log")
    bus.engine.run(
        Call(
            [
                "XADD",
                log,
                "*",
                "id",
                bus.engine.new_id(),
                "topic",
                "shop.sold",
                "at",
                "9999999999999",
                "body",
                "{nonsense",
            ]
        )
    )
    await shop.apublish("sold", {"n": 2})
    await heard_after(bus, got)
    assert await bus.service("mail").acatch_up("shop.sold", since="1h") == 2
    assert await heard_after(bus, got) == [1, 2]


async def test_what_catching_up_makes_belongs_to_the_conversation_of_the_first_time(bus: Relevo) -> None:
    shop, _ = logged(bus)
    await registered(bus)
    await shop.apublish("sold", {"n": 1}, conversation="chat")
    await drain(bus)
    assert await bus.service("mail").acatch_up("shop.sold", since="1h") == 1
    assert [one.state for one in await bus.conversations.alist("chat")] == [State.READY]


def test_invalid_catching_up_is_refused(bus: Relevo) -> None:
    for known in ("shop.sold", "*.sold", ">"):
        hearing(bus, "mail", known)
    hearing(bus, "mail", "shop.closed", broadcast=True)
    refused: list[tuple[Any, Any, str]] = [
        ("shop.sold", datetime(2026, 1, 1), "no time zone"),
        ("shop.sold", "soon", "not a duration"),
        ("shop.sold", 0, "more than 0"),
        ("shop.closed", "1h", "broadcast"),
        ("*.sold", "1h", "names no service"),
        (">", "1h", "names no service"),
        ("shop.sould", "1h", "did you mean 'shop.sold'"),
        (None, "1h", "no subscription"),
    ]
    for pattern, since, message in refused:
        with pytest.raises(OptionError, match=message):
            bus.service("mail").catch_up(pattern, since=since)


# --- signed


async def test_signed_events_are_accepted_with_the_same_key(bus_factory: AppFactory) -> None:
    subscriber, plain = bus_factory("mail", signing_keys=KEYS), bus_factory("audit")
    got, unchecked = hearing(subscriber, "mail", retries=0), hearing(plain, "audit")
    await registered(subscriber)
    await registered(plain, 2)
    honest = bus_factory("shop", signing_keys=KEYS).service("shop")
    stranger = bus_factory("shop", signing_keys=("k1:another-secret-it-is",)).service("shop")
    for n, shop in enumerate((honest, stranger, plain.service("shop"))):
        assert await shop.apublish("sold", {"n": n}) == 2
    await drain(subscriber)
    await drain(plain)
    assert (got, sorted(unchecked)) == ([0], [0, 1, 2])
    dead = await subscriber.dead.alist(queue=QUEUE)
    assert [row.reason for row in dead] == ["bad_signature"] * 2
    for app in (honest.engine, stranger.engine):
        await app.aclose()


async def test_a_replay_does_not_sign_unsigned_events(bus_factory: AppFactory) -> None:
    app = bus_factory("mail", signing_keys=KEYS)
    shop, got = logged(app, retries=0)
    await registered(app)
    await shop.apublish("sold", {"n": 1})
    forger = bus_factory("forger").service("shop", keep_events="1h")
    await forger.apublish("sold", {"n": 666})
    assert await heard_after(app, got) == [1]
    await app.service("mail").acatch_up("shop.sold", since="1h")
    assert await heard_after(app, got) == [1]
    await forger.engine.aclose()


# --- abandoned subscriptions


def swept(app: Relevo, caplog: pytest.LogCaptureFixture, by: str) -> list[str]:
    """Sweep, and give the log lines about the subscriptions of `mail`."""
    caplog.clear()
    ask(app, "DEL", app.engine.bus_keys.key("leader"))
    with caplog.at_level(logging.INFO, "relevo.bus"):
        if by == "sweep":
            assert not app.sweep(dry_run=False).skipped
        else:
            # A worker sweeps when it starts, if it is its turn. What shows that it did is a process that died long ago.
            gone = Subscription(
                pattern="nothing",
                service="other",
                queue=f"other:{app.engine.new_id()}:notifications:nothing",
                lease_ms=1,
            )
            app.engine.run(subscribe(app.engine.bus_keys, [gone]))
            other = Relevo("other", **_same_bus(app))
            other.service("other").action("nothing")(lambda: None)
            ask(other, "DEL", other.engine.keys.turn("sweep"))
            with working(other):
                eventually(lambda: any(gone.queue in line for line in caplog.messages), what="a sweep")
            other.close()
    return [line for line in caplog.messages if line.startswith("subscription mail:")]


def _same_bus(app: Relevo) -> dict[str, Any]:
    settings = app.settings
    return {"url": settings.url, "env": settings.env, "prefix": settings.prefix, "_clock_key": app.engine._clock_key}


@pytest.mark.parametrize("by", ["sweep", "worker"])
def test_an_abandoned_subscription_is_warned_of_once_and_then_removed_with_its_backlog(
    times: Times, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    app = times.app
    hearing(app, "mail", inactive_after="2d")
    asyncio.run(registered(app))
    for n in range(3):
        app.service("shop").publish("sold", {"n": n})
    assert swept(app, caplog, by) == []
    times.move(25 * HOUR)
    (warning,) = swept(app, caplog, by)
    assert "mail:notifications:shop.sold: not served for 1d1h" in warning
    assert "it is removed with all that waits in it" in warning
    assert swept(app, caplog, by) == [], "once"
    times.move(24 * HOUR)
    (removed,) = swept(app, caplog, by)
    assert "removed" in removed
    assert app.service("shop").publish("sold", {"n": 4}) == 0
    times.move(6_000)  # what was under way has arrived
    swept(app, caplog, by)
    times.move(6_000)
    swept(app, caplog, "sweep")
    queue = app.queue(QUEUE)
    assert queue.stats().living == 0
    assert queue.name not in app.queues()
    assert left_of(app) == []


def test_a_service_that_returns_just_before_removal_gets_what_it_missed(times: Times) -> None:
    """A worker announces its subscriptions before it looks for abandoned ones."""
    app = times.app
    got = hearing(app, "mail", inactive_after="2d")
    asyncio.run(registered(app))
    app.service("shop").publish("sold", {"n": 1})
    times.move(3 * DAY)
    with working(app):
        eventually(lambda: got == [1])
    assert app.service("shop").publish("sold", {"n": 2}) == 1


async def test_a_subscription_with_a_live_worker_is_never_removed(times: Times) -> None:
    app = times.app
    hearing(app, "mail", inactive_after="60s")
    async with all_working(app, subscriptions=1):
        times.move(9_500)  # less than the time between two signs of life
        report = await sweep_now(app)
        assert (report.purged, report.held) == ((), ())
        assert len(await known(app)) == 1


# --- what is left behind


class Closing:
    """A subscription that ended, whose queue is being cleared while its service comes back."""

    def __init__(self, times: Times) -> None:
        self.app = times.app
        self.queue = self.app.engine.keys_of(QUEUE)
        hearing(self.app, "mail")
        (self.mine,) = [one.registered("") for one in self.app.engine.part(Bus).subscriptions.values()]
        self.app.engine.run(subscribe(self.app.engine.bus_keys, [self.mine]))
        self.app.service("shop").publish("sold", {"n": 0})
        self.app.engine.run(unsubscribe(self.app.engine.bus_keys, QUEUE))
        times.move(6_000)
        self._relay = relay_events(self.app.engine.bus_keys, self.app.engine.keys_of, 1000)
        # As workers do it when they start, and every ten seconds after that.
        self._steps: list[Call[Any]] = [subscribe(self.app.engine.bus_keys, [self.mine])] * 2
        self._answer: Any = None
        self.published = 0

    def relay(self) -> bool:
        """One step of clearing the queue; whether there is another."""
        try:
            self._answer = self.app.engine.run(self._relay.send(self._answer))
        except StopIteration:
            return False
        return True

    def come_back(self) -> bool:
        """One step of a worker that subscribes again; whether there is another."""
        if self._steps:
            self.app.engine.run(self._steps.pop(0))
        return bool(self._steps)

    def publish(self) -> None:
        """Something happens: from now on it must not be lost if the subscription is to get it."""
        self.published += self.app.service("shop").publish("sold", {"n": 1})

    def check(self) -> None:
        while self.relay() or self.come_back():
            pass
        stats = self.app.queue(QUEUE).stats()
        assert stats.living >= self.published, "an event was acknowledged for a subscription that did not get it"


@pytest.mark.parametrize("relayed", range(9))
@pytest.mark.parametrize("returned", [1, 2])
def test_a_service_that_returns_while_its_queue_is_cleared_loses_nothing(
    times: Times, relayed: int, returned: int
) -> None:
    """One stops after each of its steps, the other goes on; then both finish."""
    scene = Closing(times)
    for _ in range(returned - 1):
        scene.come_back()
    for _ in range(relayed):
        scene.relay()
    scene.come_back()
    scene.publish()
    scene.check()


def test_a_service_away_for_too_long_catches_up_before_its_workers_start(times: Times) -> None:
    app = times.app
    shop, got = logged(app, inactive_after="2d")
    asyncio.run(registered(app))
    shop.publish("sold", {"n": 1})
    for moved in (25 * HOUR, 24 * HOUR, 6_000, 6_000):
        times.move(moved)
        ask(app, "DEL", app.engine.bus_keys.key("leader"))
        app.sweep(dry_run=False)
    assert app.engine.run(subscriptions(app.engine.bus_keys)) == []
    assert app.service("mail").catch_up("shop.sold", since="10d") == 1
    asyncio.run(drain(app))
    assert got == [1]


async def test_an_event_delivered_by_another_process_has_the_same_headers(times: Times) -> None:
    """Also where tenant and conversation have unusual characters."""
    app = times.app
    got = saying(app, "mail", "shop.sold")
    await registered(app)
    about: dict[str, Any] = {
        "tenant": 'a b:%20{é}"',
        "conversation": "t *:%41 日",
        "correlation_id": "c d",
        "tier": "enterprise",
    }
    await app.engine.arun(publishing(app.engine, "shop", "sold", None, Sending(**about), NO_LOG))  # its publisher dies
    await app.service("shop").apublish("sold", **about)
    times.move(3_000)
    await app.engine.arun(relay_events(app.engine.bus_keys, app.engine.keys_of, 1000))
    assert len(await app.conversations.alist(about["conversation"])) == 2
    await drain(app)
    first, second = (msgspec.structs.replace(one, id="", deadline_ms=0) for one in got)
    assert first == second
    found = {"tenant": first.tenant, "conversation": first.conversation_id, "correlation_id": first.correlation_id}
    assert found == {name: about[name] for name in found}


# --- invalid values


def test_an_invalid_pattern_is_refused(bus: Relevo) -> None:
    patterns: list[Any] = ["", "a..b", "a.>.b", None, 7, b"shop.sold", ["shop.sold"], "x" * 201]
    for pattern in patterns:
        with pytest.raises(OptionError, match="pattern"):
            hearing(bus, "mail", pattern)
    assert bus.engine.part(Bus).subscriptions == {}


def test_an_invalid_option_of_a_subscription_is_refused(bus: Relevo) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        *(({"max_backlog": most}, "max_backlog") for most in (0, -1, 1.5, True, "10", 10**15)),
        *(({"discard": which}, "discard") for which in ("oldest", None)),
        *(({"retention": time}, "retention") for time in (0, "7", -1, None)),
        *(({"inactive_after": time}, "inactive_after") for time in ("0s", "9s", "soon")),
        *(({"broadcast": value}, "broadcast") for value in ("no", None, 1)),
        ({"queue": "other"}, "queue"),
        ({"retrys": 3}, "did you mean 'retries'"),
        ({"cron": "* * * * *"}, "cron"),
        ({"delay": 5}, "delay"),
    ]
    for options, message in refused:
        with pytest.raises(ConfigurationError, match=message):
            hearing(bus, "mail", **options)
    for keep in (0, "7", "soon", -1, "1000000d"):
        with pytest.raises(OptionError):
            bus.service("shop", keep_events=keep)


def test_an_invalid_event_is_refused_and_nothing_is_published(bus_factory: AppFactory) -> None:
    bus = bus_factory(max_payload=1_000)
    topics: list[Any] = ["", "a..b", "a.*", ">", "a b", "b.c.d.e.f.g.h.i", "x" * 200, None, 7, True]
    refused: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
        *((topic, None, {}, OptionError, "topic") for topic in topics),
        ("sold", None, {"at": "tenant_a"}, OptionError, "messages to one service"),
        ("sold", None, {"delay": 5}, OptionError, "messages to one service"),
        ("sold", None, {"idempotency_key": "x"}, OptionError, "messages to one service"),
        ("sold", None, {"tennant": "acme"}, OptionError, "did you mean 'tenant'"),
        ("sold", None, {"tier": "golden"}, OptionError, "tier"),
        ("sold", None, {"priority": -1}, OptionError, "priority"),
        *(("sold", None, {name: "a\nb"}, OptionError, name) for name in ("tenant", "conversation", "session")),
        *(("sold", data, {}, PayloadError, r"shop\.sold") for data in ([1], "text", {"n": object()})),
        ("sold", {"text": "x" * 1_001}, {}, PayloadTooLarge, r"shop\.sold"),
    ]
    for topic, data, about, error, message in refused:
        with pytest.raises(error, match=message):
            bus.service("shop").publish(topic, data, **about)
    assert ask(bus, "KEYS", f"*{bus.settings.prefix}*") == []


def test_a_handler_is_a_function_and_a_subscription_has_one(bus: Relevo) -> None:
    mail = bus.service("mail")
    one = mail.on("shop.sold")(lambda n: None)
    with pytest.raises(TargetError, match="a function is needed"):
        mail.on("shop.sold")(one)
    with pytest.raises(TargetError, match="a function is needed"):
        mail.on("shop.sold")("print")  # type: ignore[call-overload]

    def other(n: int) -> None: ...

    with pytest.raises(ConfigurationError, match="two handlers"):
        mail.on("shop.sold")(other)
    bus.service("audit").on("shop.sold")(other)
