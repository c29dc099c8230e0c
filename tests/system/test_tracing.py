"""Traces: the spans of an operation through all services, in order, with errors and waiting messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relevo import Relevo, Retry, current_job
from relevo.bus.span import Span, timeline
from relevo.bus.span_store import LIVE_MS
from relevo.bus.subscription_store import subscriptions
from relevo.engine.message import Reply
from relevo.errors import ConfigurationError, OptionError
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.timed import Times
from tests.working import drain, drained, working

OPERATION = "an operation"


@pytest.fixture
def times(server: Server, bus_factory: AppFactory) -> Times:
    """Apps on a bus of this test's own, whose time it can move."""
    return Times(server, bus_factory)


def rows_of(spans: list[Span]) -> list[tuple[int, str, str]]:
    """Depth, type and outcome, in order."""
    return [(depth, one.type, one.outcome) for depth, one in timeline(spans)]


def has(app: Relevo, id: str, count: int) -> Callable[[], Awaitable[list[Span] | None]]:
    """Whether so much is known of an operation; spans are written every second."""

    async def look() -> list[Span] | None:
        found = await app.conversations.atrace(id)
        return found if len(found) >= count and all(one.ended_ms for one in found) else None

    return look


async def subscribed(app: Relevo, count: int) -> None:
    """Until the bus knows of so many subscriptions."""

    async def are_known() -> bool:
        known: list[Any] = await app.engine.arun(subscriptions(app.engine.bus_keys))
        return len(known) == count

    await aeventually(are_known)


# --- end to end


async def test_an_operation_over_three_services_in_three_apps_is_traced_end_to_end(bus_factory: AppFactory) -> None:
    """By its correlation id, in the order of what caused what, whatever the names of the apps."""
    gateway, documents, vectors = bus_factory("gateway"), bus_factory("documents"), bus_factory("vectors")
    ingestion, embedding = documents.service("ingestion"), vectors.service("embedding")
    finished = asyncio.Event()

    @ingestion.action("ingest")
    async def ingest(n: int) -> str:
        assert await ingestion.arequest("embedding.check", {"n": n}, timeout=PATIENCE)
        await ingestion.asend("embedding.generate", {"n": n}, on_reply="ready")
        return "accepted"

    @ingestion.action("ready")
    async def ready(reply: Reply[list[int]]) -> None:
        await ingestion.apublish("document_processed", {"n": 1})

    @embedding.action("check")
    async def check(n: int) -> bool:
        return True

    @embedding.action("generate")
    async def generate(n: int) -> list[int]:
        return [n]

    @gateway.service("orchestrator").on("ingestion.*")
    async def processed(n: int) -> None:
        finished.set()

    me = gateway.service("orchestrator")
    async with working(gateway), working(documents), working(vectors):
        await subscribed(gateway, 1)
        answer = await me.arequest(
            "ingestion.ingest", {"n": 7}, wait=True, correlation_id=OPERATION, tenant="acme", timeout=PATIENCE
        )
        assert answer == "accepted"
        await asyncio.wait_for(finished.wait(), PATIENCE)
        spans = await aeventually(has(gateway, OPERATION, 5), what="all of it is written down")
    rows = rows_of(spans)
    assert rows == [
        (0, "ingestion.ingest", "done"),
        (1, "embedding.check", "done"),
        (1, "embedding.generate", "done"),
        (2, "ingestion.ready", "done"),
        (3, "ingestion.document_processed", "done"),
    ]
    assert [one.intent for one in spans] == ["request", "request", "send", "callback", "event"]
    assert {one.tenant for one in spans} == {"acme"}
    assert {one.correlation for one in spans} == {OPERATION}
    assert len({one.worker for one in spans}) == 3
    assert [one.source for one in spans] == ["orchestrator", "ingestion", "ingestion", "embedding", "ingestion"]
    for one in spans:
        assert 0 < one.sent_ms <= one.started_ms + 30_000 <= one.ended_ms + 30_000, "clocks may differ"
    for app in (documents, vectors):
        assert await app.conversations.atrace(OPERATION) == spans, "every app of the bus sees the same"


@pytest.mark.parametrize("task", ["task_7", "a:{b} *é🚀"])
async def test_an_operation_is_known_by_its_task(bus: Relevo, task: str) -> None:
    svc = bus.service("svc")

    @svc.action("work")
    async def work() -> None: ...

    await svc.asend("svc.work", conversation=task, correlation_id="one")
    await svc.asend("svc.work", conversation=task, correlation_id="two")
    await svc.asend("svc.work", conversation="other", correlation_id="two")
    await drain(bus)
    trace = bus.conversations.atrace
    assert [len(await trace(id)) for id in (task, "one", "two", "other", "unknown")] == [2, 1, 2, 1, 0]


async def test_an_event_has_a_span_for_each_subscription(bus: Relevo) -> None:
    for name in ("mail", "audit"):

        @bus.service(name).on("shop.*")
        async def heard() -> None: ...

    async with working(bus):
        await subscribed(bus, 2)
        await bus.service("shop").apublish("sold", correlation_id=OPERATION)
        spans = await aeventually(has(bus, OPERATION, 2))
    assert sorted(one.queue for one in spans) == ["audit:notifications:shop.*", "mail:notifications:shop.*"]
    assert {one.id for one in spans} == {spans[0].id}


def test_plain_code_can_look_as_well(bus: Relevo) -> None:
    svc = bus.service("svc")
    svc.action("work")(lambda: None)
    svc.send("svc.work", correlation_id=OPERATION)
    drained(bus)
    assert rows_of(bus.conversations.trace(OPERATION)) == [(0, "svc.work", "done")]


# --- what went wrong


async def test_every_attempt_has_a_span_with_its_error(bus: Relevo) -> None:
    svc = bus.service("svc")

    @svc.action("work", retries=2, backoff=0.01)
    async def work() -> None:
        raise (ValueError, ConnectionError, KeyError)[current_job().attempt - 1]("no")

    async with working(bus):
        await svc.asend("svc.work", correlation_id=OPERATION)
        spans = await aeventually(has(bus, OPERATION, 3))
    assert [(one.attempt, one.outcome, one.error) for one in spans] == [
        (1, "retry", "ValueError"),
        (2, "retry", "ConnectionError"),
        (3, "dead", "retries_exhausted: KeyError"),
    ]
    assert [one.started_ms for one in spans] == sorted(one.started_ms for one in spans)


async def test_expired_and_retried_messages_have_spans(bus: Relevo) -> None:
    svc = bus.service("svc")

    @svc.action("work", retries=1)
    async def work(n: int) -> None:
        if current_job().attempt == 1:
            raise Retry(delay=0.01)

    await svc.asend("svc.work", {"n": 1}, timeout=0.001, correlation_id="late")
    await svc.asend("svc.work", {"n": "nonsense"}, correlation_id="bad")
    await asyncio.sleep(0.01)  # lets the first message expire
    async with working(bus):
        await svc.asend("svc.work", {"n": 1}, correlation_id="again")
        again = await aeventually(has(bus, "again", 2))
        (late,) = await aeventually(has(bus, "late", 1))
        rerouted, bad = await aeventually(has(bus, "bad", 2))
    assert [one.outcome for one in again] == ["retry", "done"]
    assert late.outcome == "expired"
    assert rerouted.outcome == "rerouted", "another worker might know an action that takes these arguments"
    assert (bad.outcome, bad.error) == ("dead", "bad_arguments: PayloadError")


async def test_a_message_handed_back_has_a_span(bus_factory: AppFactory) -> None:
    bus = bus_factory(grace="0.1s")
    svc = bus.service("svc")
    began = asyncio.Event()

    @svc.action("work")
    async def work() -> None:
        if not began.is_set():
            began.set()
            await asyncio.Event().wait()

    await svc.asend("svc.work", correlation_id=OPERATION)
    async with working(bus):
        await asyncio.wait_for(began.wait(), PATIENCE)
    await drain(bus)
    assert [one.outcome for one in await bus.conversations.atrace(OPERATION)] == ["back", "done"]


async def test_a_poison_message_has_a_span(times: Times) -> None:
    bus = times.app
    svc = bus.service("svc")

    @svc.action("work", max_crashes=1)
    async def work() -> None: ...

    await svc.asend("svc.work", conversation="task_7", correlation_id=OPERATION)
    assert len(await asyncio.to_thread(bus.queue("svc:actions").take, 1, worker="w")) == 1
    times.move(60_000)
    await drain(bus)
    (dead,) = await bus.dead.alist()
    assert dead.reason == "poison"
    assert [one.outcome for one in await bus.conversations.atrace(dead.id)] == ["dead"]
    assert [one.outcome for one in await bus.conversations.atrace("task_7")] == ["dead"]
    assert [one.outcome for one in await bus.conversations.atrace(OPERATION)] == ["dead"]


# --- what still waits


async def test_waiting_and_running_messages_of_a_task_are_listed(bus: Relevo) -> None:
    svc = bus.service("svc")
    hold = asyncio.Event()

    @svc.action("work")
    async def work() -> None:
        await svc.asend("absent.serve")
        await svc.asend("absent.serve", delay="1h")
        await hold.wait()

    async with working(bus):
        await svc.asend("svc.work", conversation="task_7")
        for state in ("running", "done"):

            async def are_listed(state: str = state) -> bool:
                wanted = [(0, "svc.work", state), (1, "absent.serve", "ready"), (1, "absent.serve", "scheduled")]
                return rows_of(await bus.conversations.atrace("task_7")) == wanted

            await aeventually(are_listed, what=f"each is listed once, the first one as {state}")
            hold.set()


async def test_a_message_that_waits_is_known_by_its_id(bus: Relevo) -> None:
    job = await bus.service("svc").asend("absent.serve", {"n": 1}, tenant="acme")
    (one,) = await bus.conversations.atrace(job.id)
    assert (one.outcome, one.type, one.queue) == ("ready", "absent.serve", "absent:actions")
    assert (one.tenant, one.source) == ("acme", "svc")
    assert (one.started_ms, one.ended_ms, one.worker) == (0, 0, "")


async def test_a_message_waiting_for_its_retry_is_listed(bus: Relevo) -> None:
    svc = bus.service("svc")

    @svc.action("work", retries=1, backoff=3600)
    async def work() -> None:
        raise ValueError("no")

    job = await svc.asend("svc.work", conversation="task_7")
    await drain(bus)
    for id in (job.id, "task_7"):
        found = await bus.conversations.atrace(id)
        assert [(one.attempt, one.outcome) for one in found] == [(1, "retry"), (2, "scheduled")]


@pytest.mark.parametrize("named", [True, False])
async def test_waiting_messages_of_an_operation_are_listed(bus: Relevo, named: bool) -> None:
    svc = bus.service("svc")

    @svc.action("work")
    async def work() -> None:
        await svc.asend("absent.serve")

    job = await svc.asend("svc.work", correlation_id=OPERATION if named else None)
    await drain(bus)
    found = await bus.conversations.atrace(OPERATION if named else job.id)
    assert rows_of(found) == [(0, "svc.work", "done"), (1, "absent.serve", "ready")]


async def test_a_task_whose_id_looks_like_that_of_a_message_is_followed_as_any_other(bus: Relevo) -> None:
    task = bus.engine.new_id()
    await bus.service("svc").asend("absent.serve", conversation=task)
    assert rows_of(await bus.conversations.atrace(task)) == [(0, "absent.serve", "ready")]


# --- how much is kept


async def test_the_newest_are_kept_and_end_with_the_traffic(bus_factory: AppFactory, server: Server) -> None:
    bus = bus_factory(trace_max=300)
    svc = bus.service("svc")

    @svc.action("work")
    async def work(n: int) -> None: ...

    for start in range(0, 1500, 100):
        await asyncio.gather(
            *(svc.asend("svc.work", {"n": n}, correlation_id=f"op-{n}") for n in range(start, start + 100))
        )
    await drain(bus, concurrency=1)
    key = bus.engine.bus_keys.key("spans")
    assert 300 <= server.command("XLEN", key) <= 420, "about so many: the server drops whole nodes of a hundred"
    assert 0 < server.command("PTTL", key) <= LIVE_MS
    assert len(await bus.conversations.atrace("op-1499")) == 1
    assert await bus.conversations.atrace("op-0") == []


async def test_without_traces_waiting_messages_are_still_listed(bus_factory: AppFactory, server: Server) -> None:
    bus = bus_factory(trace_max=0)
    svc = bus.service("svc")

    @svc.action("work")
    async def work() -> None:
        await svc.asend("absent.serve")

    await svc.asend("svc.work", conversation="task_7")
    await drain(bus)
    assert server.command("EXISTS", bus.engine.bus_keys.key("spans")) == 0
    assert rows_of(await bus.conversations.atrace("task_7")) == [(0, "absent.serve", "ready")]


def test_an_invalid_trace_max_is_refused(bus_factory: AppFactory) -> None:
    assert bus_factory(trace_max=None).settings.trace_max == 10_000
    refused: list[Any] = [-1, "many", 1.5, True]
    for most in refused:
        with pytest.raises(ConfigurationError, match="trace_max"):
            bus_factory(trace_max=most)


def test_an_invalid_id_of_a_trace_is_refused(bus: Relevo) -> None:
    ids: list[Any] = ["", None, 7, b"bytes", "line\nbreak", "\x00", "x" * 201, []]
    for id in ids:
        with pytest.raises(OptionError):
            bus.conversations.trace(id)


async def test_plain_jobs_are_in_no_trace(bus: Relevo, server: Server) -> None:
    @bus.task(name="plain")
    async def plain() -> None: ...

    await plain.aenqueue()
    await drain(bus)
    assert server.command("EXISTS", bus.engine.bus_keys.key("spans")) == 0
