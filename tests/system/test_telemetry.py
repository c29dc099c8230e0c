"""Traces for OpenTelemetry, read back with the SDK's exporter, from a real worker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from relevo import Cancel, Relevo, Reply, Workflow, chain, group
from relevo.engine.job import read_envelope
from relevo.errors import PayloadError, RemoteError
from relevo.queues.store import Listed, page
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually, eventually
from tests.process import process_tasks
from tests.system.shell import environment
from tests.working import drained, working

EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider() -> None:
    """OpenTelemetry takes one provider per process, and no other after it."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
    trace.set_tracer_provider(provider)


@pytest.fixture(autouse=True)
def nothing_from_before() -> Iterator[None]:
    EXPORTER.clear()
    yield
    EXPORTER.clear()


@pytest.fixture
def traced(app_factory: AppFactory) -> Relevo:
    return app_factory(otel=True)


def spans(start: str = "") -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name.startswith(start)]


def only(start: str) -> ReadableSpan:
    (span,) = spans(start)
    return span


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def tracer() -> trace.Tracer:
    return trace.get_tracer("test")


def test_a_run_is_linked_to_the_span_in_which_its_job_was_made(traced: Relevo) -> None:
    @traced.task(name="charge")
    async def charge(invoice: int) -> None: ...

    with tracer().start_as_current_span("checkout") as checkout:
        job = charge.enqueue(7)
    drained(traced)
    made, run = only("enqueue default"), only("process default")
    assert (made.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert made.parent is not None and made.parent.span_id == checkout.get_span_context().span_id
    assert run.parent is None, "a trace of its own"
    assert linked(run) == [id_of(made)]
    common = {
        "messaging.system": "relevo",
        "messaging.destination.name": "default",
        "messaging.message.id": job.id,
        "relevo.task": "charge",
    }
    assert attributes_of(made) == common | {
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
    }
    about = attributes_of(run)
    assert about.pop("messaging.client.id")
    assert about == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "relevo.attempt": 1,
        "relevo.outcome": "done",
    }
    assert run.status.status_code is StatusCode.UNSET


def test_spans_made_inside_a_job_are_children_of_its_run(traced: Relevo) -> None:
    """On the loop and in threads; also what a job enqueues."""

    @traced.task(name="inner")
    async def inner() -> None: ...

    @traced.task(name="on_loop")
    async def on_loop() -> None:
        with tracer().start_as_current_span("sql"):
            await asyncio.sleep(0)
        await inner.aenqueue()

    @traced.task(name="in_thread")
    def in_thread() -> None:
        with tracer().start_as_current_span("sql"):
            pass

    on_loop.enqueue()
    in_thread.enqueue()
    drained(traced, threads=1)
    runs = {attributes_of(run)["relevo.task"]: id_of(run) for run in spans("process")}
    assert {span.parent.span_id for span in spans("sql") if span.parent} == {runs["on_loop"], runs["in_thread"]}
    made = {attributes_of(span)["relevo.task"]: span for span in spans("enqueue")}
    inner_made = made["inner"]
    assert inner_made.parent is not None and inner_made.parent.span_id == runs["on_loop"]
    # a thread that ran a traced job is clean for the next one
    in_thread.enqueue()
    EXPORTER.clear()
    drained(traced, threads=1)
    (sql,) = spans("sql")
    assert sql.parent is not None and sql.parent.span_id == id_of(only("process"))


def test_jobs_made_together_share_one_span(traced: Relevo) -> None:
    @traced.task(name="charge")
    async def charge(invoice: int) -> None: ...

    charge.enqueue_many([((n,), {}) for n in range(3)])
    charge.using(delay="1ms").enqueue_many([((n,), {}) for n in range(2)])
    eventually(lambda: drained(traced).done >= 0 and len(spans("process")) == 5, what="all ran")
    plain, rich = spans("enqueue")
    assert [attributes_of(span)["messaging.batch.message_count"] for span in (plain, rich)] == [3, 2]
    links = [linked(run) for run in spans("process")]
    assert sorted(links) == sorted([[id_of(plain)]] * 3 + [[id_of(rich)]] * 2)


@pytest.mark.parametrize("how", ["plain", "async"])
def test_all_jobs_of_a_workflow_are_linked_to_the_span_in_which_it_was_made(traced: Relevo, how: str) -> None:
    """Steps, what gathers results, callbacks; and what joins later, to the span in which it did."""

    @traced.task(name="add")
    def add(a: int, b: int = 1) -> int:
        return a + b

    @traced.task(name="total", queue="sums")
    def total(numbers: list[Any]) -> int:
        traced.workflow().add(add.s(5), add.s(6))
        return int(numbers[0] + sum(numbers[1]))

    @traced.task(name="notify")
    def notify() -> None: ...

    flow = chain(group(add.s(1), group(add.s(1), add.s(2))), total.s()).on_success(notify.si())

    async def enqueue() -> Workflow[Any]:
        return await flow.aenqueue()

    with tracer().start_as_current_span("checkout") as checkout:
        workflow = flow.enqueue() if how == "plain" else asyncio.run(enqueue())
    with working(traced):
        assert workflow.result(timeout=PATIENCE) == 7
        eventually(lambda: len(spans("process")) == 8, what="all ran")
    assert "relevo.gather" in {attributes_of(run)["relevo.task"] for run in spans("process")}
    made, joined = spans("enqueue default")
    assert made.kind is SpanKind.PRODUCER
    assert made.parent is not None and made.parent.span_id == checkout.get_span_context().span_id
    assert [attributes_of(span)["messaging.batch.message_count"] for span in (made, joined)] == [6, 2]
    assert {attributes_of(span)["relevo.workflow"] for span in (made, joined)} == {workflow.id}
    assert joined.parent is not None and joined.parent.span_id == id_of(only("process sums"))
    assert sorted(linked(run) for run in spans("process")) == sorted([[id_of(made)]] * 6 + [[id_of(joined)]] * 2)


def test_errors_of_a_run_are_recorded_for_each_attempt(traced: Relevo) -> None:
    @traced.task(name="fail", retries=1, backoff="1ms")
    def fail() -> None:
        raise ValueError("no such invoice")

    fail.enqueue()
    eventually(lambda: drained(traced).done >= 0 and len(spans("process")) == 2, what="both attempts ran")
    first, second = sorted(spans("process"), key=lambda span: str(attributes_of(span)["relevo.attempt"]))
    assert [attributes_of(span)["relevo.attempt"] for span in (first, second)] == [1, 2]
    assert linked(first) == linked(second) == [id_of(only("enqueue"))]
    for span in (first, second):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes_of(span)["error.type"] == "ValueError"
        (event,) = span.events
        about = dict(event.attributes or {})
        assert (event.name, about["exception.message"]) == ("exception", "no such invoice")
        assert "raise ValueError" in str(about["exception.stacktrace"])


def test_what_a_task_decides_is_no_error(traced: Relevo) -> None:
    @traced.task(name="nothing")
    async def nothing() -> None:
        raise Cancel("nothing to do")

    nothing.enqueue()
    drained(traced)
    run = only("process")
    assert attributes_of(run)["relevo.outcome"] == "cancel"
    assert (run.status.status_code, run.events) == (StatusCode.UNSET, ())


def test_a_job_that_could_not_be_made_has_its_error_recorded(traced: Relevo) -> None:
    @traced.task(name="charge")
    async def charge(invoice: int) -> None: ...

    with pytest.raises(PayloadError):
        charge.enqueue(object())  # type: ignore[arg-type]
    made = only("enqueue")
    assert made.status.status_code is StatusCode.ERROR
    assert attributes_of(made)["error.type"] == "relevo.errors.PayloadError"


async def test_messages_of_the_bus_are_linked_to_where_they_were_sent(bus_factory: AppFactory) -> None:
    app = bus_factory(otel=True)
    svc, me = app.service("embedding"), app.service("shop")
    heard: list[str] = []

    @svc.action("go")
    async def go() -> str:
        await svc.apublish("gone", {})
        return "done"

    @svc.action("fail", retries=0)
    async def fail() -> None:
        raise ValueError("no")

    @me.action("ready")
    async def ready(reply: Reply[str]) -> None:
        heard.append("reply")

    @me.on("embedding.gone")
    async def gone() -> None:
        heard.append("event")

    async with working(app):
        assert await me.arequest("embedding.go", wait=True, timeout=PATIENCE) == "done"
        with pytest.raises(RemoteError):
            await me.arequest("embedding.fail", timeout=PATIENCE)
        await me.asend("embedding.go", on_reply="ready")
        await aeventually(lambda: "reply" in heard and "event" in heard, what="all have come")
        await aeventually(lambda: len(spans("process shop:")) >= 2, what="their runs ended")
    asked, failed = spans("request embedding.")
    sent = only("send embedding.go")
    assert {span.kind for span in (asked, failed, sent)} == {SpanKind.PRODUCER}
    assert attributes_of(asked)["messaging.destination.name"] == "embedding:actions"
    assert failed.status.status_code is StatusCode.ERROR
    runs = {linked(run)[0]: run for run in spans("process embedding:actions")}
    assert set(runs) == {id_of(asked), id_of(failed), id_of(sent)}
    assert (
        attributes_of(runs[id_of(asked)])["messaging.message.conversation_id"]
        == attributes_of(asked)["messaging.message.id"]
    )
    published = [span for span in spans("publish embedding.gone") if span.parent]
    assert {span.parent.span_id for span in published if span.parent} <= {id_of(run) for run in runs.values()}
    events = spans("process shop:notifications")
    assert events and {linked(run)[0] for run in events} <= {id_of(span) for span in published}


def test_messages_are_sent_with_traces_by_plain_code_too(bus_factory: AppFactory) -> None:
    app = bus_factory(otel=True)
    svc = app.service("embedding")

    @svc.action("go")
    def go() -> int:
        return 1

    with working(app):
        assert svc.request("embedding.go", wait=True, timeout=PATIENCE) == 1
        svc.send("embedding.go")
        svc.publish("gone", {})
        eventually(lambda: len(spans("process")) == 2, what="both ran")
    assert sorted(linked(run) for run in spans("process")) == sorted(
        [id_of(span)] for span in (only("request"), only("send"))
    )
    assert only("publish embedding.gone").kind is SpanKind.PRODUCER


def test_a_task_in_a_process_runs_within_its_span(app_factory: AppFactory) -> None:
    app = app_factory(otel=True, pool=1)
    task = app.task(executor="process", name="traceparent")(process_tasks.traceparent)
    plain = app_factory(app.name, pool=1)
    job = task.enqueue()
    drained(app)
    run = only("process")
    assert run.context is not None
    assert job.result(timeout=PATIENCE)[:-3] == f"00-{run.context.trace_id:032x}-{run.context.span_id:016x}"
    bare = plain.task(executor="process", name="traceparent")(process_tasks.traceparent).enqueue()
    drained(plain)
    assert bare.result(timeout=PATIENCE) == ""


# Off


def test_switched_off_nothing_is_traced_and_nothing_travels(app: Relevo) -> None:
    @app.task(name="charge")
    async def charge(invoice: int) -> None: ...

    with tracer().start_as_current_span("checkout"):
        charge.enqueue(7)
    (body,) = [job.body for job in app.engine.run(_ready(app))]
    assert b"tp" not in body
    assert app.engine.telemetry is None
    drained(app)
    assert [span.name for span in spans()] == ["checkout"]


def _ready(app: Relevo) -> Call[list[Listed]]:
    return page(app.engine.keys_of("default"), "ready", 0, 10)


def test_an_app_without_telemetry_reads_a_traced_body(traced: Relevo, app_factory: AppFactory) -> None:
    @traced.task(name="charge")
    async def charge(invoice: int) -> int:
        return invoice

    job = charge.enqueue(7)
    (found,) = traced.engine.run(_ready(traced))
    assert read_envelope(found.body).traceparent.startswith("00-")
    plain = app_factory(traced.name)

    @plain.task(name="charge")
    async def charge_plainly(invoice: int) -> int:
        return invoice

    drained(plain)
    assert job.result(timeout=PATIENCE) == 7


def test_a_traceparent_that_is_none_is_no_link(traced: Relevo) -> None:
    """Anybody may have written the body."""

    @traced.task(name="charge")
    async def charge() -> None: ...

    charge.enqueue()
    (found,) = traced.engine.run(_ready(traced))
    jobs = traced.engine.keys_of("default").key("jobs")
    traced.engine.run(Call([b"HSET", jobs, found.id, b'{"t":"charge","tp":"nonsense"}']))
    drained(traced)
    assert not only("process").links


def python(code: str) -> tuple[str, str]:
    """What a program prints on its two streams."""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, env=environment(None), capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout, done.stderr


def test_telemetry_without_its_package_is_logged_and_jobs_run() -> None:
    code = (
        "import sys, logging; sys.modules['opentelemetry'] = None; logging.basicConfig()\n"
        "from relevo import Relevo; app = Relevo('shop', otel=True); print(app.engine.telemetry)"
    )
    out, err = python(code)
    assert out == "None\n"
    assert 'pip install "relevo[otel]"' in err


def test_importing_relevo_imports_no_telemetry() -> None:
    code = (
        "import sys; from relevo import Relevo, metrics; from relevo.worker import Worker; Relevo('shop')\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus'))])"
    )
    assert python(code) == ("[]\n", "")
