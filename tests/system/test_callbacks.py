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

from relevo import Cancel, Relevo, State, current_job
from relevo.bus.callbacks import sending
from relevo.errors import BusError, OptionError, PayloadError
from relevo.lists import known_queues
from relevo.model.message import Message, Reply
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


async def test_data_of_the_wrong_type_calls_back_as_a_fault(ingestion: Ingestion, embedding: Embedding) -> None:
    await ingestion.asend({"text": 7})
    await handled(embedding, ingestion)
    ((_, reply),) = ingestion.calls
    assert reply.error is not None
    assert (reply.status, reply.error.reason, reply.error.retryable) == ("failed", "bad_arguments", False)


async def test_a_fault_has_a_traceback_where_the_responder_allows_it(
    ingestion: Ingestion, bus_factory: AppFactory
) -> None:
    with_tracebacks = Embedding(bus_factory("embedding", remote_tracebacks=True))
    await ingestion.asend(action="fail")
    await handled(with_tracebacks, ingestion)
    ((_, reply),) = ingestion.calls
    assert reply.error is not None
    assert "raise ConnectionError" in reply.error.traceback


async def test_a_message_cancelled_by_its_handler_calls_back_as_cancelled(
    ingestion: Ingestion, embedding: Embedding
) -> None:
    await ingestion.asend({"fails": True}, action="think")
    await handled(embedding, ingestion)
    ((_, reply),) = ingestion.calls
    assert reply.error is not None
    assert (reply.status, reply.error.reason) == ("cancelled", "no need")


async def test_a_message_cancelled_before_it_began_calls_back(ingestion: Ingestion, embedding: Embedding) -> None:
    job = await ingestion.asend({"text": "hola"})
    assert await job.acancel() is True
    assert await job.acancel() is False
    await handled(ingestion, embedding)
    assert (ingestion.ends, embedding.ran) == ([("ready", "cancelled")], [])


async def test_a_message_cancelled_while_it_runs_calls_back(ingestion: Ingestion, embedding: Embedding) -> None:
    async with working(embedding.app), working(ingestion.app):
        job = await ingestion.asend(action="sleep")
        await aeventually(lambda: embedding.ran, what="it runs")
        assert await job.acancel() is True
        await aeventually(lambda: ingestion.calls, what="the callback")
    assert ingestion.ends == [("ready", "cancelled")]


async def test_a_cleared_queue_settles_all_callbacks_of_its_messages(ingestion: Ingestion) -> None:
    for n in range(3):
        await ingestion.asend(context=n, delay="1h" if n else None)
    assert await ingestion.app.queue(ACTIONS).aclear() == 3
    await handled(ingestion)
    assert ingestion.ends == [("ready", "cancelled")] * 3
    assert sorted(reply.context for _, reply in ingestion.calls) == [0, 1, 2]


@pytest.mark.parametrize("on_timeout", [None, "gave_up"])
async def test_without_a_reply_the_callback_times_out(times: Times, on_timeout: str | None) -> None:
    ingestion = Ingestion(times.app)
    await ingestion.asend(on_timeout=on_timeout, timeout="1h", context="c")
    times.move(HOUR - MINUTE)
    await handled(ingestion)
    assert ingestion.calls == []
    times.move(2 * MINUTE)
    await handled(ingestion)
    assert ingestion.ends == [(on_timeout or "ready", "timeout")]
    ((_, reply),) = ingestion.calls
    assert (reply.ok, reply.is_final, reply.result, reply.context) == (False, True, None, "c")


async def test_without_a_timeout_a_callback_waits_for_a_day(times: Times) -> None:
    ingestion = Ingestion(times.app)
    await ingestion.asend()
    times.move(24 * HOUR - MINUTE)
    await handled(ingestion)
    assert ingestion.calls == []
    times.move(2 * MINUTE)
    await handled(ingestion)
    assert ingestion.ends == [("ready", "timeout")]


async def test_on_timeout_is_not_for_replies_and_faults(ingestion: Ingestion, embedding: Embedding) -> None:
    for action in ("generate", "fail"):
        await ingestion.asend(action=action, on_timeout="gave_up", timeout="1h")
    await handled(embedding, ingestion)
    assert sorted(ingestion.ends) == [("ready", "done"), ("ready", "failed")]


async def test_a_reply_after_the_timeout_is_dropped(times: Times) -> None:
    """The work began in time and took too long: the timeout is delivered, the late reply is dropped."""
    ingestion, embedding = Ingestion(times.app), Embedding(times.another())
    await ingestion.asend({"text": "slow"}, on_timeout="gave_up", timeout="1h")
    (lease,) = embedding.app.queue(ACTIONS).take(lease="2h")
    times.move(HOUR + MINUTE)
    await handled(ingestion)
    assert lease.done("at last") is True
    await handled(ingestion, embedding)
    assert ingestion.ends == [("gave_up", "timeout")]


async def test_a_timeout_after_the_reply_is_dropped(times: Times) -> None:
    ingestion, embedding = Ingestion(times.app), Embedding(times.another())
    await ingestion.asend({"text": "quick"}, on_timeout="gave_up", timeout="1h")
    await handled(embedding, ingestion)
    times.move(2 * HOUR)
    await handled(ingestion, embedding)
    assert ingestion.ends == [("ready", "done")]


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


async def test_a_retried_dead_letter_does_not_call_back_again(ingestion: Ingestion, bus_factory: AppFactory) -> None:
    app, ran, is_broken = bus_factory("embedding"), list[str](), True

    @app.service("embedding").action("generate", retries=0)
    async def generate(text: str) -> str:
        ran.append(text)
        if is_broken:
            raise ConnectionError
        return text

    job = await ingestion.asend({"text": "again"})
    await drain(app)
    await handled(ingestion)
    assert ingestion.ends == [("ready", "failed")]
    for _ in range(2):
        assert await app.dead.aretry([job.id]) == 1
        await drain(app)
        await handled(ingestion)
    is_broken = False
    assert await app.dead.aretry([job.id]) == 1
    await drain(app)
    await handled(ingestion)
    assert (ran, ingestion.ends) == (["again"] * 4, [("ready", "failed")])


async def test_a_dead_letter_retried_before_its_fault_was_delivered_calls_back_once(
    ingestion: Ingestion, embedding: Embedding, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is still in the outbox while an operator retries the message."""
    job = await ingestion.asend(action="fail")
    (lease,) = await embedding.app.queue(ACTIONS).atake(worker="w")
    with monkeypatch.context() as patched:
        patched.setattr(embedding.app, "relay", lambda *_: iter(()))
        assert await lease.abury("broken") is True
    assert await embedding.app.job(job.id, queue=ACTIONS).aretry() is True
    await handled(embedding, ingestion)
    assert ingestion.ends == [("ready", "failed")]


async def test_a_discarded_dead_letter_does_not_call_back_again(ingestion: Ingestion, embedding: Embedding) -> None:
    job = await ingestion.asend(action="fail", on_timeout="gave_up")
    await handled(embedding, ingestion)
    assert await embedding.app.dead.adiscard([job.id]) == 1
    await handled(embedding, ingestion)
    assert ingestion.ends == [("ready", "failed")]


async def test_a_message_that_is_retried_calls_back_after_its_last_attempt(
    ingestion: Ingestion, bus_factory: AppFactory
) -> None:
    app, attempts = bus_factory("embedding"), list[int]()

    @app.service("embedding").action("generate", retries=2, backoff=0)
    async def generate() -> str:
        attempts.append(current_job().attempt)
        if len(attempts) < 3:
            raise ConnectionError
        return "third time lucky"

    await ingestion.asend()
    async with working(app), working(ingestion.app):
        await aeventually(lambda: ingestion.calls, what="the callback")
    assert (attempts, ingestion.ends) == ([1, 2, 3], [("ready", "done")])
    assert ingestion.calls[0][1].result == "third time lucky"


async def test_every_json_result_arrives(bus_factory: AppFactory, ingestion: Ingestion) -> None:
    app = bus_factory("embedding")
    results: list[Any] = [None, False, 0, "", [], {}, "\u2028\x1e'\n", [{"a": [None]}], 2**60, 0.1]

    @app.service("embedding").action("generate")
    async def generate(n: int) -> Any:
        return results[n]

    for n in range(len(results)):
        await ingestion.asend({"n": n}, context=n)
    await drain(app)
    await handled(ingestion)
    assert set(ingestion.ends) == {("ready", "done")}
    found = {reply.context: reply.result for _, reply in ingestion.calls}
    assert [found[n] for n in range(len(results))] == results
    assert [type(found[n]) for n in range(len(results))] == list(map(type, results))


async def test_a_result_that_cannot_be_encoded_calls_back_as_a_fault_without_a_retry(
    bus_factory: AppFactory, ingestion: Ingestion
) -> None:
    app, ran = bus_factory("embedding", max_payload=2000), list[int]()

    @app.service("embedding").action("generate")
    async def generate(size: int) -> Any:
        ran.append(size)
        return "x" * size if size else object()

    for size in (10_000, 0):
        await ingestion.asend({"size": size})
    await drain(app)
    await handled(ingestion)
    assert sorted(ran) == [0, 10_000]
    assert [status for _, status in ingestion.ends] == ["failed", "failed"]
    assert {reply.error and reply.error.reason for _, reply in ingestion.calls} == {"result_not_kept"}


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


async def test_every_json_context_comes_back(ingestion: Ingestion, embedding: Embedding) -> None:
    contexts: list[Any] = [
        None,
        0,
        False,
        "",
        "ñ\u2028\x1e",
        [],
        {},
        {"a": {"b": [1, None, 2.5]}},
        [[["x"]]],
        2**53 + 1,
    ]
    contexts.append({"status": "x"})
    jobs: dict[str, Any] = {}
    for context in contexts:
        job = await ingestion.asend({"reports": 1}, action="think", context=context, on_progress="half")
        jobs[job.id] = context
    await handled(embedding, ingestion)
    assert Counter(ingestion.ends) == {("half", "progress"): len(contexts), ("ready", "done"): len(contexts)}
    for _, reply in ingestion.calls:
        assert repr(reply.context) == repr(jobs[reply.correlation_id])


@pytest.mark.parametrize("context", [object(), float("nan"), {"f": float("inf")}, "\ud800"])
async def test_a_context_that_is_no_json_is_refused_and_nothing_is_sent(ingestion: Ingestion, context: Any) -> None:
    with pytest.raises(PayloadError, match="context"):
        await ingestion.asend(context=context)
    assert (ingestion.waiting(), ingestion.app.queue(ACTIONS).stats().living) == (0, 0)


async def test_a_callback_belongs_to_the_operation_of_its_message(ingestion: Ingestion, embedding: Embedding) -> None:
    job = await ingestion.asend(
        {"reports": 1},
        action="think",
        on_progress="half",
        tenant="acme",
        tier="enterprise",
        session="s1",
        task="t1",
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


async def test_what_a_callback_sends_belongs_to_the_operation_too(bus: Relevo) -> None:
    """Ingestion -> Embedding -> Ingestion -> Orchestrator, one operation from end to end."""
    seen: list[Message | None] = []
    embedding, ingestion, orchestrator = (bus.service(name) for name in ("embedding", "ingestion", "orchestrator"))

    @embedding.action("generate")
    async def generate() -> int:
        seen.append(current_job().message)
        return 1

    @ingestion.action("ready")
    async def ready(reply: Reply[int]) -> None:
        seen.append(current_job().message)
        await ingestion.asend("orchestrator.push", {"n": reply.result}, on_reply="pushed")

    @ingestion.action("pushed")
    async def pushed(reply: Reply[None]) -> None:
        seen.append(current_job().message)

    @orchestrator.action("push")
    async def push(n: int) -> None:
        seen.append(current_job().message)

    job = await ingestion.asend("embedding.generate", on_reply="ready", tenant="acme")
    async with working(bus):
        await aeventually(lambda: len(seen) == 4, what="all four were handled")
    messages = [message for message in seen if message is not None]
    assert [message.type for message in messages] == [
        "embedding.generate",
        "ingestion.ready",
        "orchestrator.push",
        "ingestion.pushed",
    ]
    assert {message.correlation_id for message in messages} == {job.id}
    assert {message.tenant for message in messages} == {"acme"}
    first, second, third, fourth = messages
    assert [second.causation_id, third.causation_id, fourth.causation_id] == [first.id, second.id, third.id]


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


async def test_no_report_comes_after_the_callback_was_settled(times: Times) -> None:
    ingestion, delivered = Ingestion(times.app), list[bool]()
    app = times.another()
    embedding = app.service("embedding")

    @embedding.action("think")
    async def think() -> None:
        delivered.append(await embedding.areport("before"))
        times.move(2 * HOUR)
        await asyncio.to_thread(times.app.run, times.app.relay(CALLBACKS))
        delivered.append(await embedding.areport("after"))

    await ingestion.asend(action="think", on_progress="half", on_timeout="gave_up", timeout="1h")
    await drain(app)
    await handled(ingestion)
    assert delivered == [True, False]
    assert ingestion.ends == [("half", "progress"), ("gave_up", "timeout")]


async def test_a_report_outside_of_a_message_is_refused(bus: Relevo) -> None:
    errors: list[str] = []

    @bus.task(name="plain")
    async def plain() -> None:
        try:
            await bus.service("embedding").areport(1)
        except BusError as error:
            errors.append(str(error))

    await plain.aenqueue()
    await drain(bus)
    assert len(errors) == 1 and "no message" in errors[0]


async def test_a_report_that_is_no_json_is_refused(ingestion: Ingestion, embedding: Embedding) -> None:
    errors: list[str] = []

    @embedding.service.action("report")
    async def report() -> None:
        for value in (object(), float("nan")):
            try:
                await embedding.service.areport(value)
            except PayloadError as error:
                errors.append(str(error))

    await ingestion.asend(action="report", on_progress="half")
    await handled(embedding, ingestion)
    assert (len(errors), ingestion.ends) == (2, [("ready", "done")])


async def test_plain_functions_report_too(ingestion: Ingestion, embedding: Embedding) -> None:
    @embedding.service.action("report")
    def report() -> str:
        assert embedding.service.report({"half": True}) is True
        return "reported"

    await ingestion.asend(action="report", on_progress="half")
    await handled(embedding, ingestion)
    assert ingestion.ends == [("half", "progress"), ("ready", "done")]


async def test_a_failing_progress_handler_does_not_delay_the_reply(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    app, ends = bus_factory("ingestion"), list[str]()
    service = app.service("ingestion")

    @service.action("half", retries=0)
    async def half(reply: Reply[Any]) -> None:
        raise ValueError("not interested")

    @service.action("ready")
    async def ready(reply: Reply[Any]) -> None:
        ends.append(reply.status)

    await service.asend("embedding.think", {"reports": 2}, on_reply="ready", on_progress="half")
    await drain(embedding.app)
    await drain(app)
    assert ends == ["done"]
    assert len(await app.dead.alist(queue=CALLBACKS)) == 2


# --- sticky


async def test_a_sticky_callback_comes_back_to_the_worker_of_its_process(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    """A web server that runs a worker in its own loop, among others of the same service."""
    mine, others = Ingestion(bus_factory("ingestion")), [Ingestion(bus_factory("ingestion")) for _ in range(2)]
    async with working(others[0].app), working(mine.app) as worker, working(others[1].app), working(embedding.app):
        await serving(mine.app, CALLBACKS, 3)
        for n in range(12):
            await mine.asend(sticky=True, context=n, on_timeout="gave_up")
        await aeventually(lambda: len(mine.calls) == 12, what="all came back")
    assert [other.calls for other in others] == [[], []]
    assert set(mine.workers) == {worker.id}
    assert sorted(reply.context for _, reply in mine.calls) == list(range(12))


async def serving(app: Relevo, queue: str, count: int) -> None:
    """Wait until this number of workers serves a queue."""
    key = app.keys_of(queue).key("instances")

    async def there() -> bool:
        found: int = await app.arun(Call([b"ZCARD", key]))
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


async def test_a_sticky_callback_goes_to_another_worker_when_its_own_stopped(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    mine, other = Ingestion(bus_factory("ingestion")), Ingestion(bus_factory("ingestion"))
    async with working(mine.app):
        await serving(mine.app, CALLBACKS, 1)
        await mine.asend(sticky=True)
    await handled(embedding, other)
    assert (mine.calls, other.ends) == ([], [("ready", "done")])


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


async def test_a_callback_handler_that_raises_is_tried_again_with_the_same_reply(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    """An error is never acknowledged as a success."""
    app, seen = bus_factory("ingestion"), list[tuple[int, Any]]()
    service = app.service("ingestion")

    @service.action("ready", retries=3, backoff=0)
    async def ready(reply: Reply[Any]) -> None:
        seen.append((current_job().attempt, reply.result))
        if len(seen) < 3:
            raise ConnectionError("database away")

    await service.asend("embedding.generate", {"text": "a"}, on_reply="ready")
    async with working(app), working(embedding.app):
        await aeventually(lambda: len(seen) == 3, what="the third try")
        await aeventually(lambda: not app.queue(CALLBACKS).stats().living, what="it is over")
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert {str(result) for _, result in seen} == {str({"text": "a", "numbers": [0.5]})}


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
    bag = app.keys_of(CALLBACKS).own("carried", letter.id)
    assert await app.arun(Call([b"EXISTS", bag])) == 0


async def test_a_callback_whose_action_is_unknown_waits_for_a_worker_that_knows_it(
    bus_factory: AppFactory, embedding: Embedding
) -> None:
    app, got = bus_factory("ingestion"), list[str]()

    @app.service("ingestion").action("other")
    async def other() -> None: ...

    await app.service("ingestion").asend("embedding.generate", {}, on_reply="brand_new")
    await drain(embedding.app)
    await drain(app)
    assert app.queue(CALLBACKS).stats().scheduled == 1
    newer = bus_factory("ingestion")

    @newer.service("ingestion").action("brand_new")
    async def brand_new(reply: Reply[Any]) -> None:
        got.append(reply.status)

    async with working(newer):
        await aeventually(lambda: got == ["done"], what="the new worker knows it")


# --- the sender restarts


async def test_a_callback_outlives_all_processes_of_its_sender(bus_factory: AppFactory, embedding: Embedding) -> None:
    before = Ingestion(bus_factory("ingestion"))
    async with working(before.app):
        await before.asend({"text": "hola"}, context=7)
    before.app.close()
    await drain(embedding.app)
    after = Ingestion(bus_factory("ingestion"))
    await handled(after)
    assert (before.calls, after.ends) == ([], [("ready", "done")])
    assert after.calls[0][1].context == 7


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
        "embedding.generate", {"text": "x" * 200_000}, "ready", "gave_up", None, "1h", None, False, None, {}
    )
    plan = sending(times.app, message, wanted)
    call = next(plan)
    while call.script is None or call.script.name != "promise":
        call = plan.send(times.app.run(call))
    times.app.run(call)
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


async def test_callbacks_and_actions_are_in_queues_of_their_own(ingestion: Ingestion, embedding: Embedding) -> None:
    """A flood of actions does not keep callbacks from being handled."""
    await ingestion.asend()
    await drain(embedding.app)
    names = await ingestion.app.arun(known_queues(ingestion.app))
    assert {ACTIONS, CALLBACKS} <= set(names)
    assert ingestion.app.queue(CALLBACKS).stats().ready == 1
    await ingestion.app.queue("ingestion:actions").apause()
    await handled(ingestion)
    await ingestion.app.queue("ingestion:actions").aresume()
    assert ingestion.ends == [("ready", "done")]


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
    await ingestion.app.arun(ingestion.app.relay(ACTIONS, CALLBACKS))
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


async def test_a_callback_that_is_cancelled_by_hand_does_not_come(times: Times) -> None:
    ingestion, embedding = Ingestion(times.app), Embedding(times.another())
    await ingestion.asend(on_timeout="gave_up", timeout="1h")
    (row,) = ingestion.app.queue(CALLBACKS).jobs("waiting")
    job = ingestion.app.job(row.id, queue=CALLBACKS)
    assert await job.acancel() is True
    await handled(embedding, ingestion)
    times.move(2 * HOUR)
    await handled(embedding, ingestion)
    assert (ingestion.calls, await job.astatus()) == ([], State.CANCELLED)
