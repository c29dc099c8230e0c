"""Messages without a reply: handled, retried at the receiver, and dead-lettered at the end."""

from __future__ import annotations

from typing import Any

import pytest

from relevo import Relevo, State, current_job
from relevo.engine.lists import known_queues
from relevo.engine.message import Message
from relevo.errors import BusError, OptionError, PayloadError
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.eventually import aeventually, eventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import drain, drained, working

QUEUE = "mail:actions"


@pytest.fixture
def sent(bus: Relevo) -> list[Any]:
    """What the service `mail` was given by its action `send`."""
    got: list[Any] = []

    @bus.service("mail").action("send")
    async def send(**data: Any) -> None:
        got.append(data)

    return got


# --- sent, and gone on


def test_a_message_is_handled_after_its_sender_went_on(bus: Relevo, sent: list[Any]) -> None:
    job = bus.service("shop").send("mail.send", {"to": "ana", "pages": 2})
    assert (job.queue, job.state(), sent) == (QUEUE, State.READY, [])
    drained(bus)
    assert sent == [{"to": "ana", "pages": 2}]
    assert job.state() is State.UNKNOWN, "no result is kept"
    assert bus.queue(QUEUE).stats().totals["done"] == 1


async def test_messages_of_one_sender_are_handled_in_their_order(bus: Relevo, sent: list[Any]) -> None:
    shop = bus.service("shop")
    for n in range(50):
        await shop.asend("mail.send", {"n": n})
    await drain(bus, concurrency=1)
    assert [data["n"] for data in sent] == list(range(50))


def test_an_invalid_message_is_refused_and_nothing_is_stored(bus: Relevo) -> None:
    shop = bus.service("shop")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"prioritty": 1}, "did you mean 'priority'"),
        ({"at": "actions"}, "reserved"),
        ({"at": 7}, "context"),
        *(({"retries": retries}, "retries") for retries in (-1, "many")),
        *(({"delay": delay}, "delay") for delay in (-1, "soon")),
        *(({"timeout": timeout}, "timeout") for timeout in (-1, 0, "0s", "never")),
        ({"on_reply": "done", "timeout": 0}, "timeout"),
        *(({name: "half"}, "on_reply") for name in ("on_timeout", "on_progress", "context")),
        ({"sticky": True}, "on_reply"),
        ({"on_reply": "done", "idempotency_key": "k"}, "idempotency_key"),
        *(({"on_reply": action}, "action") for action in ("", "no way")),
        ({"on_reply": "done", "on_timeout": "a b"}, "action"),
    ]
    for options, message in refused:
        with pytest.raises(OptionError, match=message):
            shop.send("mail.send", {}, **options)
    with pytest.raises(PayloadError, match=r"mail\.send"):
        shop.send("mail.send", {"f": float("nan")}, on_reply="sent")
    assert bus.engine.run(known_queues(bus.engine)) == []
    with pytest.raises(PayloadError, match="context"):
        shop.send("mail.send", on_reply="sent", context=float("nan"))
    assert [bus.queue(name).stats().living for name in (QUEUE, "shop:callbacks")] == [0, 0]


def test_a_timeout_of_less_than_a_millisecond_sets_a_deadline(bus: Relevo) -> None:
    job = bus.service("shop").send("mail.send", {}, timeout=0.0004)
    body: bytes = bus.engine.run(Call([b"HGET", bus.engine.keys_of(QUEUE).key("jobs"), job.id]))
    assert b'"x":' in body


# --- retried at the handler, and dead at the end


async def test_a_failing_message_is_retried_and_then_dead_lettered(bus: Relevo) -> None:
    attempts: list[int] = []

    @bus.service("mail").action("send", retries=2, backoff=0)
    async def send(to: str) -> None:
        attempts.append(current_job().attempt)
        raise ConnectionError(f"no way to {to}")

    job = await bus.service("shop").asend("mail.send", {"to": "ana"}, tenant="acme", session="s1")
    async with working(bus):
        await aeventually(lambda: len(attempts) == 3, what="one try and two more")
        (letter,) = await aeventually(bus.dead.alist, what="a dead letter")
    assert attempts == [1, 2, 3]
    assert (letter.id, letter.queue, letter.reason, letter.task) == (job.id, QUEUE, "retries_exhausted", "mail.send")
    info = bus.dead.show(job.id, queue=QUEUE)
    assert [attempt.error for attempt in info.attempts] == ["ConnectionError"] * 3
    assert info.attempts[-1].message == "no way to ana"
    assert (info.kwargs, info.tenant) == ({"to": "ana"}, "acme")


async def test_the_sender_may_choose_the_number_of_retries(bus: Relevo) -> None:
    attempts: list[str] = []

    @bus.service("mail").action("send", retries=5, backoff=0)
    async def send(to: str) -> None:
        attempts.append(to)
        raise ConnectionError

    shop = bus.service("shop")
    await shop.asend("mail.send", {"to": "once"}, retries=0)
    await shop.asend("mail.send", {"to": "twice"}, retries=1)
    async with working(bus):
        await aeventually(lambda: bus.queue(QUEUE).stats().totals.get("dead") == 2, what="both gave up")
    assert sorted(attempts) == ["once", "twice", "twice"]


async def test_messages_that_always_fail_do_not_block_those_behind_them(bus: Relevo) -> None:
    got: list[int] = []

    @bus.service("mail").action("send", retries=1, backoff="1h")
    async def send(n: int) -> None:
        if n < 5:
            raise ValueError("never")
        got.append(n)

    for n in range(20):
        await bus.service("shop").asend("mail.send", {"n": n})
    await drain(bus, concurrency=1)
    assert got == list(range(5, 20))
    stats = bus.queue(QUEUE).stats()
    assert (stats.scheduled, stats.living) == (5, 5)


UNFIT: list[Any] = [{}, {"to": 7}, {"to": "ana", "more": 1}, {"to": None}]


async def test_data_of_the_wrong_type_is_dead_lettered_without_retries(bus: Relevo) -> None:
    ran: list[str] = []

    @bus.service("mail").action("send", retries=3)
    async def send(to: str) -> None:
        ran.append(to)

    for data in UNFIT:
        await bus.service("shop").asend("mail.send", data)
    await drain(bus)
    assert [letter.reason for letter in await bus.dead.alist()] == ["bad_arguments"] * len(UNFIT)
    assert ran == []


async def test_a_retried_dead_letter_keeps_data_and_headers(bus: Relevo) -> None:
    seen: list[tuple[str, Message | None]] = []
    is_broken = True

    @bus.service("mail").action("send", retries=0)
    async def send(to: str) -> None:
        seen.append((to, current_job().message))
        if is_broken:
            raise ConnectionError

    job = await bus.service("shop").asend("mail.send", {"to": "ana"}, tenant="acme", tier="enterprise", session="s1")
    await drain(bus)
    is_broken = False
    assert await bus.dead.aretry([job.id]) == 1
    assert await bus.dead.aretry([job.id]) == 0
    await drain(bus)
    assert [to for to, _ in seen] == ["ana", "ana"]
    first, second = (message for _, message in seen)
    assert first is not None and second is not None
    assert (second.tenant, second.tier, second.session) == ("acme", "enterprise", "s1")
    assert second.correlation_id == first.correlation_id
    assert await bus.dead.alist() == []


async def test_a_message_for_an_unknown_action_waits_for_a_worker_that_has_it(bus_factory: AppFactory) -> None:
    """During a deploy there are old workers and new ones: it is not destroyed."""
    old, new = bus_factory("mail"), bus_factory("mail")
    got: list[str] = []

    @old.service("mail").action("other")
    async def other() -> None: ...

    @new.service("mail").action("send")
    async def send(to: str) -> None:
        got.append(to)

    await old.service("shop").asend("mail.send", {"to": "ana"})
    await drain(old)
    assert (await old.queue(QUEUE).astats()).scheduled == 1
    async with working(new):
        await aeventually(lambda: got == ["ana"], what="the new worker knows it")


async def test_a_failure_handler_of_an_action_is_called(bus: Relevo) -> None:
    failures: list[str] = []

    @bus.task(name="tell_admin")
    async def tell_admin(failure: Any) -> None:
        failures.append(failure["reason"])

    @bus.service("mail").action("send", retries=0, on_failure="tell_admin")
    async def send() -> None:
        raise ConnectionError

    await bus.service("shop").asend("mail.send")
    await drain(bus)
    await drain(bus)
    await bus.queue(QUEUE).aclear()
    assert failures == ["retries_exhausted"]


# --- delays and priorities


async def test_a_delayed_message_is_not_handled_before_its_time(bus: Relevo, sent: list[Any]) -> None:
    shop = bus.service("shop")
    later = await shop.asend("mail.send", {"n": 2}, delay="1h")
    soon = await shop.asend("mail.send", {"n": 1}, delay=0.3)
    assert await later.astate() is State.SCHEDULED
    assert await soon.astate() is State.SCHEDULED
    async with working(bus):
        await aeventually(lambda: sent == [{"n": 1}], what="its time has come")
    assert await later.astate() is State.SCHEDULED
    due = (await later.ainfo()).due_ms or 0
    assert abs(due - (await later.ainfo()).enqueued_ms - 3_600_000) < 60_000
    assert await later.acancel() is True


async def test_the_timeout_of_a_delayed_message_counts_from_when_it_is_due(
    server: Server, bus_factory: AppFactory
) -> None:
    times = Times(server, bus_factory)
    sent: list[int] = []

    @times.app.service("mail").action("send")
    async def send(n: int) -> None:
        sent.append(n)

    await times.app.service("shop").asend("mail.send", {"n": 1}, delay="2h", timeout="1h")
    times.move(2 * HOUR + MINUTE)
    await drain(times.app)
    assert sent == [1]


# --- the same message twice


@pytest.mark.parametrize("fails", [False, True])
async def test_the_same_key_is_the_same_message_after_it_was_handled_or_failed(bus: Relevo, fails: bool) -> None:
    ran: list[int] = []

    @bus.service("mail").action("send", retries=0)
    async def send(n: int) -> None:
        ran.append(n)
        if fails:
            raise ConnectionError

    shop = bus.service("shop")
    first = await shop.asend("mail.send", {"n": 1}, idempotency_key="order-7")
    await drain(bus)
    second = await shop.asend("mail.send", {"n": 2}, idempotency_key="order-7")
    await drain(bus)
    assert (first == second, ran) == (True, [1])


async def test_a_key_is_of_one_sender_one_tenant_and_one_type(bus: Relevo, sent: list[Any]) -> None:
    """Whatever characters they hold."""
    senders = [("shop", "", "k"), ("bank", "", "k"), ("shop", "acme", "k"), ("shop", "umbrella", "k")]
    senders += [("shop", "a", "b:c"), ("shop", "a:b", "c"), ("shop", "", "a:b"), ("shop", "a", "b")]
    for n, (source, tenant, key) in enumerate(senders):
        await bus.service(source).asend("mail.send", {"n": n}, tenant=tenant, idempotency_key=key)
    await bus.service("shop").asend("mail.print", idempotency_key="k")
    assert (await bus.queue(QUEUE).astats()).ready == len(senders) + 1
    await bus.queue(QUEUE).aclear()


async def test_a_key_is_held_for_ten_minutes(server: Server, bus_factory: AppFactory) -> None:
    app = bus_factory()
    await app.service("shop").asend("mail.send", {}, idempotency_key="order-7")
    assert await app.queue(QUEUE).aclear() == 1
    found = server.keys()
    (left,) = (ttl for key, ttl in found if app.settings.prefix in key and ":unique:" in key)
    assert 300 < left <= 600


async def test_a_message_goes_to_the_queue_of_its_context(bus: Relevo) -> None:
    contexts: list[Any] = [None, "default", "tenant_xyz", ["tenant_xyz"], ("tenant_xyz", "session_1")]
    jobs = [await bus.service("shop").asend("mail.send", {}, at=at) for at in contexts]
    assert [job.queue for job in jobs] == [
        *["mail:actions"] * 2,
        *["mail:tenant_xyz:actions"] * 2,
        "mail:tenant_xyz:session_1:actions",
    ]


# --- what messages inherit


async def test_what_a_handler_sends_belongs_to_the_same_operation(bus: Relevo) -> None:
    seen: list[Message] = []
    mail, archive = bus.service("mail"), bus.service("archive")

    def note() -> None:
        message = current_job().message
        assert message is not None
        seen.append(message)

    @mail.action("send")
    async def send(to: str) -> None:
        note()
        await mail.asend("archive.keep", {"to": to})

    @archive.action("keep")
    async def keep(to: str) -> None:
        note()
        await archive.asend("archive.index", {"to": to}, tenant="other", session="s2")

    @archive.action("index")
    def index(to: str) -> None:
        note()

    shop = bus.service("shop")
    about: dict[str, Any] = {"tenant": "acme", "tier": "free", "session": "s1", "conversation": "task-9"}
    job = await shop.asend("mail.send", {"to": "ana"}, traceparent="00-1-2-01", version="2", **about)
    async with working(bus):
        await aeventually(lambda: len(seen) == 3, what="all three were handled")
    first, second, third = seen
    assert (first.id, first.type, first.source, first.intent) == (job.id, "mail.send", "shop", "send")
    assert (first.tenant, first.tier, first.session, first.conversation_id) == ("acme", "free", "s1", "task-9")
    assert (first.causation_id, first.correlation_id, first.version, first.reply_to) == ("", "task-9", "2", "")
    assert (second.source, second.causation_id, second.correlation_id) == ("mail", first.id, "task-9")
    assert (second.tenant, second.tier, second.session, second.conversation_id) == ("acme", "free", "s1", "task-9")
    assert (second.traceparent, second.version) == ("00-1-2-01", "")
    assert (third.source, third.causation_id, third.correlation_id) == ("archive", second.id, "task-9")
    assert (third.tenant, third.session, third.tier) == ("other", "s2", "free")


async def test_messages_that_cause_each_other_in_a_circle_come_to_an_end(bus: Relevo) -> None:
    hops: list[int] = []
    mail = bus.service("mail")

    @mail.action("send", retries=0)
    async def send() -> None:
        hops.append(1)
        await mail.asend("mail.send")

    await bus.service("shop").asend("mail.send")
    async with working(bus):
        (letter,) = await aeventually(bus.dead.alist, what="the last of them is a dead letter")
    assert 30 <= len(hops) <= 40
    assert BusError.__name__ in letter.error and "circle" in letter.error


def test_blocking_code_sends_from_threads_and_handlers(bus: Relevo) -> None:
    got: list[str] = []
    mail = bus.service("mail")

    @mail.action("send")
    def send(to: str) -> None:
        message = current_job().message
        assert message is not None
        got.append(f"{to} {message.tenant}")
        if to == "ana":
            mail.send("mail.send", {"to": "luis"})

    with working(bus):
        bus.service("shop").send("mail.send", {"to": "ana"}, tenant="acme")
        eventually(lambda: len(got) == 2, what="both were handled")
    assert got == ["ana acme", "luis acme"]
