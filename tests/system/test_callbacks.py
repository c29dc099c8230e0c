"""Callbacks: the end of a message is handled once by an action of its sender, by any live instance of it.

In these tests `ingestion` sends to `embedding` and is called back.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from relevo import Cancel, Relevo, current_job
from relevo.bus.callbacks import sending
from relevo.engine.message import Message, Reply
from relevo.errors import BusError, OptionError, PayloadError
from relevo.store.plan import Call
from relevo.worker import Worker
from tests.answering import answering
from tests.conftest import AppFactory
from tests.eventually import aeventually, eventually
from tests.leaks import leaks
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import drain, working

ACTIONS, CALLBACKS = "embedding:actions", "ingestion:callbacks"


class Vector(msgspec.Struct, frozen=True):
    text: str
    numbers: list[float]


class Ingestion:
    """The sender, in an app of its own: what its handlers were called with, and by which worker."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.app = app
        self.calls: list[tuple[str, Reply[Any]]] = []
        self.messages: list[Message] = []
        self.workers: list[str] = []
        self.service = app.service("ingestion")

        @self.service.action("ready", **options)
        async def ready(reply: Reply[Any]) -> None:
            self.note("ready", reply)

        @self.service.action("gave_up", **options)
        async def gave_up(reply: Reply[Any]) -> None:
            self.note("gave_up", reply)

        @self.service.action("half", **options)
        async def half(reply: Reply[Any]) -> None:
            self.note("half", reply)

    def note(self, action: str, reply: Reply[Any]) -> None:
        self.calls.append((action, reply))
        job = current_job()
        assert job.message is not None
        self.messages.append(job.message)
        self.workers.append(job.worker)

    @property
    def ends(self) -> list[tuple[str, str]]:
        """Which handler was called with which status."""
        return [(action, reply.status) for action, reply in self.calls]

    async def asend(self, data: Any = None, action: str = "generate", **options: Any) -> Any:
        return await self.service.asend(f"embedding.{action}", data, **{"on_reply": "ready", **options})

    def waiting(self) -> int:
        return self.app.queue(CALLBACKS).stats().waiting


class Embedding:
    """The other side, in an app of its own."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.ran: list[str] = []
        self.service = service = app.service("embedding")

        @service.action("generate")
        async def generate(text: str = "") -> Vector:
            self.ran.append(text)
            return Vector(text, [0.5])

        @service.action("fail", retries=0)
        async def fail() -> None:
            self.ran.append("fail")
            raise ConnectionError("no model")

        @service.action("think")
        async def think(reports: int = 0, fails: bool = False) -> str:
            for n in range(reports):
                assert await service.areport({"n": n}) in (True, False)
            if fails:
                raise Cancel("no need")
            return "thought"

        @service.action("sleep")
        async def sleep() -> None:
            self.ran.append("sleep")
            await asyncio.Event().wait()


@pytest.fixture
def ingestion(bus_factory: AppFactory) -> Ingestion:
    return Ingestion(bus_factory("ingestion"))


@pytest.fixture
def embedding(bus_factory: AppFactory) -> Embedding:
    return Embedding(bus_factory("embedding"))


@pytest.fixture
def times(server: Server, bus_factory: AppFactory) -> Times:
    """Apps in a time that the test moves."""
    return Times(server, bus_factory)


async def handled(*sides: Ingestion | Embedding) -> None:
    """Let all sides work until nothing is left to do."""
    while True:
        ran = 0
        for side in sides:
            worker = await drain(side.app)
            ran += worker.done + worker.failed
        if not ran:
            return


# --- settled once: by a reply, a fault, a timeout, or the removal of the message


async def test_the_reply_to_a_message_is_handled_by_an_action_of_its_sender(
    ingestion: Ingestion, embedding: Embedding
) -> None:
    job = await ingestion.asend({"text": "hola"}, context={"document": 7})
    assert (ingestion.waiting(), ingestion.calls) == (1, [])
    await handled(embedding, ingestion)
    ((action, reply),) = ingestion.calls
    assert (action, reply.status, reply.ok, reply.is_final) == ("ready", "done", True, True)
    assert reply.result == {"text": "hola", "numbers": [0.5]}
    assert (reply.context, reply.action, reply.error) == ({"document": 7}, "embedding.generate", None)
    assert reply.correlation_id == job.id
    assert (embedding.ran, ingestion.waiting()) == (["hola"], 0)


async def test_a_fault_calls_back_with_its_reason(ingestion: Ingestion, embedding: Embedding) -> None:
    job = await ingestion.asend(action="fail", context=[1])
    await handled(embedding, ingestion)
    ((action, reply),) = ingestion.calls
    assert (action, reply.status, reply.ok, reply.result, reply.context) == ("ready", "failed", False, None, [1])
    assert reply.error is not None
    assert (reply.error.type, reply.error.message) == ("ConnectionError", "no model")
    assert (reply.error.reason, reply.error.retryable, reply.error.traceback) == ("retries_exhausted", True, "")
    assert [letter.id for letter in await embedding.app.dead.alist()] == [job.id]


async def test_a_fault_has_a_traceback_where_the_responder_allows_it(
    ingestion: Ingestion, bus_factory: AppFactory
) -> None:
    with_tracebacks = Embedding(bus_factory("embedding", remote_tracebacks=True))
    await ingestion.asend(action="fail")
    await handled(with_tracebacks, ingestion)
    ((_, reply),) = ingestion.calls
    assert reply.error is not None
    assert "raise ConnectionError" in reply.error.traceback


async def test_a_message_cancelled_while_it_runs_calls_back(ingestion: Ingestion, embedding: Embedding) -> None:
    async with working(embedding.app), working(ingestion.app):
        job = await ingestion.asend(action="sleep")
        await aeventually(lambda: embedding.ran, what="it runs")
        assert await job.acancel() is True
        await aeventually(lambda: ingestion.calls, what="the callback")
    assert ingestion.ends == [("ready", "cancelled")]


@pytest.mark.parametrize(
    ("on_timeout", "timeout", "ms"), [(None, "1h", HOUR), ("gave_up", "1h", HOUR), (None, None, 24 * HOUR)]
)
async def test_without_a_reply_the_callback_times_out(
    times: Times, on_timeout: str | None, timeout: str | None, ms: int
) -> None:
    """Without a timeout it waits for a day."""
    ingestion = Ingestion(times.app)
    await ingestion.asend(on_timeout=on_timeout, timeout=timeout, context="c")
    times.move(ms - MINUTE)
    await handled(ingestion)
    assert ingestion.calls == []
    times.move(2 * MINUTE)
    await handled(ingestion)
    assert ingestion.ends == [(on_timeout or "ready", "timeout")]
    ((_, reply),) = ingestion.calls
    assert (reply.ok, reply.is_final, reply.result, reply.context) == (False, True, None, "c")


@pytest.mark.parametrize("first", ["sender", "responder"])
async def test_on_timeout_is_called_when_the_message_expired(times: Times, first: str) -> None:
    ingestion, embedding = Ingestion(times.app), Embedding(times.another())
    await ingestion.asend({"text": "old"}, on_timeout="gave_up", timeout="1h")
    times.move(HOUR + MINUTE)
    await handled(*((ingestion, embedding) if first == "sender" else (embedding, ingestion)))
    assert embedding.ran == []
    assert [action for action, _ in ingestion.ends] == ["gave_up"]


async def test_an_idle_worker_notices_the_timeout_of_a_callback(ingestion: Ingestion) -> None:
    async with working(ingestion.app):
        queue = ingestion.app.queue(CALLBACKS)
        await aeventually(lambda: queue.stats().idle_workers, what="it waits")
        await ingestion.asend(on_timeout="gave_up", timeout=0.3)
        await aeventually(lambda: ingestion.calls, what="the timeout was noticed")
    assert ingestion.ends == [("gave_up", "timeout")]


async def test_a_dead_letter_retried_before_its_fault_was_delivered_calls_back_once(
    ingestion: Ingestion, embedding: Embedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is still in the outbox while an operator retries the message."""
    job = await ingestion.asend(action="fail")
    (lease,) = await embedding.app.queue(ACTIONS).atake(worker="w")
    with monkeypatch.context() as patched:
        patched.setattr(embedding.app.engine, "relay", lambda *_: iter(()))
        assert await lease.abury("broken") is True
    assert await embedding.app.job(job.id, queue=ACTIONS).aretry() is True
    await handled(embedding, ingestion)
    assert ingestion.ends == [("ready", "failed")]


# --- what a handler is given


async def test_a_reply_is_read_as_the_type_that_the_handler_names(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    app, got = bus_factory("typed"), list[Reply[Vector]]()
    typed = app.service("typed")

    @typed.action("ready")
    async def ready(reply: Reply[Vector]) -> None:
        got.append(reply)

    for action in ("generate", "fail"):
        await typed.asend(f"embedding.{action}", {}, on_reply="ready")
    await drain(embedding.app)
    await drain(app)
    done, failed = sorted(got, key=lambda reply: reply.status)
    assert done.result == Vector("", [0.5])
    assert (failed.result, failed.error and failed.error.type) == (None, "ConnectionError")


async def test_a_reply_of_the_wrong_type_is_dead_lettered_at_the_sender(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    app, got = bus_factory("typed"), list[Any]()
    typed = app.service("typed")

    @typed.action("ready")
    async def ready(reply: Reply[list[int]]) -> None:
        got.append(reply)

    job = await typed.asend("embedding.generate", {}, on_reply="ready")
    await drain(embedding.app)
    await drain(app)
    (letter,) = await app.dead.alist()
    assert (letter.queue, letter.reason, got) == ("typed:callbacks", "bad_arguments", [])
    assert letter.id != job.id


async def test_every_json_result_report_and_context_arrives(ingestion: Ingestion, embedding: Embedding) -> None:
    values: list[Any] = [None, False, 0, "", [], {}, "ñ\u2028\x1e'\n", [{"a": [None]}], 2**53 + 1, 0.1, {"status": "x"}]

    @embedding.service.action("echo")
    async def echo(n: int) -> Any:
        await embedding.service.areport(values[n])
        return values[n]

    for n, value in enumerate(values):
        await ingestion.asend({"n": n}, action="echo", context=value, on_progress="half", correlation_id=str(n))
    await handled(embedding, ingestion)
    assert Counter(ingestion.ends) == {("half", "progress"): len(values), ("ready", "done"): len(values)}
    for _, reply in ingestion.calls:
        assert repr(reply.result) == repr(reply.context) == repr(values[int(reply.correlation_id)])


async def test_a_callback_belongs_to_the_operation_of_its_message(ingestion: Ingestion, embedding: Embedding) -> None:
    job = await ingestion.asend(
        {"reports": 1},
        action="think",
        on_progress="half",
        tenant="acme",
        tier="enterprise",
        session="s1",
        conversation="t1",
        correlation_id="op-1",
        traceparent="00-1-2-01",
        priority=50,
    )
    await handled(embedding, ingestion)
    assert [action for action, _ in ingestion.calls] == ["half", "ready"]
    for message, (action, reply) in zip(ingestion.messages, ingestion.calls, strict=True):
        assert (message.type, message.intent, message.source) == (f"ingestion.{action}", "callback", "embedding")
        assert (message.correlation_id, message.causation_id) == ("op-1", job.id)
        assert (message.tenant, message.tier, message.session) == ("acme", "enterprise", "s1")
        assert (message.conversation_id, message.traceparent) == ("t1", "00-1-2-01")
        assert (message.reply_to, message.deadline_ms) == ("", None)
        assert (reply.correlation_id, reply.action) == ("op-1", "embedding.think")


# --- reports on the way


async def test_reports_come_in_their_order_before_the_end(ingestion: Ingestion, embedding: Embedding) -> None:
    await ingestion.asend({"reports": 20}, action="think", on_progress="half", context="c")
    await drain(embedding.app)
    await drain(ingestion.app, concurrency=1)
    assert ingestion.ends == [*[("half", "progress")] * 20, ("ready", "done")]
    reports = [reply for _, reply in ingestion.calls[:-1]]
    assert [reply.result for reply in reports] == [{"n": n} for n in range(20)]
    assert not any(reply.is_final or reply.ok for reply in reports)


async def test_a_report_is_not_sent_without_on_progress(ingestion: Ingestion, embedding: Embedding) -> None:
    delivered: list[bool] = []

    @embedding.service.action("report")
    async def report() -> None:
        delivered.append(await embedding.service.areport(0.5))

    await ingestion.asend(action="report")
    await ingestion.service.asend("embedding.report")
    await handled(embedding, ingestion)
    assert (delivered, ingestion.ends) == ([False, False], [("ready", "done")])


async def test_a_report_outside_of_a_message_is_refused(bus: Relevo) -> None:
    @bus.task(name="plain")
    async def plain() -> None:
        with pytest.raises(BusError, match="no message"):
            await bus.service("embedding").areport(1)

    await plain.aenqueue()
    assert (await drain(bus)).done == 1


async def test_a_report_that_is_no_json_is_refused(ingestion: Ingestion, embedding: Embedding) -> None:
    @embedding.service.action("report", retries=0)
    async def report() -> None:
        for value in (object(), float("nan")):
            with pytest.raises(PayloadError):
                await embedding.service.areport(value)

    await ingestion.asend(action="report", on_progress="half")
    await handled(embedding, ingestion)
    assert ingestion.ends == [("ready", "done")]


async def test_plain_functions_report_too(ingestion: Ingestion, embedding: Embedding) -> None:
    @embedding.service.action("report")
    def report() -> str:
        assert embedding.service.report({"half": True}) is True
        return "reported"

    await ingestion.asend(action="report", on_progress="half")
    await handled(embedding, ingestion)
    assert ingestion.ends == [("half", "progress"), ("ready", "done")]


# --- sticky


async def serving(app: Relevo, queue: str, count: int) -> None:
    """Wait until this number of workers serves a queue."""
    key = app.engine.keys_of(queue).key("instances")

    async def there() -> bool:
        found: int = await app.engine.arun(Call([b"ZCARD", key]))
        return found == count

    await aeventually(there, what=f"{count} workers serve {queue}")


async def test_a_sticky_callback_comes_back_to_the_worker_in_whose_handler_it_was_sent(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    sides = [Ingestion(bus_factory("ingestion")) for _ in range(3)]
    sent_by: list[str] = []

    def begins(side: Ingestion) -> None:
        @side.service.action("begin")
        async def begin(n: int) -> None:
            sent_by.append(current_job().worker)
            await side.asend(sticky=True, context=current_job().worker)

    for side in sides:
        begins(side)
    async with working(sides[0].app), working(sides[1].app), working(sides[2].app), working(embedding.app):
        await serving(embedding.app, CALLBACKS, 3)
        web = embedding.app.service("web")
        for n in range(30):
            await web.asend("ingestion.begin", {"n": n})
        await aeventually(lambda: sum(len(side.calls) for side in sides) == 30, what="all came back")
    assert len(set(sent_by)) > 1, "several workers had some"
    for side in sides:
        assert [reply.context for _, reply in side.calls] == side.workers


async def test_a_sticky_callback_of_a_worker_that_serves_no_callbacks_goes_to_another(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    mine, other = Ingestion(bus_factory("ingestion")), Ingestion(bus_factory("ingestion"))
    async with working(mine.app, queues=["ingestion:actions"]):
        await serving(mine.app, "ingestion:actions", 1)
        await mine.asend(sticky=True)
        await handled(embedding, other)
    assert (mine.calls, other.ends) == ([], [("ready", "done")])


@pytest.mark.parametrize("when", ["before", "after"])
async def test_where_no_worker_runs_sticky_is_refused_and_nothing_is_sent(ingestion: Ingestion, when: str) -> None:
    if when == "after":
        async with working(ingestion.app):
            await serving(ingestion.app, CALLBACKS, 1)
    with pytest.raises(OptionError, match="no worker runs in this process"):
        await ingestion.asend(sticky=True)
    assert (ingestion.waiting(), ingestion.app.queue(ACTIONS).stats().living) == (0, 0)


async def test_sticky_works_from_the_moment_in_which_the_worker_was_started(ingestion: Ingestion) -> None:
    worker = Worker(ingestion.app)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)
    try:
        await ingestion.asend(sticky=True)
    finally:
        worker.stop(fast=True)
        await running
        await ingestion.app.aclose()
    assert ingestion.waiting() == 1


async def test_reports_of_a_sticky_callback_come_to_the_same_worker(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    mine, others = Ingestion(bus_factory("ingestion")), [Ingestion(bus_factory("ingestion")) for _ in range(2)]
    async with working(others[0].app), working(others[1].app), working(mine.app), working(embedding.app):
        await serving(mine.app, CALLBACKS, 3)
        for _ in range(5):
            await mine.asend({"reports": 4}, action="think", sticky=True, on_progress="half")
        await aeventually(
            lambda: sum(len(one.calls) for one in (mine, *others)) == 25, what="five ends and their reports"
        )
    assert [len(one.calls) for one in (mine, *others)] == [25, 0, 0]


async def test_reports_of_a_sticky_callback_come_before_its_end(ingestion: Ingestion, embedding: Embedding) -> None:
    gate = asyncio.Event()

    @ingestion.service.action("block")
    async def block() -> None:
        await gate.wait()

    async with working(ingestion.app, concurrency=1):
        await serving(ingestion.app, CALLBACKS, 1)
        await embedding.app.service("web").asend("ingestion.block")
        await aeventually(lambda: ingestion.app.queue("ingestion:actions").stats().running, what="it is busy")
        await ingestion.asend({"reports": 5}, action="think", sticky=True, on_progress="half")
        await drain(embedding.app)
        gate.set()
        await aeventually(lambda: len(ingestion.calls) == 6, what="all came")
    assert [action for action, _ in ingestion.calls] == [*["half"] * 5, "ready"]


# --- a handler of callbacks that fails


@pytest.mark.parametrize("sticky", [False, True])
async def test_a_callback_whose_handler_always_raises_is_dead_lettered_and_can_be_retried(
    bus_factory: AppFactory, embedding: Embedding, sticky: bool
) -> None:
    app, seen, is_broken = bus_factory("ingestion"), list[Any](), True
    service = app.service("ingestion")

    @service.action("ready", retries=1, backoff=0)
    async def ready(reply: Reply[Any]) -> None:
        seen.append((reply.result, reply.context))
        if is_broken:
            raise ConnectionError("database away")

    async with working(app), working(embedding.app):
        await serving(app, CALLBACKS, 1)
        await service.asend("embedding.generate", {"text": "a"}, on_reply="ready", context="c", sticky=sticky)
        (letter,) = await aeventually(lambda: app.dead.alist(queue=CALLBACKS), what="a dead letter")
        assert (letter.task, letter.reason) == ("ingestion.ready", "retries_exhausted")
        assert len(seen) == 2
        is_broken = False
        assert await app.dead.aretry([letter.id]) == 1
        await aeventually(lambda: len(seen) == 3, what="it runs again")
        await aeventually(lambda: not app.queue(CALLBACKS).stats().living, what="and is over")
    assert [str(one) for one in seen] == [str(({"text": "a", "numbers": [0.5]}, "c"))] * 3
    bag = app.engine.keys_of(CALLBACKS).own("carried", letter.id)
    assert await app.engine.arun(Call([b"EXISTS", bag])) == 0


# --- the sender restarts


async def test_a_timeout_that_passed_while_no_worker_ran_is_noticed_by_the_next_worker(times: Times) -> None:
    before = Ingestion(times.app)
    await before.asend(on_timeout="gave_up", timeout="1h")
    times.move(5 * HOUR)
    after = Ingestion(times.another())
    await handled(after)
    assert after.ends == [("gave_up", "timeout")]


async def test_a_callback_whose_message_was_never_sent_times_out(times: Times) -> None:
    """Runs the sender's plan call by call up to the promise."""
    ingestion, embedding = Ingestion(times.app), Embedding(times.another())
    message, wanted = ingestion.service._message(
        "embedding.generate", {"text": "x" * 200_000}, {}, on_reply="ready", on_timeout="gave_up", timeout="1h"
    )
    plan = sending(times.app.engine, message, wanted)
    call = next(plan)
    while call.script is None or call.script.name != "bus/store_callback":
        call = plan.send(times.app.engine.run(call))
    times.app.engine.run(call)
    plan.close()
    await handled(ingestion, embedding)
    assert (ingestion.calls, embedding.ran, ingestion.waiting()) == ([], [], 1)
    times.move(HOUR + MINUTE)
    await handled(ingestion, embedding)
    assert (ingestion.ends, embedding.ran) == ([("gave_up", "timeout")], [])


# --- contexts


async def test_a_session_has_callbacks_of_its_own(bus_factory: AppFactory, embedding: Embedding) -> None:
    """`…:execution_service:tenant_abc:session_123:callbacks`."""
    context = ("tenant_abc", "session_123")
    mine, other = bus_factory("execution"), bus_factory("execution")
    got: list[str] = []

    def serve(app: Relevo, name: str, context: Any) -> Any:
        service = app.service("execution_service", context=context)

        @service.action("ready")
        async def ready(reply: Reply[Any]) -> None:
            got.append(name)

        return service

    session, plain = serve(mine, "session", context), serve(other, "plain", None)
    assert session.callbacks == "execution_service:tenant_abc:session_123:callbacks"
    await session.asend("embedding.generate", {}, on_reply="ready", tenant="tenant_abc", session="session_123")
    await plain.asend("embedding.generate", {}, on_reply="ready")
    async with working(other), working(embedding.app):
        await aeventually(lambda: got == ["plain"], what="that of the service")
        await aeventually(lambda: mine.queue(session.callbacks).stats().ready == 1, what="that of the session waits")
    async with working(mine):
        await aeventually(lambda: got == ["plain", "session"], what="it is handled where it belongs")


# --- many, and what is left


async def test_many_callbacks_with_every_kind_of_end_are_each_handled_once(times: Times, server: Server) -> None:
    ingestion, embedding = Ingestion(times.app), Embedding(times.another())
    jobs = []
    for n in range(60):
        action = ("generate", "fail", "think")[n % 3]
        data = {"reports": 1} if action == "think" else {}
        jobs.append(await ingestion.asend(data, action, context=n, on_timeout="gave_up", timeout="1h"))
    for job in jobs[::10]:
        await job.acancel()
    await asyncio.gather(drain(embedding.app), embedding.app.dead.aretry(all=True))
    await ingestion.app.engine.arun(ingestion.app.engine.relay(ACTIONS, CALLBACKS))
    for n in range(60, 70):
        await ingestion.asend(context=n, on_timeout="gave_up", timeout="1h")
    times.move(2 * HOUR)
    await handled(ingestion, embedding)
    await embedding.app.dead.aretry(all=True)
    await handled(ingestion, embedding)
    assert sorted(reply.context for _, reply in ingestion.calls) == list(range(70))
    assert {status for _, status in ingestion.ends} >= {"done", "failed", "cancelled", "timeout"}
    assert leaks(server, times.app.settings.prefix) == []


async def test_replies_and_deadlines_that_race_settle_each_callback_once(
    ingestion: Ingestion, bus_factory: AppFactory, server: Server
) -> None:
    """In real time: the work takes about as long as the timeout of its callback."""
    chance, app = random.Random(11), bus_factory("embedding")
    ended: list[int] = []

    @app.service("embedding").action("generate", retries=0)
    async def generate(n: int, seconds: float) -> int:
        await asyncio.sleep(seconds)
        ended.append(n)
        return n

    other = bus_factory("embedding")
    other.service("embedding").action("generate", retries=0)(generate.func)
    async with answering(app), answering(other), answering(ingestion.app):
        for n in range(100):
            data = {"n": n, "seconds": chance.uniform(0, 0.2)}
            await ingestion.asend(data, context=n, on_timeout="gave_up", timeout=chance.uniform(0.02, 0.2))
        await aeventually(lambda: len(ingestion.calls) >= 100, what="all were called back")
        await aeventually(lambda: not app.queue(ACTIONS).stats().living, what="all work is over")
        await aeventually(lambda: not app.queue(CALLBACKS).stats().living, what="nothing else comes")
    assert sorted(reply.context for _, reply in ingestion.calls) == list(range(100))
    assert set(ingestion.ends) <= {("ready", "done"), ("gave_up", "timeout")}
    assert all(reply.result == reply.context for _, reply in ingestion.calls if reply.ok)
    assert leaks(server, app.settings.prefix) == []


async def test_a_worker_that_stops_while_callbacks_come_to_it_hands_them_to_another(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    """Each is handled once: callbacks that were taken and not begun are handed back."""
    mine, other = Ingestion(bus_factory("ingestion")), Ingestion(bus_factory("ingestion"))
    calls = mine.calls, other.calls
    async with answering(embedding.app), answering(other.app):
        for stop in range(1, 3):
            before = len(mine.calls)
            async with answering(mine.app):
                for n in range(50):
                    await mine.asend(context=n, sticky=True)
                await aeventually(lambda: len(mine.calls) > before + 5, what="some callbacks were handled")
            await aeventually(lambda: sum(map(len, calls)) == 50 * stop, what="all were called back")
    assert other.app.queue(CALLBACKS).stats().totals.get("lost", 0) == 0, "no lease was lost"
    assert Counter(reply.context for _, reply in mine.calls + other.calls) == dict.fromkeys(range(50), 2)


async def test_a_handled_callback_leaves_no_keys(ingestion: Ingestion, embedding: Embedding, server: Server) -> None:
    prefix = ingestion.app.settings.prefix

    def own() -> set[str]:
        kinds = ("carried:", "ended:", ":letters", ":errands", ":jobs", ":waiters", ":waiting", "unique:")
        found = server.keys()
        return {key for key, _ in found if prefix in key and any(kind in key for kind in kinds)}

    for n in range(20):
        await ingestion.asend({"reports": 1}, action="think", on_progress="half", context=n, timeout="1h")
    assert own()
    await handled(embedding, ingestion)
    assert len(ingestion.calls) == 40
    assert own() == set()


def test_blocking_code_is_called_back_too(bus_factory: AppFactory, embedding: Embedding) -> None:
    app, got = bus_factory("ingestion"), list[Any]()
    service = app.service("ingestion")

    @service.action("ready")
    def ready(reply: Reply[Vector]) -> None:
        got.append(reply.result)

    with working(app), working(embedding.app):
        service.send("embedding.generate", {"text": "a"}, on_reply="ready")
        eventually(lambda: got, what="the callback")
    assert got == [Vector("a", [0.5])]
