"""Services: actions with typed arguments and answers, and what is known of the workers that serve them."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import math
import uuid
from typing import Any

import msgspec
import pytest

from relevo import Cancel, Relevo, Retry, Snooze, current_job
from relevo.bus.bus import Bus
from relevo.bus.duties import ServiceDuty
from relevo.engine.offers_store import SERVE_MS, Served, offers, present_at, served
from relevo.errors import (
    BusError,
    ConfigurationError,
    NoResponders,
    OptionError,
    PayloadError,
    PayloadTooLarge,
    RemoteError,
    RequestTimeout,
    TargetError,
)
from relevo.store.plan import Call
from relevo.worker import Worker
from tests.answering import Gate, answering, keys, times_out
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.leaks import lasting
from tests.working import working


class Line(msgspec.Struct):
    sku: str
    pieces: int = 1


class Order(msgspec.Struct):
    customer: str
    lines: list[Line]
    due: datetime.date | None = None


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    a: int


class Renamed(msgspec.Struct, rename="camel"):
    first_name: str


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


@dataclasses.dataclass
class Box:
    low: Point
    high: Point
    tags: dict[str, int] = dataclasses.field(default_factory=dict)


async def seen(app: Relevo, queue: str) -> Served:
    of_queue, now_ms = app.engine.keys_of(queue), await app.engine.arun(app.engine.now_ms())
    return served(await app.engine.arun(present_at(of_queue, now_ms)), await app.engine.arun(offers(of_queue)), now_ms)


async def here() -> str:
    return "here"


# --- arguments


async def plainly(cents: int, to: str = "nobody", *, factor: float = 1.0, tags: list[str] | None = None) -> list[Any]:
    return [cents, to, factor, tags]


def in_a_thread(cents: int, to: str = "nobody", *, factor: float = 1.0, tags: list[str] | None = None) -> list[Any]:
    return [cents, to, factor, tags]


async def test_the_data_are_the_arguments_by_name(bus: Relevo) -> None:
    bus.service("a").action("async")(plainly)
    bus.service("a").action("plain")(in_a_thread)
    me = bus.service("me")
    async with answering(bus):
        for type in ("a.async", "a.plain"):
            assert await me.arequest(type, {"cents": 7}) == [7, "nobody", 1.0, None]
            data = {"tags": ["x"], "to": "zoë", "cents": -1, "factor": 2}
            assert await me.arequest(type, data) == [-1, "zoë", 2.0, ["x"]]


BAD_ARGUMENTS: list[tuple[dict[str, Any] | None, str]] = [
    ({}, "cents"),
    (None, "cents"),
    ({"cents": "7"}, "cents"),
    ({"cents": None}, "cents"),
    ({"cents": 7, "tags": [1]}, "tags"),
    ({"cents": 7, "extra": 1}, "extra"),
    ({"CENTS": 7}, "CENTS|cents"),
]


async def test_arguments_that_do_not_fit_are_a_fault_that_names_them(bus: Relevo) -> None:
    bus.service("a").action("b", retries=5)(plainly)
    async with answering(bus):
        for data, names in BAD_ARGUMENTS:
            with pytest.raises(RemoteError, match=names) as caught:
                await bus.service("me").arequest("a.b", data)
            error = caught.value
            assert (error.type, error.reason, error.retryable) == ("PayloadError", "bad_arguments", False), data
            assert str(error).startswith("a.b failed: ")
    assert bus.dead.list() == [], "the caller has the error: nothing is kept"


async def test_one_struct_takes_all_the_data(bus: Relevo) -> None:
    @bus.service("a").action("b")
    async def place(order: Order) -> dict[str, Any]:
        assert isinstance(order, Order)
        assert all(isinstance(line, Line) for line in order.lines)
        return {"who": order.customer, "pieces": sum(line.pieces for line in order.lines), "due": str(order.due)}

    me = bus.service("me")
    async with answering(bus):
        given = Order("zoë", [Line("a", 2), Line("b")], datetime.date(2026, 2, 1))
        for data in (given, msgspec.to_builtins(given)):
            assert await me.arequest("a.b", data) == {"who": "zoë", "pieces": 3, "due": "2026-02-01"}
        with pytest.raises(RemoteError, match="pieces") as caught:
            await me.arequest("a.b", {"customer": "x", "lines": [{"sku": "a", "pieces": "many"}]})
        assert caught.value.reason == "bad_arguments"
        with pytest.raises(RemoteError, match="customer"):
            await me.arequest("a.b")


async def test_structs_keep_their_own_rules(bus: Relevo) -> None:
    svc = bus.service("a")

    @svc.action("strict")
    async def strict(given: Strict) -> int:
        return given.a

    @svc.action("renamed")
    async def renamed(given: Renamed) -> str:
        return given.first_name

    @svc.action("several")
    async def several(line: Line, point: Point, colour: Colour = Colour.RED) -> list[Any]:
        return [line.sku, point.x, colour.value]

    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.strict", {"a": 1}) == 1
        with pytest.raises(RemoteError, match="extra"):
            await me.arequest("a.strict", {"a": 1, "extra": 2})
        assert await me.arequest("a.renamed", Renamed("zoë")) == "zoë"
        assert await me.arequest("a.renamed", {"firstName": "zoë"}) == "zoë"
        assert await me.arequest("a.several", {"line": Line("s"), "point": Point(1.5)}) == ["s", 1.5, "red"]


async def test_an_action_may_take_any_arguments(bus: Relevo) -> None:
    svc = bus.service("a")

    @svc.action("any")
    async def anything(**data: Any) -> dict[str, Any]:
        return data

    @svc.action("none")
    async def nothing() -> str:
        return "ok"

    @svc.action("untyped")
    async def untyped(a, b=2):  # type: ignore[no-untyped-def]
        return [a, b]

    me = bus.service("me")
    async with answering(bus):
        for data in ({"x": [1, {"y": None}], "self": 1, "class": 2}, {}):
            assert await me.arequest("a.any", data) == data
        assert await me.arequest("a.none") == await me.arequest("a.none", {}) == "ok"
        with pytest.raises(RemoteError) as caught:
            await me.arequest("a.none", {"x": 1})
        assert caught.value.reason == "bad_arguments"
        assert await me.arequest("a.untyped", {"a": {"n": 1}}) == [{"n": 1}, 2]


async def test_data_of_any_size_up_to_the_limit_arrives(bus: Relevo) -> None:
    """Above `claim_check` (64 KiB) it travels beside the message."""

    @bus.service("a").action("b")
    async def length(text: str, order: Order | None = None) -> int:
        assert order is None or order.lines[0].pieces == 1
        return len(text)

    async with answering(bus):
        for size in (10, 70_000, 900_000):
            data = {"text": "é" * (size // 2), "order": Order("x", [Line("a")])}
            assert await bus.service("me").arequest("a.b", data) == size // 2
    assert not [key for key in await keys(bus) if "carried" in key]


async def test_one_struct_takes_data_that_travels_beside_the_message(bus: Relevo) -> None:
    @bus.service("a").action("b")
    async def place(order: Order) -> int:
        return len(order.lines)

    async with answering(bus):
        assert await bus.service("me").arequest("a.b", Order("x", [Line(f"sku{n}") for n in range(5_000)])) == 5_000


async def test_data_that_is_too_large_or_cannot_be_encoded_is_refused_before_it_is_sent(
    bus_factory: AppFactory,
) -> None:
    app = bus_factory(max_payload=1_000)
    bad: list[Any] = [[1], "x", {"n": math.nan}, {"n": {None: 1}}, {"text": "x" * 1_000}]
    for data in bad:
        error = PayloadTooLarge if data == bad[-1] else PayloadError
        with pytest.raises(error, match=r"a\.b: "):
            await app.service("me").arequest("a.b", data)
        with pytest.raises(error, match=r"a\.b: "):
            app.service("me").request("a.b", data)
    assert await keys(app) == []


# --- answers


async def test_every_json_answer_arrives(bus: Relevo) -> None:
    values: list[Any] = [None, 0, "", [], {}, False, 1.5, "é\x00\U0001f600", [{"a": [1]}], 2**70]

    @bus.service("a").action("b")
    async def give(n: int) -> Any:
        return values[n]

    async with answering(bus):
        for n, value in enumerate(values):
            answer = await bus.service("me").arequest("a.b", {"n": n})
            assert (type(answer), answer) == (type(value), value)


async def test_an_answer_is_read_as_the_type_that_was_named(bus: Relevo) -> None:
    svc = bus.service("a")

    @svc.action("order")
    async def order() -> Order:
        return Order("zoë", [Line("a", 2)], datetime.date(2026, 2, 1))

    @svc.action("box")
    def box() -> Box:
        return Box(Point(0), Point(1))

    @svc.action("odd")
    async def odd() -> set[int]:
        return {7}

    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.order", returns=Order) == Order("zoë", [Line("a", 2)], datetime.date(2026, 2, 1))
        assert await me.arequest("a.box", returns=Box) == Box(Point(0), Point(1))
        assert await me.arequest("a.odd", returns=set[int]) == {7}
        assert (await me.arequest("a.order"))["due"] == "2026-02-01", "without a type, plain JSON"
        with pytest.raises(PayloadError, match=r"a\.order: the answer is not <class 'int'>"):
            await me.arequest("a.order", returns=int)
        with pytest.raises(PayloadError, match="the answer is not"):
            await me.arequest("a.order", returns=Box)


@pytest.mark.parametrize("value", [math.nan, object(), "x" * 2_000, {1: "a", "1": "b"}])
async def test_an_answer_that_cannot_be_encoded_is_a_fault(bus_factory: AppFactory, value: Any) -> None:
    app = bus_factory(max_payload=1_000)
    ran = []

    @app.service("a").action("b", retries=5)
    async def give() -> Any:
        ran.append(1)
        return value

    async with answering(app):
        with pytest.raises(RemoteError, match=r"a\.b gave no answer") as caught:
            await app.service("me").arequest("a.b")
    error = caught.value
    assert (error.type, error.reason, error.retryable) == ("PayloadError", "result_not_kept", False)
    assert ran == [1]


async def test_many_large_answers_at_once_all_arrive(bus: Relevo) -> None:
    """60 MB: more than the server keeps for a listener that does not read."""

    @bus.service("a").action("b")
    async def give(n: int) -> str:
        return f"{n}:" + "x" * 1_000_000

    me = bus.service("me")
    async with answering(bus):
        answers = await asyncio.gather(*(me.arequest("a.b", {"n": n}, timeout=PATIENCE) for n in range(60)))
    assert [answer.partition(":")[0] for answer in answers] == [str(n) for n in range(60)]


# --- faults


class OutOfStock(Exception):
    """An error of the user's."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS: list[tuple[BaseException, str, str]] = [
    (ValueError("the card has expired"), "ValueError", "the card has expired"),
    (KeyError("k"), "KeyError", "'k'"),
    (OutOfStock("none left"), "tests.system.test_services.OutOfStock", "none left"),
    (Wordless(), "tests.system.test_services.Wordless", "could not be had"),
    (SystemExit(3), "SystemExit", "3"),
    (KeyboardInterrupt(), "KeyboardInterrupt", ""),
    (RuntimeError("\ud800 é"), "RuntimeError", "é"),
    (ValueError("x" * 100_000), "ValueError", "xxx"),
    (RemoteError("of another", type="X"), "relevo.errors.RemoteError", "of another"),
    (asyncio.CancelledError("by itself"), "asyncio.exceptions.CancelledError", "by itself"),
]


@pytest.mark.parametrize("executor", ["loop", "thread"])
async def test_an_error_comes_back_with_its_type_and_message(bus: Relevo, executor: str) -> None:
    async def on_the_loop(n: int) -> None:
        raise ERRORS[n][0]

    def in_thread(n: int) -> None:
        raise ERRORS[n][0]

    handler: Any = on_the_loop if executor == "loop" else in_thread
    bus.service("a").action("b")(handler)
    async with answering(bus):
        for n, (_, type, message) in enumerate(ERRORS):
            with pytest.raises(RemoteError, match=r"^a\.b failed: ") as caught:
                await bus.service("me").arequest("a.b", {"n": n})
            error = caught.value
            assert error.type == type
            assert message in str(error)
            assert len(str(error)) < 3_000
            assert (error.reason, error.retryable, error.traceback) == ("retries_exhausted", True, ""), type
    assert bus.dead.list() == []


async def test_a_request_is_not_retried_even_if_its_action_has_retries(bus: Relevo) -> None:
    ran = []

    @bus.service("a").action("b", retries=10, backoff=0.01)
    async def fail() -> None:
        ran.append(current_job().attempt)
        raise ValueError("no")

    async with answering(bus):
        with pytest.raises(RemoteError):
            await bus.service("me").arequest("a.b")
    assert ran == [1]


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("executor", ["loop", "thread"])
async def test_a_fault_has_a_traceback_only_if_the_responder_allows_it(
    bus_factory: AppFactory, allowed: bool, executor: str
) -> None:
    app, asker = bus_factory(remote_tracebacks=allowed), bus_factory(remote_tracebacks=not allowed)

    def in_a_thread() -> None:
        secret_of_ours = 1 / 0
        print(secret_of_ours)

    async def on_the_loop() -> None:
        in_a_thread()

    handler: Any = on_the_loop if executor == "loop" else in_a_thread
    app.service("a").action("b")(handler)
    async with answering(app):
        with pytest.raises(RemoteError, match="division by zero") as caught:
            await asker.service("me").arequest("a.b")
    await asker.aclose()
    assert ("secret_of_ours" in caught.value.traceback) is allowed
    assert bool(caught.value.traceback) is allowed


async def test_an_action_beyond_its_time_limit_is_a_fault(bus: Relevo) -> None:
    @bus.service("a").action("b", timeout=0.2)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with answering(bus):
        with pytest.raises(RemoteError, match=r"took longer than 0\.2 s") as caught:
            await bus.service("me").arequest("a.b", timeout=PATIENCE)
    assert (caught.value.type, caught.value.retryable) == ("TimeoutError", True)


@pytest.mark.parametrize("verdict", [Retry("the printer is warming up", delay=0.01), Cancel("the order was withdrawn")])
async def test_retry_and_cancel_are_faults_within_a_request(bus: Relevo, verdict: Retry | Cancel) -> None:
    @bus.service("a").action("b", retries=10)
    async def decide() -> None:
        raise verdict

    async with answering(bus):
        with pytest.raises(RemoteError, match=str(verdict)) as caught:
            await bus.service("me").arequest("a.b", timeout=PATIENCE)
    assert caught.value.retryable is isinstance(verdict, Retry)


async def test_a_snoozed_request_runs_again_before_its_deadline(bus: Relevo) -> None:
    ran = []

    @bus.service("a").action("b")
    async def later(by: float) -> int:
        ran.append(by)
        if len(ran) == 1:
            raise Snooze(by)
        return len(ran)

    async with answering(bus):
        assert await bus.service("me").arequest("a.b", {"by": 0.05}, timeout=PATIENCE) == 2
        ran.clear()
        me = bus.service("me")
        await times_out(lambda timeout: me.arequest("a.b", {"by": 3600.0}, timeout=timeout), once=lambda: ran)
        await aeventually(lambda: bus.queue("a:actions").stats().living == 0)
    assert len(ran) == 1


async def test_a_request_cancelled_by_an_operator_is_a_fault(bus: Relevo) -> None:
    started = asyncio.Event()

    @bus.service("a").action("b")
    async def wait() -> None:
        started.set()
        await asyncio.Event().wait()

    async with answering(bus):
        asked = asyncio.create_task(bus.service("me").arequest("a.b", timeout=PATIENCE))
        await asyncio.wait_for(started.wait(), PATIENCE)
        (running,) = await bus.queue("a:actions").ajobs(state="running")
        await (await bus.ajob(running.id, queue="a:actions")).acancel()
        with pytest.raises(BusError, match="cancelled"):
            await asked


# --- no worker


async def test_without_a_worker_a_request_fails_and_nothing_is_written(bus: Relevo) -> None:
    me = bus.service("me")
    for _ in range(3):
        with pytest.raises(NoResponders, match=r"no worker serves a\.b.*a:actions.*wait=True"):
            await me.arequest("a.b", {"n": 1}, conversation="t1", tenant="acme", timeout=60)
        with pytest.raises(NoResponders):
            await asyncio.to_thread(me.request, "a.b", timeout=60)
    assert not [key for key in lasting(await keys(bus)) if "a:actions" in key]


# Large data is stored before it is known whether a worker serves the action. If it stayed, repeated requests to a
# service that is down would fill the server.
async def test_a_request_without_a_worker_leaves_no_data_behind(bus: Relevo) -> None:
    for _ in range(3):
        with pytest.raises(NoResponders):
            await bus.service("me").arequest("a.b", {"text": "x" * 500_000})
    assert not [key for key in await keys(bus) if "carried" in key]


async def test_an_action_that_the_worker_does_not_have_has_no_responders(bus: Relevo) -> None:
    bus.service("a").action("b")(here)
    async with answering(bus):
        for type in ("a.c", "a.b.c", "a.B", "x.b"):
            with pytest.raises(NoResponders, match=f"no worker serves {type}".replace(".", r"\.")):
                await bus.service("me").arequest(type, timeout=60)
        assert await bus.service("me").arequest("a.b") == "here"


async def test_a_worker_of_other_queues_serves_no_service(bus: Relevo) -> None:
    bus.service("a").action("b")(here)
    async with working(bus, queues=["default"]):
        with pytest.raises(NoResponders):
            await bus.service("me").arequest("a.b", timeout=60)


async def test_a_service_is_available_exactly_while_its_worker_runs(bus: Relevo) -> None:
    bus.service("a").action("b")(here)
    me = bus.service("me")
    for _ in range(3):
        async with answering(bus):
            assert await me.arequest("a.b", timeout=PATIENCE) == "here"
        with pytest.raises(NoResponders):
            await me.arequest("a.b", timeout=PATIENCE)


# It takes no more messages, and may need its whole grace time for its running ones.
async def test_a_stopping_worker_gets_no_more_requests(bus: Relevo) -> None:
    gate = Gate(bus)
    me = bus.service("me")
    async with answering(bus) as worker:
        asked = asyncio.create_task(me.arequest("a.b", {"n": 1}, timeout=PATIENCE))
        await gate.reached(1)
        worker.stop()
        await aeventually(lambda: worker.is_stopping)
        with pytest.raises(NoResponders):
            await me.arequest("a.b", {"n": 2}, timeout=PATIENCE)
        gate.open()
        assert await asked == 1, "running requests are finished"


async def test_a_killed_worker_is_no_responder_after_its_lease(bus_factory: AppFactory) -> None:
    """Stands for a killed process, of which only its keys are left."""
    app = bus_factory(_clock_key=f"relevo-test-clock-{uuid.uuid4().hex}")

    app.service("a").action("b")(here)
    me = app.service("me")
    written = [app.engine.keys_of("a:actions").key(name) for name in ("instances", "offers")]
    async with answering(app):
        kept: list[bytes] = [await app.engine.arun(Call([b"DUMP", key])) for key in written]
        assert await me.arequest("a.b", timeout=PATIENCE) == "here"
    for key, text in zip(written, kept, strict=True):  # as if it had not stopped cleanly
        await app.engine.arun(Call([b"RESTORE", key, 600_000, text, b"REPLACE"]))
    with pytest.raises(RequestTimeout):
        await me.arequest("a.b", timeout=0.1)
    await app.engine.arun(Call([b"SET", app.engine._clock_key.encode(), SERVE_MS + 1, b"EX", 600]))
    with pytest.raises(NoResponders):
        await me.arequest("a.b", timeout=PATIENCE)
    await app.aclose()


async def test_a_worker_announces_its_services_repeatedly(bus: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a server that lost its data knows its workers again."""
    monkeypatch.setattr(ServiceDuty, "interval", 0.05)

    bus.service("a").action("b")(here)
    async with answering(bus):
        await bus.engine.arun(Call([b"DEL", bus.engine.keys_of("a:actions").key("instances")]))
        await bus.engine.arun(Call([b"DEL", bus.engine.keys_of("a:actions").key("offers")]))
        await aeventually(lambda: bus.service("me").arequest("a.b", timeout=PATIENCE), errors=(NoResponders,))


# --- what is known of services


async def test_what_a_service_offers_is_described(bus: Relevo) -> None:
    svc = bus.service("a")

    @svc.action("place")
    async def place(order: Order) -> int:
        """Place an order.

        With more words.
        """
        return 7

    @svc.action("charge")
    def charge(cents: int, to: str = "nobody", **more: Any) -> list[Line]:
        return []

    async with answering(bus) as worker:
        found = await seen(bus, svc.queue)
        assert [one.id for one in found.instances] == [worker.id]
        assert found.missing == {}
        assert sorted(found.actions) == ["charge", "place"]
        described = found.actions["place"]
        assert described["about"] == "Place an order."
        assert described["gives"] == {"type": "integer"}
        order = described["takes"]["$defs"]["Order"]
        assert sorted(order["properties"]) == ["customer", "due", "lines"]
        assert order["required"] == ["customer", "lines"]
        takes = found.actions["charge"]["takes"]
        assert sorted(takes["properties"]) == ["cents", "to"]
        assert takes["required"] == ["cents"]
        callbacks = await seen(bus, svc.callbacks)
        assert [one.id for one in callbacks.instances] == [worker.id]
    found = await seen(bus, svc.queue)
    assert (found.instances, found.actions, sorted(found.missing)) == ((), {}, ["charge", "place"])


async def test_an_action_whose_types_cannot_be_described_is_still_served(bus: Relevo) -> None:
    class Opaque:
        pass

    @bus.service("a").action("b")
    async def odd(a: Any = None, b: "Nowhere" = None) -> "Opaque":  # type: ignore[name-defined]  # noqa: F821, UP037
        return 7  # type: ignore[return-value]

    async with answering(bus):
        assert (await seen(bus, "a:actions")).actions["b"]["gives"] == {}
        assert await bus.service("me").arequest("a.b", {"a": 1}) == 7


# --- contexts


async def test_a_context_is_a_queue_of_its_own(bus: Relevo, bus_factory: AppFactory) -> None:
    own = bus_factory()

    @bus.service("a").action("b")
    async def common() -> str:
        return "common"

    @own.service("a", context="tenant_xyz").action("b")
    async def apart() -> str:
        return "tenant_xyz"

    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.b") == "common"
        with pytest.raises(NoResponders, match="a:tenant_xyz:actions"):
            await me.arequest("a.b", at="tenant_xyz")
        async with answering(own):
            assert await me.arequest("a.b", at="tenant_xyz") == "tenant_xyz"
            assert await me.arequest("a.b", at=("tenant_xyz",)) == "tenant_xyz"
            assert await me.arequest("a.b") == "common"
            with pytest.raises(NoResponders):
                await me.arequest("a.b", at=("tenant_xyz", "session_1"))
            # an omitted context and `default` are the same queue
            assert await me.arequest("a.b", at="default") == "common"


async def test_one_app_serves_a_service_in_several_contexts(bus: Relevo) -> None:
    for context in (None, "tenant_a", ("tenant_a", "session_1")):

        @bus.service("a", context=context).action("b")
        async def where() -> str:
            return current_job().queue

    me = bus.service("me")
    async with answering(bus):
        assert await me.arequest("a.b") == "a:actions"
        assert await me.arequest("a.b", at="tenant_a") == "a:tenant_a:actions"
        assert await me.arequest("a.b", at=["tenant_a", "session_1"]) == "a:tenant_a:session_1:actions"


async def test_services_of_another_env_or_prefix_are_not_found(bus: Relevo, bus_factory: AppFactory) -> None:
    """Environments on one server do not hear each other."""
    elsewhere = bus_factory(env="staging")

    bus.service("a").action("b")(here)
    async with answering(bus):
        with pytest.raises(NoResponders):
            await elsewhere.service("me").arequest("a.b")
    await elsewhere.aclose()


async def test_an_app_that_is_bound_to_other_names_asks_there(bus_factory: AppFactory) -> None:
    asker, here, there = bus_factory("asker"), bus_factory(), bus_factory(env="staging")
    for app in (here, there):

        @app.service("a").action("b")
        async def where() -> str:
            message = current_job().message
            assert message is not None
            return message.reply_to

    async with answering(here), answering(there):
        for env in ("test", "staging", "test"):
            with asker.engine.rebound(env=env):
                for _ in range(3):
                    reply_to = await asker.service("me").arequest("a.b", timeout=PATIENCE)
                    assert reply_to == f"{here.settings.prefix}:{env}:me:responses:{asker.engine.part(Bus).instance}"
                await asker.aclose()


# --- registering


def test_an_invalid_service_name_is_refused(bus: Relevo) -> None:
    names: list[Any] = ["", "a.b", "a b", "é", "a:b", "{a}", "a" * 101, None, 7, "-a", "a\n", "*"]
    for name in names:
        with pytest.raises(OptionError, match="a service's name"):
            bus.service(name)


def test_an_invalid_action_context_or_type_is_refused(bus: Relevo) -> None:
    names: list[Any] = ["", "a b", "é", "a:b", "a..b", ".a", "a.", "a" * 101, 7, b"a", "@a", "*", "a\n"]
    for name in names:
        with pytest.raises(OptionError):
            bus.service("a").action(name)(plainly)
    contexts: list[Any] = ["actions", "", ("a", ""), 7, ["a", None], "a" * 1_000]
    for context in contexts:
        with pytest.raises(OptionError):
            bus.service("a", context=context)
        with pytest.raises(OptionError):
            bus.service("me").request("a.b", at=context)
    types: list[Any] = ["", "a", ".b", "a.", "a b.c", "é.b", None, 7, b"a.b", "a:b.c", "a.b\n", ["a.b"], {}]
    for type in types:
        with pytest.raises(OptionError, match=r"service\.action"):
            bus.service("me").request(type)
        with pytest.raises(OptionError, match=r"service\.action"):
            bus.service("me").send(type)


def test_an_invalid_option_of_an_action_is_refused(bus: Relevo) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"queue": "x"}, "queue"),
        ({"retires": 3}, "retries"),
        ({"name": "x"}, "name"),
        ({"delay": 3}, "delay"),
        ({"retries": -1}, "retries"),
        ({"executor": "moon"}, "executor"),
    ]
    for options, named in refused:
        with pytest.raises(OptionError, match=named):
            bus.service("a").action("b", **options)(plainly)
    assert bus.service("a").actions == {}


def test_only_functions_are_actions(bus: Relevo) -> None:
    others: list[Any] = [7, None, object(), plainly.__class__, Line]
    for func in others:
        with pytest.raises((TargetError, OptionError)):
            bus.service("a").action("b")(func)


def test_an_action_has_the_name_of_its_function_by_default(bus: Relevo) -> None:
    svc = bus.service("a")
    svc.action()(plainly)
    svc.action("document.parse")(plainly)
    assert sorted(svc.actions) == ["document.parse", "plainly"]
    with pytest.raises(OptionError, match="an action is named"):
        svc.action(plainly)  # type: ignore[arg-type]


def test_an_action_has_one_handler(bus: Relevo) -> None:
    svc = bus.service("a")
    svc.action("b")(plainly)
    svc.action("b")(plainly)  # imported twice
    with pytest.raises(ConfigurationError, match=r"two handlers for 'a\.b'"):
        svc.action("b")(in_a_thread)

    async def of_another_module() -> None: ...

    of_another_module.__module__, of_another_module.__qualname__ = "shop.orders", plainly.__qualname__
    with pytest.raises(ConfigurationError, match=r"two handlers for 'a\.b'"):
        svc.action("b")(of_another_module)


async def test_an_invalid_option_of_a_request_is_refused_by_name(bus: Relevo) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tennant": "x"}, "did you mean 'tenant'|tenant"),
        *(({"tenant": tenant}, "tenant") for tenant in (7, "a\nb", "x" * 201)),
        *(({name: b"x"}, name) for name in ("session", "conversation", "correlation_id", "traceparent", "version")),
        *(({"priority": priority}, "priority") for priority in (2_000, "high", True)),
        *(({"idempotency_key": key}, "idempotency_key") for key in ("", 7)),
        *(({"timeout": timeout}, "timeout") for timeout in (0, -1, "5", math.nan, math.inf, None, "1000000d")),
        ({"tier": "platinum"}, "tier"),
        ({"delay": 5}, "delay"),
    ]
    for about, named in refused:
        with pytest.raises(OptionError, match=named):
            await bus.service("me").arequest("a.b", **about)
        with pytest.raises(OptionError, match=named):
            bus.service("me").request("a.b", **about)
    assert await keys(bus) == []


def test_a_service_is_shown_by_its_address(bus: Relevo) -> None:
    prefix = bus.settings.prefix
    assert repr(bus.service("a", context="tenant_1")) == f"<Service {prefix}:test:a:tenant_1:actions>"


def test_a_worker_needs_nothing_to_serve_what_the_app_serves(bus: Relevo) -> None:
    bus.service("a").action("b")(plainly)
    bus.service("me")  # only asks

    async def queues() -> tuple[str, ...]:
        return Worker(bus).queues

    assert asyncio.run(queues()) == ("default", "a:actions", "a:callbacks")
