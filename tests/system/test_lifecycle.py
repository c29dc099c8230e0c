"""What is made for a conversation is listed and cleaned up, unused queues are swept, and what is in use stays."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import pytest

from relevo import Relevo
from relevo.bus.bus import Bus
from relevo.bus.conversation_store import Left
from relevo.bus.conversations import Made, Tally
from relevo.bus.event_store import publish, relay_events
from relevo.bus.message_store import Tracked
from relevo.bus.service import Service
from relevo.bus.subscription_store import Subscription, subscribe, subscriptions
from relevo.engine.list_store import register
from relevo.engine.lists import known_queues
from relevo.engine.message import Reply
from relevo.errors import OptionError
from relevo.store.plan import Ahead, Ask, Call, Steps
from relevo.upkeep.report import UpkeepReport
from relevo.upkeep.sweeping import sweeping
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.leaks import lasting
from tests.servers import Server
from tests.system.timed import HOUR, Times
from tests.working import drain, working


@pytest.fixture
def times(server: Server, bus_factory: AppFactory) -> Times:
    """Apps on a bus of this test's own, whose time it can move."""
    return Times(server, bus_factory)


# --- doing


def keys(app: Relevo, part: str = "") -> list[str]:
    """Keys of the bus whose names hold this."""
    found: list[bytes] = app.engine.run(Call(["KEYS", f"*{app.settings.prefix}*"]))
    return sorted(key for key in lasting(key.decode() for key in found) if part in key)


async def akeys(app: Relevo, part: str = "") -> list[str]:
    return await asyncio.to_thread(keys, app, part)


def note_of(app: Relevo, conversation: str) -> bytes:
    """The key under which the bus notes in which queues something was made for a conversation."""
    return app.engine.bus_keys.own("made", conversation)


def shown(made: list[Made]) -> list[tuple[str, str, str]]:
    return [(one.kind, one.type, one.state.value) for one in made]


class Nooble:
    """Ingestion that asks embedding, and is called back."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.app = app
        self.replies: list[str] = []
        self.reports: list[Any] = []
        #: What the callback is to do.
        self.fails = 0
        self.ingestion, self.embedding = app.service("ingestion"), app.service("embedding")

        @self.embedding.action("generate", **{"retries": 0, "result_ttl": 600, **options})
        async def generate(n: int) -> int:
            await self.embedding.areport({"half": n})
            if n < 0:
                raise ValueError(n)
            return n * 2

        @self.ingestion.action("ready", retries=1, backoff=0.01)
        async def ready(reply: Reply[int]) -> None:
            if self.fails:
                self.fails -= 1
                raise ConnectionError("the session is away")
            self.replies.append(reply.status)

        @self.ingestion.action("half")
        async def half(reply: Reply[dict[str, int]]) -> None:
            self.reports.append(reply.result)

    async def ask(self, n: int = 1, *, conversation: str = "task_7", **more: Any) -> str:
        job = await self.ingestion.asend(
            "embedding.generate",
            {"n": n},
            conversation=conversation,
            **{"on_reply": "ready", "on_progress": "half", **more},
        )
        return job.id


async def gone(app: Relevo, conversation: str) -> None:
    """Until no key is left of a conversation."""

    async def is_so() -> bool:
        return await akeys(app, f"made:{conversation}") == []

    await aeventually(is_so, what=f"nothing is left of {conversation}")


async def listed(app: Relevo, conversation: str, is_so: Callable[[list[tuple[str, str, str]]], bool]) -> None:
    """Until this holds for what is listed of a conversation."""

    async def look() -> bool:
        return is_so(shown(await app.conversations.alist(conversation)))

    await aeventually(look, what=f"what is listed of {conversation}")


def _living(app: Relevo, queue: str, count: int = 0) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        return (await app.queue(queue).astats()).living == count

    return is_so


def _subscribed(app: Relevo) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        known: list[Subscription] = await app.engine.arun(subscriptions(app.engine.bus_keys))
        return len(known) == 1

    return is_so


# --- listed


async def test_every_message_of_a_task_is_listed_while_it_exists(bus: Relevo) -> None:
    """Messages, callbacks and events, whatever they wait for; those of other tasks are not."""
    nooble = Nooble(bus)
    hold = asyncio.Event()

    @bus.service("audit").on("ingestion.*")
    async def heard() -> None: ...

    @bus.service("slow").action("wait")
    async def wait() -> None:
        await hold.wait()

    async with working(bus):
        await aeventually(_subscribed(bus))
    me = nooble.ingestion
    await nooble.ask()
    await me.asend("embedding.generate", {"n": 2}, conversation="task_7", delay="1h")
    await me.asend("embedding.generate", {"n": 3}, conversation="other")
    await me.asend("embedding.generate", {"n": 4})
    await me.apublish("document_processed", conversation="task_7")
    asked = asyncio.create_task(me.arequest("slow.wait", conversation="task_7", wait=True, timeout=PATIENCE))
    await listed(bus, "task_7", lambda rows: len(rows) == 5)
    found = await bus.conversations.alist("task_7")
    assert sorted(shown(found)) == [
        ("actions", "embedding.generate", "ready"),
        ("actions", "embedding.generate", "scheduled"),
        ("actions", "slow.wait", "ready"),
        ("callbacks", "ingestion.ready", "waiting"),
        ("notifications", "ingestion.document_processed", "ready"),
    ]
    assert found == sorted(found, key=lambda one: one.made_ms)
    async with working(bus):
        await aeventually(lambda: nooble.replies == ["done"])
        await listed(bus, "task_7", lambda rows: ("actions", "slow.wait", "running") in rows)
        states = {one.state.has_ended for one in await bus.conversations.alist("task_7")}
        assert states == {False}, "what has ended was cleaned up by the callback"
        hold.set()
        await asked
    assert shown(await bus.conversations.alist("task_7")) == [("actions", "embedding.generate", "scheduled")]
    assert len(await bus.conversations.alist("other")) == 1
    assert await bus.conversations.alist("unknown") == []


async def test_ended_messages_are_listed_with_their_state(bus: Relevo) -> None:
    nooble = Nooble(bus)
    for n in (1, -1):
        await nooble.ingestion.asend("embedding.generate", {"n": n}, conversation="task_7")
    job = await nooble.ingestion.asend("embedding.generate", {"n": 2}, conversation="task_7", delay="1h")
    await job.acancel()
    await drain(bus)
    states = sorted(one.state.value for one in await bus.conversations.alist("task_7"))
    assert states == ["cancelled", "dead", "done"]


def test_an_invalid_task_is_refused(bus: Relevo) -> None:
    ids: list[Any] = [None, "", 7, b"conversation", "x" * 201, ["conversation"]]
    for conversation in ids:
        for ask in (bus.conversations.list, bus.conversations.clean):
            with pytest.raises(OptionError, match="conversation"):
                ask(conversation)
        if conversation is not None and conversation != "":
            with pytest.raises(OptionError, match="conversation"):
                bus.service("a").send("b.c", conversation=conversation)


# --- what is noted, and losing it


async def test_what_is_known_of_a_task_ends_by_itself(bus_factory: AppFactory) -> None:
    bus = bus_factory(conversation_ttl="1h")
    await Nooble(bus).ask()
    found = [key for key in await akeys(bus) if ":made:" in key]
    assert len(found) == 3, "of the bus, of the action's queue, of the callback's"
    for key in found:
        assert 1_800 < await bus.engine.arun(Call(["TTL", key])) <= 3_600
    await drain(bus)


async def test_a_message_outlives_the_note_of_its_task(bus: Relevo) -> None:
    nooble = Nooble(bus)
    await nooble.ask()
    for key in await akeys(bus, ":made:"):
        await bus.engine.arun(Call(["DEL", key]))
    assert await bus.conversations.alist("task_7") == []
    async with working(bus):
        await aeventually(lambda: nooble.replies == ["done"], what="it was handled all the same")


async def test_losing_the_note_of_the_bus_loses_nothing(bus: Relevo) -> None:
    nooble = Nooble(bus)
    await nooble.ingestion.asend("embedding.generate", {"n": 1}, conversation="task_7")
    await drain(bus)
    await bus.engine.arun(Call(["DEL", note_of(bus, "task_7")]))
    assert shown(await bus.conversations.alist("task_7")) == [("actions", "embedding.generate", "done")]
    await bus.engine.arun(Call(["DEL", note_of(bus, "task_7")]))
    assert (await bus.conversations.aclean("task_7")).queues == {"embedding:actions": Left(1, 0, 0)}


@pytest.mark.parametrize("ask", ["list", "clean"])
async def test_an_incomplete_note_hides_no_message(bus_factory: AppFactory, ask: str) -> None:
    bus, other = bus_factory(), bus_factory("other")
    nooble = Nooble(bus)
    await nooble.ingestion.asend("embedding.generate", {"n": 1}, conversation="task_7")
    await bus.engine.arun(Call(["DEL", note_of(bus, "task_7")]))
    await other.service("x").asend("elsewhere.work", conversation="task_7")
    await nooble.ingestion.asend("embedding.generate", {"n": 2}, conversation="task_7")
    await drain(bus)
    await other.aclose()
    if ask == "list":
        found = [one.queue for one in await bus.conversations.alist("task_7")]
        assert found == ["embedding:actions", "elsewhere:actions", "embedding:actions"]
    else:
        assert (await bus.conversations.aclean("task_7")).queues == {
            "embedding:actions": Left(2, 0, 0),
            "elsewhere:actions": Left(0, 1, 0),
        }


async def test_an_event_whose_publisher_died_is_listed_with_its_task(times: Times) -> None:
    bus = times.app
    await bus.engine.arun(
        subscribe(
            bus.engine.bus_keys,
            [Subscription(pattern="shop.sold", service="audit", queue="audit:notifications:shop.sold")],
        )
    )
    await bus.service("shop").asend("absent.serve", conversation="task_7")
    body = b'{"t":"shop.sold","h":{"o":"event","j":"task_7"}'
    await bus.engine.arun(
        publish(bus.engine.bus_keys, "shop.sold", bus.engine.new_id(), body, tracked=Tracked("task_7", 60_000))
    )
    times.move(3_000)
    await bus.engine.arun(relay_events(bus.engine.bus_keys, bus.engine.keys_of, 1000))
    await bus.aclose()
    kinds = [one.kind for one in await bus.conversations.alist("task_7")]
    assert kinds == ["actions", "notifications"]


# --- cleaned up


async def test_a_clean_up_reports_what_it_removed_and_what_it_left(
    bus: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    nooble = Nooble(bus)
    for n in (1, 2, -1):
        await nooble.ingestion.asend("embedding.generate", {"n": n}, conversation="task_7")
    await drain(bus)
    await nooble.ingestion.asend("embedding.generate", {"n": 3}, conversation="task_7")
    await nooble.ingestion.asend("elsewhere.work", conversation="task_7")
    before = await akeys(bus)
    report = await bus.conversations.aclean("task_7", dry_run=True)
    assert (report.removed, report.living, report.dead, report.dry_run) == (2, 2, 1, True)
    assert await akeys(bus) == before
    with caplog.at_level(logging.INFO, "relevo.bus"):
        report = await bus.conversations.aclean("task_7")
    assert report.queues == {"embedding:actions": Left(2, 1, 1), "elsewhere:actions": Left(0, 1, 0)}
    assert "conversation task_7: 2 removed from 2 queues; 2 in use, 1 dead letters left" in caplog.text
    assert (await bus.conversations.aclean("task_7")).removed == 0
    assert (await bus.conversations.aclean("task_7", dead=True)).removed == 1
    worker = await drain(bus)
    assert worker.done == 1, "what was in use is handled"
    assert (await bus.conversations.aclean("task_7")).queues == {
        "embedding:actions": Left(1, 0, 0),
        "elsewhere:actions": Left(0, 1, 0),
    }
    assert (await bus.conversations.aclean("unknown")).queues == {}


async def test_nothing_is_left_of_a_conversation_that_was_cleaned_up(bus: Relevo) -> None:
    """Its keys are those that were there before it."""
    nooble = Nooble(bus)
    await nooble.ingestion.asend("embedding.generate", {"n": 1}, conversation="warm-up")
    await drain(bus)
    await bus.conversations.aclean("warm-up")
    before = await akeys(bus)
    for n in range(20):
        await nooble.ingestion.asend("embedding.generate", {"n": n}, conversation="task_7")
    await drain(bus)
    assert len(await akeys(bus)) > len(before) + 20, "results, and what is known of the conversation"
    await bus.conversations.aclean("task_7")
    assert set(await akeys(bus)) - set(before) == set()


async def test_messages_sent_during_a_clean_up_are_handled(bus: Relevo) -> None:
    """With a worker, senders and clean-ups all at once."""
    handled: list[int] = []
    svc = bus.service("embedding")

    @svc.action("work", result_ttl=600, retries=0)
    async def work(n: int) -> None:
        handled.append(n)
        if n % 10 == 9:
            raise ValueError(n)

    over = False

    async def clean() -> int:
        removed = 0
        while not over:
            report = await bus.conversations.aclean("task_7")
            removed += report.removed
            await asyncio.sleep(0)
        return removed

    async with working(bus):
        cleaners = [asyncio.create_task(clean()) for _ in range(2)]
        for start in range(0, 200, 50):
            await asyncio.gather(
                *(svc.asend("embedding.work", {"n": n}, conversation="task_7") for n in range(start, start + 50))
            )
        await aeventually(lambda: len(handled) >= 200, what="all were handled")
        await aeventually(_living(bus, "embedding:actions"))
        over = True
        removed = sum(await asyncio.gather(*cleaners))
    assert sorted(handled) == list(range(200))
    report = await bus.conversations.aclean("task_7")
    assert removed + report.removed == 180, "each ended message was removed once"
    assert (report.living, report.dead) == (0, 20)
    assert len(await bus.dead.alist(limit=1000)) == 20


# --- by itself


async def test_the_callback_of_a_failed_message_leaves_its_dead_letter(bus: Relevo) -> None:
    nooble = Nooble(bus)
    async with working(bus):
        await nooble.ask(-1)
        await aeventually(lambda: nooble.replies == ["failed"])
        await listed(bus, "task_7", lambda rows: rows == [("actions", "embedding.generate", "dead")])
    assert nooble.reports == [{"half": -1}]


async def test_a_callback_that_timed_out_cleans_up(bus: Relevo) -> None:
    nooble = Nooble(bus)

    @nooble.ingestion.action("late")
    async def late(reply: Reply[int]) -> None:
        nooble.replies.append(reply.status)

    async with working(bus, queues=["ingestion:callbacks", "ingestion:actions"]):
        await nooble.ingestion.asend(
            "absent.serve", conversation="task_7", on_reply="ready", on_timeout="late", timeout=0.05
        )
        await aeventually(lambda: nooble.replies == ["timeout"])
        await listed(bus, "task_7", lambda rows: [type for _, type, _ in rows] in (["absent.serve"], []))


async def test_the_last_callback_of_a_conversation_cleans_up_after_it_and_a_report_on_the_way_does_not(
    bus: Relevo,
) -> None:
    nooble = Nooble(bus)
    hold = asyncio.Event()

    @nooble.embedding.action("long")
    async def long() -> None:
        for n in range(3):
            await nooble.embedding.areport({"part": n})
        await hold.wait()

    async with working(bus):
        await nooble.ingestion.asend("embedding.generate", {"n": 1}, conversation="task_7")  # leaves a result
        await nooble.ingestion.asend("embedding.long", conversation="task_7", on_reply="ready", on_progress="half")
        await aeventually(lambda: len(nooble.reports) == 3)
        await aeventually(_living(bus, "ingestion:callbacks", 1))
        states = sorted(shown(await bus.conversations.alist("task_7")))
        assert ("actions", "embedding.generate", "done") in states
        assert ("actions", "embedding.long", "running") in states
        hold.set()
        await aeventually(lambda: nooble.replies == ["done"])
        await gone(bus, "task_7")


async def test_a_dead_lettered_callback_stays_and_the_rest_is_cleaned_up(
    bus: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    """Never acknowledged as a success; the clean-up does not depend on how it went."""
    nooble = Nooble(bus)
    nooble.fails = 2
    with caplog.at_level(logging.ERROR, "relevo.worker"):
        async with working(bus):
            await nooble.ask()
            await listed(bus, "task_7", lambda rows: rows == [("callbacks", "ingestion.ready", "dead")])
    assert nooble.replies == []
    assert "ConnectionError the session is away" in caplog.text
    (dead,) = await bus.dead.alist()
    assert await bus.dead.aretry([dead.id]) == 1
    async with working(bus):
        await aeventually(lambda: nooble.replies == ["done"], what="it was handled")


async def test_between_two_attempts_of_a_callback_nothing_is_cleaned_up(bus: Relevo) -> None:
    nooble = Nooble(bus)
    seen: list[list[tuple[str, str, str]]] = []

    @nooble.ingestion.action("look", retries=1, backoff=0.2)
    async def look(reply: Reply[int]) -> None:
        seen.append(shown(await bus.conversations.alist("task_7")))
        if len(seen) == 1:
            raise ValueError("not yet")

    async with working(bus):
        await nooble.ask(on_reply="look")
        await aeventually(lambda: len(seen) == 2)
        await gone(bus, "task_7")
    assert ("actions", "embedding.generate", "done") in seen[1], "what the first attempt found, the second finds"
    assert ("actions", "embedding.generate", "done") in seen[0]


async def test_a_callback_without_a_task_cleans_up_nothing(bus: Relevo) -> None:
    nooble = Nooble(bus)
    async with working(bus):
        await nooble.ingestion.asend("embedding.generate", {"n": 1}, conversation="task_7")
        await nooble.ingestion.asend("embedding.generate", {"n": 2}, on_reply="ready")
        await aeventually(lambda: nooble.replies == ["done"])
        await aeventually(_living(bus, "embedding:actions"))
    assert shown(await bus.conversations.alist("task_7")) == [("actions", "embedding.generate", "done")]


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_nothing_is_cleaned_up_by_itself_where_that_is_only_observed_or_off(
    bus_factory: AppFactory, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    bus = bus_factory(lifecycle=mode)
    nooble = Nooble(bus)
    with caplog.at_level(logging.INFO, "relevo.bus"):
        async with working(bus):
            await nooble.ask()
            await aeventually(lambda: nooble.replies == ["done"])
            await aeventually(_living(bus, "ingestion:callbacks"))
            if mode == "observe":
                await aeventually(lambda: "(only observed)" in caplog.text, what="it says what it would do")
    assert ("conversation task_7" in caplog.text) == (mode == "observe")
    assert ("actions", "embedding.generate", "done") in shown(await bus.conversations.alist("task_7"))
    assert (await bus.conversations.aclean("task_7")).removed > 0, "asked for, it is done"


# --- swept


def one(step: Call[Any] | Ahead[Any] | Ask[Any]) -> Steps[Any]:
    """A single step of a plan, to be carried out alone."""
    return (yield step)


def orphan(app: Relevo, *names: str, ms: int = 3 * 24 * HOUR) -> None:
    """Let queues have been used so long ago."""
    used_ms = app.engine.run(app.engine.now_ms()) - ms
    app.engine.run(register(app.engine.bus_keys.key("queues"), names))
    for name in names:
        app.engine.run(Call(["ZADD", app.engine.bus_keys.key("queues"), used_ms, name]))


def swept(report: UpkeepReport) -> list[tuple[str, str, str]]:
    left = [
        (one.kind, one.name, one.why.partition("; ")[2] if one.kind == "queue" else "warned") for one in report.held
    ]
    return sorted([(one.kind, one.name, one.what) for one in report.purged] + left)


def live_sweep(app: Relevo) -> UpkeepReport:
    app.engine.run(Call(["DEL", app.engine.bus_keys.key("leader")]))
    report = app.sweep(dry_run=False)
    assert not report.skipped
    return report


def registered(app: Relevo, *queues: str, **options: Any) -> None:
    app.engine.run(
        subscribe(
            app.engine.bus_keys,
            [Subscription(pattern="shop.*", service="s", queue=queue, **options) for queue in queues],
        )
    )


def scene(times: Times) -> Relevo:
    """A bus with something of everything that a sweep may find, or may not touch."""
    app = times.app
    svc = app.service("svc")
    registered(app, "s:notifications:old", inactive_ms=HOUR)
    registered(app, "s:notifications:half", inactive_ms=3 * HOUR)
    times.move(HOUR * 3 // 4)
    live_sweep(app)  # the old one is warned of
    registered(app, "s:notifications:lapsed", lease_ms=1000)
    times.move(HOUR * 5 // 4)
    registered(app, "s:notifications:fresh", inactive_ms=HOUR)
    registered(app, "s:notifications:living", lease_ms=30_000)
    svc.send("waits.work")
    svc.send("later.work", delay="10h")
    svc.send("runs.work")
    app.queue("runs:actions").take(1, worker="w")
    svc.send("calls.work", on_reply="done", timeout="30h")
    svc.send("fresh.work")
    names = ["empty:actions", "waits:actions", "later:actions", "runs:actions", "svc:callbacks", "calls:actions"]
    orphan(app, *names, "s:notifications:old")
    orphan(app, "fresh:actions", ms=HOUR)
    return app


def test_a_dry_run_lists_exactly_what_a_live_run_removes(times: Times) -> None:
    app = scene(times)
    before = keys(app)
    dry = app.sweep()
    assert (dry.dry_run, dry.skipped, keys(app)) == (True, (), before)
    live = live_sweep(app)
    assert swept(dry) == swept(live)
    assert dry.count == live.count == 4
    assert swept(live) == [
        ("queue", "calls:actions", "kept: 1 messages are in it"),
        ("queue", "empty:actions", "removed"),
        ("queue", "later:actions", "kept: 1 messages are in it"),
        ("queue", "runs:actions", "kept: 1 messages are in it"),
        ("queue", "s:notifications:old", "removed"),
        ("queue", "svc:callbacks", "kept: 1 messages are in it"),
        ("queue", "waits:actions", "kept: 1 messages are in it"),
        ("subscription", "s:notifications:half", "warned"),
        ("subscription", "s:notifications:lapsed", "removed"),
        ("subscription", "s:notifications:old", "removed"),
    ]
    assert {one.queue for one in app.engine.run(subscriptions(app.engine.bus_keys))} == {
        f"s:notifications:{name}" for name in ("half", "fresh", "living")
    }
    dry, again = app.sweep(), live_sweep(app)
    assert swept(dry) == swept(again)
    assert [one for one in again.purged if one.kind == "subscription"] == []


def test_dry_and_live_runs_agree_on_many_and_on_a_lease_longer_than_the_patience(times: Times) -> None:
    app = times.app
    registered(app, "s:notifications:lapsed", lease_ms=300_000, inactive_ms=120_000)
    for n in range(0, 300, 100):
        registered(app, *(f"s:notifications:n{i}" for i in range(n, n + 100)), lease_ms=1000)
    times.move(150_000)
    dry = app.sweep()
    assert swept(dry) == swept(live_sweep(app))


@pytest.mark.parametrize("seed", range(2))
def test_dry_and_live_runs_agree_on_whatever_there_is(times: Times, seed: int) -> None:
    app, chance = times.app, random.Random(seed)
    for n in range(25):
        lease = chance.choice([0, 0, 30_000])
        registered(app, f"s:notifications:n{n}", inactive_ms=chance.randint(1, 20) * HOUR, lease_ms=lease)
        times.move(chance.randint(0, HOUR))
        if chance.random() < 0.5:
            app.service("svc").send(f"svc{n}.work", delay=chance.choice([None, "3h"]))
        orphan(app, f"svc{n}:actions", ms=chance.randint(0, 48) * HOUR)
    dry = app.sweep()
    live = live_sweep(app)
    assert swept(dry) == swept(live)
    assert dry.purged


def test_no_sweep_looks_at_all_keys(times: Times, server: Server) -> None:
    """Neither KEYS nor SCAN, whatever is found."""
    app = scene(times)

    def looked() -> dict[str, int]:
        stats = server.command("INFO", "commandstats")
        return {name: stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("keys", "scan", "randomkey")}

    app.service("svc").action("work")(lambda: None)
    before = looked()
    app.sweep()
    live_sweep(app)
    with working(app):
        eventually(lambda: app.engine.part(Bus).worker)
    app.conversations.list("task_7")
    app.conversations.clean("task_7")
    app.conversations.trace("task_7")
    app.conversations.counts()
    assert looked() == before


def test_a_sweep_asks_as_often_whatever_is_kept_elsewhere(times: Times, server: Server) -> None:
    """What it costs depends on what is unused, not on how many keys there are."""
    app = times.app
    orphan(app, "empty:actions")

    def asked(plan: Generator[Any, Any, UpkeepReport]) -> int:
        calls, answer = 0, None
        while True:
            try:
                step = plan.send(answer)
            except StopIteration:
                return calls
            calls += 1
            answer = app.engine.run(one(step))

    first = asked(sweeping(app.engine, dry_run=True))
    svc = app.service("svc")
    for n in range(300):
        svc.send("busy.work", {"n": n}, conversation=f"task_{n}")
    assert asked(sweeping(app.engine, dry_run=True)) == first


def test_two_sweepers_at_once_do_the_work_once(times: Times) -> None:
    """One of them has the lock, the other one says so."""
    app = times.app
    for n in range(150):
        registered(app, f"s:notifications:n{n}", lease_ms=1000)
        orphan(app, f"svc{n}:actions")
    times.move(2_000)
    reports: list[UpkeepReport] = []
    together = threading.Barrier(4)

    def sweep(process: Relevo) -> None:
        together.wait()
        reports.append(process.sweep(dry_run=False))

    threads = [threading.Thread(target=sweep, args=(times.another(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = [one.name for report in reports for one in report.purged]
    assert len(found) == len(set(found)) == 300
    assert len(reports) == 4
    assert sum(report.count > 0 for report in reports) == 1
    assert app.engine.run(subscriptions(app.engine.bus_keys)) == []


def until_it_leads(app: Relevo, plan: Generator[Any, Any, Any]) -> Any:
    """Carry out the first steps of a sweep, and give the last answer."""
    answer = app.engine.run(one(next(plan)))
    while not app.engine.run(Call(["EXISTS", app.engine.bus_keys.key("leader")])):
        answer = app.engine.run(one(plan.send(answer)))
    return answer


def test_the_lock_of_a_killed_sweeper_expires(times: Times) -> None:
    app = times.app
    plan = sweeping(app.engine, dry_run=False)
    until_it_leads(app, plan)
    plan.close()
    assert app.sweep(dry_run=False).skipped
    assert not app.sweep().skipped, "a dry run does not wait for the lock"
    assert 0 < app.engine.run(Call(["PTTL", app.engine.bus_keys.key("leader")])) <= 60_000


def test_a_slow_sweeper_leaves_the_lock_of_the_next_one_alone(times: Times) -> None:
    app = times.app
    slow, lock = sweeping(app.engine, dry_run=False), app.engine.bus_keys.key("leader")
    answer = until_it_leads(app, slow)
    app.engine.run(Call(["SET", lock, "another"]))  # its own lock has expired
    with pytest.raises(StopIteration):
        while True:
            answer = app.engine.run(one(slow.send(answer)))
    held: bytes | None = app.engine.run(Call(["GET", lock]))
    app.engine.run(Call(["DEL", lock]))
    assert held == b"another"


@pytest.mark.parametrize("age", ["1h", "2d"])
def test_how_old_an_orphan_is_can_be_chosen(bus_factory: AppFactory, age: str) -> None:
    app = bus_factory(orphan_age=age)
    orphan(app, "old:actions", ms=3 * 24 * HOUR)
    orphan(app, "new:actions", ms=2 * HOUR)
    removed = {one.name for one in live_sweep(app).purged}
    assert removed == ({"old:actions", "new:actions"} if age == "1h" else {"old:actions"})


def test_what_is_swept_is_logged_by_name(times: Times, caplog: pytest.LogCaptureFixture) -> None:
    app = scene(times)
    caplog.clear()
    with caplog.at_level(logging.INFO, "relevo.bus"):
        app.sweep()
        assert caplog.messages == [], "a dry run is not logged"
        live_sweep(app)
    assert "queue empty:actions: unused for 3d; removed" in caplog.messages
    assert any(line.startswith("subscription s:notifications:old: not served for") for line in caplog.messages)
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "s:notifications:half" in warning.getMessage()


@pytest.mark.parametrize("mode", ["on", "observe", "off"])
def test_workers_sweep_according_to_the_lifecycle_setting(
    times: Times, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    scene(times)
    app = times.another(lifecycle=mode)
    app.service("other").action("nothing")(lambda: None)
    with caplog.at_level(logging.INFO), working(app):
        if mode == "off":
            eventually(lambda: app.engine.part(Bus).worker)
            eventually(lambda: app.engine.run(Call(["ZCARD", app.engine.keys_of("other:actions").key("instances")])))
        else:
            eventually(lambda: "s:notifications:lapsed" in caplog.text, what="a sweep")
    left = {one.queue for one in app.engine.run(subscriptions(app.engine.bus_keys))}
    assert ("s:notifications:lapsed" in left) == (mode != "on")
    assert ("observed: subscription s:notifications:lapsed" in caplog.text) == (mode == "observe")


def test_a_queue_whose_workers_wait_is_no_orphan(times: Times) -> None:
    app = times.app
    app.service("svc").action("work")(lambda: None)
    with working(app):
        eventually(lambda: app.queue("svc:actions").stats().idle_workers == 1)
        orphan(app, "svc:actions", "svc:callbacks")
        assert swept(app.sweep()) == []


def test_a_queue_with_dead_letters_is_not_forgotten(bus: Relevo) -> None:
    @bus.service("svc").action("work", retries=0)
    def work() -> None:
        raise ValueError("no")

    bus.service("svc").send("svc.work")
    asyncio.run(drain(bus))
    assert len(bus.dead.list()) == 1
    orphan(bus, "svc:actions", "svc:callbacks")
    live_sweep(bus)
    assert len(bus.dead.list()) == 1


class Race:
    """A queue that is used and drained between the steps of a sweep."""

    def __init__(self, app: Relevo, ages: Callable[[], None]) -> None:
        self.app = app
        self.age = ages
        self.svc: Service = app.service("svc")
        self.queue = app.queue("svc:actions")
        self.plan: Generator[Any, Any, UpkeepReport] | None = None
        self.answer: Any = None
        self.removed = 0

    def send(self) -> None:
        self.svc.send("svc.work")

    def work(self) -> None:
        for lease in self.queue.take(5, worker="w"):
            lease.done()

    def sweep(self) -> None:
        """One step of a sweep."""
        if self.plan is None:
            self.app.engine.run(Call(["DEL", self.app.engine.bus_keys.key("leader")]))
            self.plan, self.answer = sweeping(self.app.engine, dry_run=False), None
        try:
            self.answer = self.app.engine.run(one(self.plan.send(self.answer)))
        except StopIteration as over:
            self.plan = None
            self.removed += over.value.count

    def run(self, chance: random.Random, steps: int = 500) -> None:
        for _ in range(steps):
            chance.choice([self.send, self.work, self.work, self.age, *[self.sweep] * 4])()
            listed = "svc:actions" in self.app.engine.run(known_queues(self.app.engine))
            assert listed or not self.queue.stats().living, "messages wait in a queue that is not listed"


@pytest.mark.parametrize("seed", range(2))
def test_a_queue_used_during_a_sweep_is_not_forgotten(bus: Relevo, seed: int) -> None:
    """Between any two steps of a sweep."""

    def days_pass() -> None:
        orphan(bus, "svc:actions")
        bus.engine._listed.clear()  # a process lists a queue again after an hour

    race = Race(bus, days_pass)
    race.run(random.Random(seed))
    assert race.removed > 0


@pytest.mark.parametrize("seed", range(2))
def test_a_queue_in_use_is_no_orphan_however_young_orphans_may_be(bus_factory: AppFactory, seed: int) -> None:
    """A process that uses a queue lists it again after a quarter of `orphan_age`."""
    bus = bus_factory(orphan_age="10m")
    bus.engine.run(bus.engine.list_queue("svc:actions"))
    assert bus.engine._listed["svc:actions"] - time.monotonic() <= 150
    Race(bus, lambda: orphan(bus, "svc:actions", ms=150_000)).run(random.Random(seed))


def test_a_queue_used_just_now_by_a_process_whose_clock_is_wrong_is_no_orphan(times: Times) -> None:
    app = times.app
    times.move(48 * HOUR)
    app.service("svc").send("svc.work")
    for lease in app.queue("svc:actions").take(1, worker="w"):
        lease.done()
    assert swept(app.sweep()) == []


@pytest.mark.parametrize(
    "name", [b"x:responses:y", b"x:dead_letter:actions", b":actions", b"\xff:actions", b"a:actions:%zz"]
)
def test_garbage_on_the_list_of_queues_is_ignored(bus: Relevo, name: bytes) -> None:
    bus.service("svc").send("svc.work", conversation="task_7")
    bus.engine.run(Call(["ZADD", bus.engine.bus_keys.key("queues"), 1, name]))
    bus.engine.run(Call(["DEL", note_of(bus, "task_7")]))
    assert len(bus.conversations.list("task_7")) == 1
    assert bus.conversations.clean("task_7").living == 1
    assert bus.conversations.counts()["actions"].living == 1
    live_sweep(bus)


# --- counted


async def test_what_came_and_went_is_counted_by_kind_and_adds_up(bus: Relevo) -> None:
    nooble = Nooble(bus, retries=1, backoff=0.01)

    @bus.service("audit").on("ingestion.*", retries=0)
    async def heard(n: int) -> None:
        if n == 3:
            raise ValueError(n)

    async with working(bus):
        await aeventually(_subscribed(bus))
        for n in (1, 2, -1):
            await nooble.ask(n, conversation=f"task_{n}", on_progress=None)
        for n in range(4):
            await nooble.ingestion.apublish("seen", {"n": n}, conversation="events")
        await aeventually(lambda: len(nooble.replies) == 3)
        await gone(bus, "task_1")
        await gone(bus, "task_2")
        await listed(bus, "task_-1", lambda rows: rows == [("actions", "embedding.generate", "dead")])
        await aeventually(_living(bus, "audit:notifications:ingestion.*"))
        assert await nooble.ingestion.arequest("embedding.generate", {"n": 5}) == 10
    asked = asyncio.create_task(nooble.ingestion.arequest("embedding.generate", {"n": 5}, wait=True, timeout=PATIENCE))
    await aeventually(_living(bus, "embedding:actions", 1))
    asked.cancel()
    await aeventually(_living(bus, "embedding:actions"))
    await nooble.ingestion.asend("embedding.generate", {"n": 6}, timeout=0.01)
    await nooble.ingestion.asend("embedding.generate", {"n": 7}, delay="1h")
    await asyncio.sleep(0.02)  # lets message 6 expire
    await drain(bus)
    found = await bus.conversations.acounts()
    assert found["notifications"] == Tally(created=4, done=3, dead=1)
    assert found["callbacks"] == Tally(created=3, done=3, cleaned=3)
    actions = found["actions"]
    assert (actions.created, actions.living, actions.dead, actions.done) == (7, 1, 1, 3)
    assert actions.cleaned == 2
    assert (await bus.conversations.aclean("events")).removed == 3
    assert (await bus.conversations.acounts())["notifications"].cleaned == 3


def test_what_is_swept_is_counted(times: Times) -> None:
    app = times.app
    registered(app, "s:notifications:old", inactive_ms=HOUR)
    for _ in range(5):
        app.service("shop").publish("sold")
    for moved in (HOUR * 3 // 4, HOUR, 6_000, 6_000):
        times.move(moved)
        live_sweep(app)
    assert app.queue("s:notifications:old").stats().living == 0
    found = app.conversations.counts().get("notifications", Tally())
    assert (found.created, found.living, found.swept) == (5, 0, 5)


def test_an_unused_bus_has_nothing_to_count_or_to_sweep(bus: Relevo) -> None:
    assert bus.conversations.counts() == {}
    assert bus.sweep() == UpkeepReport(purged=(), dry_run=True)
    assert bus.sweep(dry_run=False) == UpkeepReport(purged=(), dry_run=False)
    assert keys(bus) == []


def test_the_place_of_a_message_is_no_part_of_its_conversation(bus: Relevo) -> None:
    """A tenant and a conversation of one name are two things."""
    bus.service("svc").send("svc.work", tenant="task_7")
    assert bus.conversations.list("task_7") == []
