"""Safety of the bus: addresses, signatures, forged messages and large data.

A process that can write to the server can put anything into a queue. A forged message runs nothing and notifies no
process; it is dead-lettered with a reason, and the worker goes on.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec
import pytest
import redis

from relevo import Cancel, Relevo, State, current_job
from relevo.bus.callbacks import sending
from relevo.bus.message_store import Place, promise, send
from relevo.bus.service import Service
from relevo.engine.edges import Edge
from relevo.engine.message import Reply
from relevo.errors import NoResponders, RemoteError, RequestTimeout
from relevo.store.plan import Call
from tests.answering import answering, times_out
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.leaks import leaks
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times
from tests.working import drain, working

ACTIONS, CALLBACKS = "billing:actions", "shop:callbacks"
OLD, NEW = "old:0123456789abcdef", "new:fedcba9876543210"
CALLED: list[str] = []
Heard = Callable[[], list[bytes]]


def never_call(*args: Any, **kwargs: Any) -> None:
    """A plain function of a module that an app may allow."""
    CALLED.append("never_call")


class Site:
    """A service `billing`, what it ran, and a service `shop` that waits for callbacks."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.ran: list[Any] = []
        self.calls: list[Reply[Any]] = []
        self.billing, self.shop = app.service("billing"), app.service("shop")

        @self.billing.action("charge", retries=0)
        async def charge(cents: int = 0, text: str = "") -> int:
            self.ran.append(cents or len(text))
            if cents < 0:
                raise ValueError("below zero")
            return cents

        @self.billing.action("report")
        async def report() -> bool:
            self.ran.append("report")
            return await self.billing.areport("half")

        @self.shop.action("charged")
        async def charged(reply: Reply[Any]) -> None:
            self.calls.append(reply)

        @self.shop.action("half")
        async def half(reply: Reply[Any]) -> None:
            self.calls.append(reply)

    @property
    def statuses(self) -> list[str]:
        return [reply.status for reply in self.calls]

    def forge(self, body: dict[str, Any] | bytes, *, queue: str = ACTIONS, waiter: str = "", id: str = "") -> str:
        """Put any body into a queue, as a process that can write to the server."""
        id = id or self.app.engine.new_id()
        raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
        assert raw.endswith(b"}")
        call = send(self.app.engine.keys_of(queue), id, raw[:-1], Place(100), lease_ms=12_000, waiter=waiter)
        self.app.engine.run(self.app.engine.list_queue(queue))
        assert self.app.engine.run(call)[0] == "stored"
        return id

    def promise(self, interim: bytes = b"") -> str:
        """A callback of the shop that waits for a reply."""
        id = self.app.engine.new_id()
        body = b'{"t":"shop.charged","i":"reply","m":{"o":"callback"},"a":[{}]}'
        keys = self.app.engine.keys_of(CALLBACKS)
        self.app.engine.run(
            promise(keys, CALLBACKS, id, Place(100), body, timeout_ms=60_000, failure_ms=60_000, interim=interim)
        )
        return id

    async def check_refused(self, forged: Collection[str], reason: str, queue: str = ACTIONS) -> None:
        """The forged messages are dead letters, nothing ran, no message was sent, and the next one is handled."""
        await drain(self.app)
        assert (self.ran, self.calls) == ([], [])
        found = {letter.id: letter.reason for letter in await self.app.dead.alist(queue=queue, limit=100)}
        assert found == dict.fromkeys(forged, reason)
        for name in (queue, CALLBACKS):
            texts: list[bytes] = await self.app.engine.arun(
                Call([b"HKEYS", self.app.engine.keys_of(name).key("letters")])
            )
            assert [text for text in texts if not text.endswith(b".late")] == []
        assert not await self.app.engine.arun(Call([b"EXISTS", self.app.engine.keys_of(queue).key("waiters")]))
        await self.shop.asend("billing.charge", {"cents": 7})
        await drain(self.app)
        assert self.ran == [7], "the worker goes on"


@pytest.fixture
def site(bus: Relevo) -> Site:
    return Site(bus)


@pytest.fixture
def signed(bus_factory: AppFactory) -> Site:
    """The same with signatures."""
    return Site(bus_factory(signing_keys=[OLD]))


@pytest.fixture
def heard(server: Server) -> Iterator[Heard]:
    """Gives what was published on the channel `victim` since the last call."""
    with redis.Redis.from_url(server.url, protocol=2) as client, client.pubsub() as sub:
        sub.subscribe("victim")
        sub.parse_response()

        def look() -> list[bytes]:
            server.command("PUBLISH", "victim", "mark")  # everything before this was published before
            published = iter(lambda: bytes(sub.parse_response()[-1]), b"mark")
            return list(published)

        yield look


def address(app: Relevo, rest: str = "shop:callbacks", *, prefix: str = "", env: str = "") -> str:
    return f"{prefix or app.settings.prefix}:{env or app.settings.env}:{rest}"


# --- where an answer goes


WRONG: dict[str, Callable[[Relevo], str]] = {
    "another prefix": lambda app: address(app, prefix="evil"),
    "another env": lambda app: address(app, env="prod"),
    "prefix and env in the wrong order": lambda app: f"{app.settings.env}:{app.settings.prefix}:shop:callbacks",
    "actions": lambda app: address(app, "shop:actions"),
    "notifications": lambda app: address(app, "shop:notifications:x"),
    "dead letters": lambda app: address(app, "shop:dead_letter:callbacks"),
    "dead letters by their other name": lambda app: address(app, "shop:callbacks:dead_letter"),
    "another owner": lambda app: address(app, "bank:callbacks"),
    "another owner with the right context": lambda app: address(app, "bank:shop:callbacks"),
    "no owner": lambda app: f"{app.settings.prefix}:{app.settings.env}:callbacks",
    "a word": lambda app: "x",
    "a broken escape": lambda app: address(app, "shop%zz:callbacks"),
    "a line": lambda app: address(app) + "\n",
    "far too long": lambda app: address(app, "shop:" + "x" * 5000 + ":callbacks"),
    "an encoded kind": lambda app: address(app, "shop:%63allbacks"),
}


async def test_a_message_with_a_wrong_reply_address_is_dead_lettered_and_notifies_no_process(
    site: Site, heard: Heard
) -> None:
    forged: dict[str, str] = {}
    for wrong, intent in itertools.product(WRONG, ("send", "request")):
        callback = site.promise()
        headers = {"o": intent, "f": "shop", "r": WRONG[wrong](site.app), "b": callback}
        waiter = f"victim {Edge(callback, CALLBACKS, 'b', 0)}"
        id = site.forge({"t": "billing.charge", "m": headers, "k": {"cents": 5}}, waiter=waiter)
        forged[id] = f"{wrong}, {intent}"
    await site.check_refused(forged, "bad_reply_to")
    assert heard() == []
    assert site.app.queue(CALLBACKS).stats().waiting == len(forged), "no callback was settled"
    assert all("reply_to" in letter.error for letter in await site.app.dead.alist(limit=100))


FOREIGN = [("request", "shop", "shop:callbacks"), ("send", "shop", "shop:responses:x")]
FOREIGN += [("send", source, "shop:callbacks") for source in ("", "bank", "Shop", "shop ", "shop.x")]


async def test_a_reply_address_must_be_of_the_intent_and_belong_to_the_sender(site: Site) -> None:
    forged = []
    for intent, source, rest in FOREIGN:
        headers = {"o": intent, "f": source, "r": address(site.app, rest)}
        forged.append(site.forge({"t": "billing.charge", "m": headers, "k": {"cents": 5}}))
    await site.check_refused(forged, "bad_reply_to")


async def test_reply_addresses_of_the_sender_are_accepted(site: Site) -> None:
    """Also with a context, and with a detail at the end."""
    for rest in ("shop:callbacks", "shop:acme:s1:callbacks", "shop:callbacks:billing:task_9"):
        headers = {"o": "send", "f": "shop", "r": address(site.app, rest)}
        site.forge({"t": "billing.charge", "m": headers, "k": {"cents": 5}})
    await drain(site.app)
    assert site.ran == [5, 5, 5]


@pytest.mark.parametrize("shape", ["no prefix", "no env", "neither"])
async def test_reply_addresses_work_without_prefix_or_env(bus_factory: AppFactory, shape: str) -> None:
    """The service's name keeps the test apart where the prefix does not."""
    named = {"prefix": "" if shape != "no env" else None, "env": "" if shape != "no prefix" else None}
    app = bus_factory(**{name: value for name, value in named.items() if value is not None})
    own = f"b{app.engine.new_id()}"
    billing, shop, got = app.service(f"{own}-billing"), app.service(f"{own}-shop"), list[str]()

    @billing.action("charge")
    async def charge() -> int:
        return 1

    @shop.action("charged")
    async def charged(reply: Reply[int]) -> None:
        got.append(reply.status)

    await shop.asend(f"{own}-billing.charge", on_reply="charged")
    await drain(app, queues=[billing.queue, shop.callbacks])
    await drain(app, queues=[billing.queue, shop.callbacks])
    assert got == ["done"]


@pytest.mark.parametrize("how", ["expired", "cancelled"])
@pytest.mark.parametrize("forged", ["address", "signature"])
async def test_a_forged_message_that_expires_or_is_cancelled_notifies_no_process(
    bus_factory: AppFactory, heard: Heard, how: str, forged: str
) -> None:
    site = Site(bus_factory(signing_keys=[OLD] if forged == "signature" else []))
    callback = site.promise()
    waiter = f"victim {Edge(callback, CALLBACKS, 'b', 0)}"
    headers = {"o": "send", "f": "shop", "r": address(site.app, "bank:callbacks")} if forged == "address" else {}
    body: dict[str, Any] = {"t": "billing.charge", "m": headers, "k": {"cents": 5}}
    if how == "expired":
        body["x"] = 1
    id = site.forge(body, waiter=waiter)
    if how == "cancelled":  # it was cancelled while a worker that died had it
        keys = site.app.engine.keys_of(ACTIONS)
        site.app.engine.run(Call([b"HSET", keys.key("claims"), id, "1 none 0 c"]))
    await drain(site.app)
    assert heard() == []
    assert (site.ran, site.app.queue(CALLBACKS).stats().waiting) == ([], 1)


@pytest.mark.parametrize("intent", ["event", "callback"])
async def test_the_reply_address_is_checked_for_every_intent(site: Site, intent: str) -> None:
    callback = site.promise(interim=b'{"t":"shop.half","a":[{"status":"progress","result":')
    headers = {"o": intent, "f": "evil", "r": address(site.app), "b": callback}
    site.forge({"t": "billing.report", "m": headers})
    await drain(site.app)
    await drain(site.app)
    assert site.calls == []


async def test_a_callback_id_without_an_address_does_not_make_the_handler_fail(site: Site) -> None:
    site.forge({"t": "billing.report", "m": {"o": "send", "f": "shop", "b": "0" * 20}})
    await drain(site.app)
    letters = await site.app.dead.alist()
    assert [letter.reason for letter in letters] in ([], ["bad_reply_to"])
    assert site.app.queue(ACTIONS).stats().living == 0


async def test_a_refused_message_that_is_retried_is_refused_again(site: Site, heard: Heard) -> None:
    callback = site.promise()
    headers = {"o": "send", "f": "shop", "r": address(site.app, "bank:callbacks"), "b": callback}
    id = site.forge({"t": "billing.charge", "m": headers}, waiter=f"victim {Edge(callback, CALLBACKS, 'b', 0)}")
    await drain(site.app)
    for _ in range(2):
        assert await site.app.dead.aretry([id]) == 1
        await drain(site.app)
    assert await site.app.dead.adiscard([id]) == 1
    await drain(site.app)
    assert (site.ran, site.calls, heard()) == ([], [], [])
    assert site.app.queue(CALLBACKS).stats().waiting == 1


@pytest.mark.parametrize("forged", ["address", "signature"])
async def test_take_does_not_return_forged_messages(bus_factory: AppFactory, forged: str) -> None:
    site = Site(bus_factory(signing_keys=[OLD] if forged == "signature" else []))
    headers = {"o": "send", "f": "shop", "r": address(site.app, "bank:callbacks")} if forged == "address" else {}
    site.forge({"t": "billing.charge", "m": headers, "k": {"cents": 5}})
    taken = await site.app.queue(ACTIONS).atake(10)
    for lease in taken:
        await lease.adone()
    assert taken == []


async def test_messages_with_malformed_headers_are_dead_lettered(site: Site) -> None:
    malformed: list[Any] = [7, {"o": "steal"}, {"r": ["a"]}, {"d": "deep"}]
    forged = [site.forge({"t": "billing.charge", "m": headers, "k": {"cents": 5}}) for headers in malformed]
    await site.check_refused(forged, "unreadable")


# --- what can be called


TARGETS = ["admin.wipe", "wipe", "os:system", "subprocess:run", "builtins:eval", "relevo.gather"]
TARGETS += ["", ":", "os:", "billing", ".", f"{__name__}:never_call"]


async def test_only_actions_can_be_called_through_a_queue_of_the_bus(bus_factory: AppFactory) -> None:
    """Neither tasks nor plain functions that tasks may call."""
    bus = bus_factory(allow=[__name__])
    site, wiped = Site(bus), list[str]()
    CALLED.clear()

    @bus.task(name="admin.wipe")
    async def wipe(*args: Any, **kwargs: Any) -> None:
        wiped.append("admin.wipe")

    bus.task(name="wipe")(wipe.func)
    for target, queue in itertools.product(TARGETS, (ACTIONS, CALLBACKS)):
        site.forge({"t": target, "a": ["true"]}, queue=queue)
        site.forge({"t": target, "a": ["true"], "m": {"f": "shop"}}, queue=queue)
    await drain(bus)
    assert (wiped, CALLED, site.ran, site.calls) == ([], [], [], [])
    for queue in (ACTIONS, CALLBACKS):
        assert bus.queue(queue).stats().totals.get("done", 0) == 0
        await bus.queue(queue).aclear()


async def test_an_action_is_called_only_through_the_queue_of_its_service(bus: Relevo, site: Site) -> None:
    paid: list[int] = []

    @bus.service("bank").action("pay")
    async def pay(cents: int) -> None:
        paid.append(cents)

    site.forge({"t": "bank.pay", "m": {"f": "shop"}, "k": {"cents": 1}}, queue=ACTIONS)
    site.forge({"t": "bank.pay", "m": {"f": "shop"}, "k": {"cents": 2}}, queue=CALLBACKS)
    site.forge({"t": "billing.charge", "k": {"cents": 5}}, queue="default")
    bus.task(name="some")(pay.func)  # so that the worker serves the queue of tasks
    await drain(bus)
    for queue in (ACTIONS, CALLBACKS, "default"):
        await bus.queue(queue).aclear()
    assert (paid, site.ran) == ([], [])


BODIES = [
    b"}",
    b"{}",
    b'{"t":7}',
    b'{"t":"billing.charge","k":[]}',
    b'{"t":"billing.charge","a":{}}',
    b'{"t":"billing.charge","a":[1,2,3,4]}',
    b'{"t":"billing.charge","i":"claim"}',
    b'{"t":"billing.charge","i":"reply","a":[]}',
    b'{"t":"billing.charge","i":"nonsense"}',
    b'{"t":"billing.charge","k":{"cents":5},"k":{"cents":"x"}}',
    b'{"t":"billing.charge","\xff":1}',
    b'{"t":"billing.charge","wf":"x","y":true,"k":{"cents":"a"}}',
]


async def test_messages_with_malformed_bodies_do_not_block_the_queue(site: Site) -> None:
    for body in BODIES:
        site.forge(body)
        if body.startswith(b'{"t"'):
            site.forge(b'{"m":{"f":"shop"},' + body[1:])
    await site.shop.asend("billing.charge", {"cents": 7})
    await drain(site.app)
    assert 7 in site.ran
    assert all(isinstance(one, int) for one in site.ran)
    stats = site.app.queue(ACTIONS).stats()
    assert stats.running == stats.ready == 0
    await site.app.queue(ACTIONS).aclear()


# --- signatures


async def test_signed_messages_of_every_kind_are_handled(signed: Site) -> None:
    async with working(signed.app):
        await signed.shop.asend("billing.charge", {"cents": 1})
        await signed.shop.asend("billing.charge", {"cents": 2}, delay=0.01, tenant="acme", tier="enterprise")
        await signed.shop.asend("billing.charge", {"cents": 3}, on_reply="charged", timeout="1h", context={"a": 1})
        await signed.shop.asend("billing.report", on_reply="charged", on_progress="half")
        assert await signed.shop.arequest("billing.charge", {"cents": 4}, wait=True) == 4
        await aeventually(lambda: len(signed.calls) == 3, what="two ends and a report")
        await aeventually(lambda: len(signed.ran) == 5, what="all were handled")
    assert sorted(map(str, signed.ran)) == ["1", "2", "3", "4", "report"]
    assert sorted(signed.statuses) == ["done", "done", "progress"]
    assert await signed.app.dead.alist() == []


async def test_a_signed_callback_times_out(server: Server, bus_factory: AppFactory) -> None:
    times = Times(server, bus_factory)
    site = Site(times.another(signing_keys=[OLD]))

    @site.shop.action("gave_up")
    async def gave_up(reply: Reply[Any]) -> None:
        site.calls.append(reply)

    await site.shop.asend("billing.charge", on_reply="charged", on_timeout="gave_up", timeout="1h")
    times.move(HOUR + MINUTE)
    await drain(site.app, queues=[CALLBACKS])
    assert site.statuses == ["timeout"]


def stolen(site: Site, job: Any) -> tuple[str, bytes]:
    """A signed body as it stands in its queue, taken out of it."""
    keys = site.app.engine.keys_of(ACTIONS)
    body: bytes = site.app.engine.run(Call([b"HGET", keys.key("jobs"), job.id]))
    for command in ([b"HDEL", keys.key("jobs"), job.id], [b"ZREM", keys.key("ready"), job.id]):
        site.app.engine.run(Call(list(command)))
    return job.id, body


FORGERIES: dict[str, Any] = {
    "its data": lambda own, body: (own, body.replace(b'"cents":5', b'"cents":6')),
    "its id": lambda own, body: ("0" * 20, body),
    "no signature": lambda own, body: (own, body[: body.index(b',"s"')] + b"}"),
    "a signature that is no ascii": lambda own, body: (own, body.replace(b'"s":"v2.', '"s":"v2.é'.encode())),
}


async def test_a_signed_message_that_was_changed_is_dead_lettered_and_notifies_no_process(
    signed: Site, heard: Heard
) -> None:
    forged: dict[str, str] = {}
    for what, forge in FORGERIES.items():
        id, body = forge(*stolen(signed, await signed.shop.asend("billing.charge", {"cents": 5})))
        forged[id] = what
        signed.forge(body, id=id, waiter=f"victim {Edge(signed.promise(), CALLBACKS, 'b', 0)}")
    await signed.check_refused(forged, "bad_signature")
    assert heard() == []
    assert signed.app.queue(CALLBACKS).stats().waiting == len(forged)
    await signed.app.queue(CALLBACKS).aclear()


async def test_only_an_app_with_keys_checks_signatures(bus_factory: AppFactory) -> None:
    open_minded, strict = Site(bus_factory()), bus_factory(signing_keys=[OLD])
    await strict.service("shop").asend("billing.charge", {"cents": 1})
    await drain(open_minded.app)
    assert open_minded.ran == [1]
    site = Site(strict)
    job = await open_minded.shop.asend("billing.charge", {"cents": 5})
    await site.check_refused([job.id], "bad_signature")


async def test_a_request_without_a_good_signature_gets_no_answer(bus_factory: AppFactory) -> None:
    site, stranger = Site(bus_factory(signing_keys=[OLD])), bus_factory(signing_keys=["old:another-secret-00"])
    async with working(site.app):
        shop = stranger.service("shop")
        await times_out(
            lambda timeout: shop.arequest("billing.charge", {"cents": 5}, timeout=timeout, wait=True),
            once=site.app.dead.list,
        )
    await stranger.aclose()
    assert site.ran == []
    assert {letter.reason for letter in await site.app.dead.alist()} == {"bad_signature"}


async def test_a_message_refused_for_a_missing_key_is_handled_when_retried_with_it(
    bus_factory: AppFactory,
) -> None:
    unaware, aware = Site(bus_factory(signing_keys=[OLD])), Site(bus_factory(signing_keys=[OLD, NEW]))
    job = await bus_factory(signing_keys=[NEW]).service("shop").asend("billing.charge", {"cents": 5})
    await drain(unaware.app)
    assert unaware.ran == []
    assert await aware.app.dead.aretry([job.id]) == 1
    await drain(aware.app)
    assert aware.ran == [5]


async def test_forged_callbacks_and_reports_are_refused(signed: Site) -> None:
    signed.forge({"t": "shop.charged", "m": {"o": "callback"}, "a": [{"status": "done"}]}, queue=CALLBACKS)
    signed.forge({"t": "shop.half", "m": {"o": "callback"}, "a": [{"status": "progress"}]}, queue=CALLBACKS)
    await drain(signed.app)
    assert signed.calls == []
    letters = await signed.app.dead.alist(queue=CALLBACKS)
    assert [letter.reason for letter in letters] == ["bad_signature"] * 2


async def test_a_promise_whose_body_was_changed_is_refused(signed: Site) -> None:
    await signed.shop.asend("billing.charge", {"cents": 1}, on_reply="charged", context={"to": "ana"})
    keys = signed.app.engine.keys_of(CALLBACKS)
    (row,) = signed.app.queue(CALLBACKS).jobs("waiting")
    body: bytes = signed.app.engine.run(Call([b"HGET", keys.key("jobs"), row.id]))
    signed.app.engine.run(Call([b"HSET", keys.key("jobs"), row.id, body.replace(b'"ana"', b'"eve"')]))
    await drain(signed.app)
    await drain(signed.app)
    assert (signed.ran, signed.calls) == ([1], [])
    assert [letter.reason for letter in await signed.app.dead.alist(queue=CALLBACKS)] == ["bad_signature"]


@pytest.mark.parametrize("where", ["beside the callback", "in an outbox message"])
async def test_a_forged_reply_is_refused_where_messages_are_signed(signed: Site, where: str) -> None:
    await signed.shop.asend("billing.charge", {"cents": 1}, on_reply="charged")
    (row,) = signed.app.queue(CALLBACKS).jobs("waiting")
    keys = signed.app.engine.keys_of(CALLBACKS)
    if where == "in an outbox message":
        edge = Edge(row.id, CALLBACKS, "b", 0)
        text = f'done 2 {"0" * 20}\n{edge}\n{{"state":"done","result":"forged"}}'
        signed.app.engine.run(Call([b"HSET", keys.key("letters"), "a.2", text]))
        signed.app.engine.run(Call([b"ZADD", keys.key("errands"), 1, "a.2"]))
    else:
        await drain(signed.app, queues=[ACTIONS])
        signed.app.engine.run(
            Call([b"HSET", keys.own("carried", row.id), b"#0", b'{"status":"done","result":"forged"}'])
        )
    await drain(signed.app)
    await drain(signed.app)
    assert [reply.result for reply in signed.calls if reply.result == "forged"] == []


LINES = "one\ntwo\n\x00\u2028three"
ENDS: dict[str, dict[str, Any]] = {
    # outcome: type and data of the message, status and reason of the reply
    "done": {"type": "charge", "data": {"cents": 1}, "expected": ("done", "")},
    "raised": {"type": "charge", "data": {"cents": -1}, "expected": ("failed", "retries_exhausted")},
    "bad arguments": {"type": "charge", "data": {"cents": "x"}, "expected": ("failed", "bad_arguments")},
    "in a thread": {"type": "in_thread", "data": {}, "expected": ("done", "")},
    "nothing": {"type": "nothing", "data": {}, "expected": ("done", "")},
    "no json": {"type": "no_json", "data": {}, "expected": ("failed", "result_not_kept")},
    "cancelled there": {"type": "cancels", "data": {}, "expected": ("cancelled", "no need")},
    "lines": {"type": "lines", "data": {}, "expected": ("failed", "permanent")},
    "too slow": {"type": "too_slow", "data": {}, "expected": ("failed", "retries_exhausted")},
    "large": {"type": "charge", "data": {"cents": 1, "text": "x" * 100_000}, "expected": ("done", "")},
}


def serve_ends(site: Site) -> None:
    """Actions that end in every way."""

    @site.billing.action("in_thread")
    def in_thread() -> str:
        return "ñ\u2028"

    @site.billing.action("nothing")
    async def nothing() -> None: ...

    @site.billing.action("no_json")
    async def no_json() -> Any:
        return object()

    @site.billing.action("cancels")
    async def cancels() -> None:
        raise Cancel("no need")

    @site.billing.action("lines", give_up_on=(ValueError,))
    async def lines(cents: int = 0) -> None:
        raise ValueError(LINES)

    @site.billing.action("too_slow", timeout=0.05, retries=0)
    async def too_slow() -> None:
        await asyncio.Event().wait()


async def test_every_outcome_has_a_valid_signature(signed: Site) -> None:
    serve_ends(signed)
    async with answering(signed.app):
        for how, end in ENDS.items():
            type, data, expected = (end[name] for name in ("type", "data", "expected"))
            await signed.shop.asend(f"billing.{type}", data, on_reply="charged")
            await aeventually(lambda: signed.calls, what=f"the callback: {how}")
            reply = signed.calls.pop()
            assert (reply.status, reply.error.reason if reply.error else "") == expected, how
            if expected[0] == "done":
                await signed.shop.arequest(f"billing.{type}", data)
            else:
                with pytest.raises(RemoteError) as fault:
                    await signed.shop.arequest(f"billing.{type}", data)
                assert fault.value.reason != "bad_signature", how
    assert await signed.app.dead.alist(queue=CALLBACKS) == []


@pytest.mark.parametrize("how", ["done", "bury", "lost"])
async def test_an_outcome_settled_through_take_has_a_valid_signature(signed: Site, how: str) -> None:
    @signed.billing.action("once", max_crashes=1)
    async def once() -> None: ...

    await signed.shop.asend("billing.once", on_reply="charged")
    (lease,) = await signed.app.queue(ACTIONS).atake(lease=0.001 if how == "lost" else None)
    if how == "done":
        assert await lease.adone(7) is True
    elif how == "bury":
        assert await lease.abury("broken") is True
    for _ in range(2):
        await drain(signed.app)
    (reply,) = signed.calls
    expected = {"done": ("done", ""), "bury": ("failed", "broken"), "lost": ("failed", "poison")}
    assert (reply.status, reply.error.reason if reply.error else "") == expected[how]


def changed_reply(site: Site, id: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the reply stored for a callback, as a process that can write to the server."""
    key = site.app.engine.keys_of(CALLBACKS).own("carried", id)
    stored: bytes = site.app.engine.run(Call([b"HGET", key, b"#0"]))
    known = msgspec.json.decode(stored)
    found = change(known)
    site.app.engine.run(Call([b"HSET", key, b"#0", msgspec.json.encode(known if found is None else found)]))


TAMPERED: dict[str, tuple[int, Callable[[dict[str, Any]], Any]]] = {
    # what the action was given, and what is changed in the reply
    "the result": (1, lambda reply: reply.update(result=2)),
    "no result": (1, lambda reply: reply.pop("result") and None),
    "another status": (1, lambda reply: reply.update(status="failed")),
    "a fault beside the result": (1, lambda reply: reply.update(error={"type": "Forged"})),
    "the status of a fault": (-1, lambda reply: reply.update(status="done")),
    "a result beside a fault": (-1, lambda reply: reply.update(result=1, status="done")),
    "the type of a fault": (-1, lambda reply: reply["error"].update(type="Forged")),
    "the message of a fault": (-1, lambda reply: reply["error"].update(message="forged")),
    "the reason of a fault": (-1, lambda reply: reply["error"].update(reason="forged")),
    "whether it may be retried": (-1, lambda reply: reply["error"].update(retryable=False)),
    "a traceback": (-1, lambda reply: reply["error"].update(traceback="forged")),
    "where type and message part": (0, lambda reply: reply["error"].update(type="ValueError\none", message=LINES[4:])),
    "no signature": (1, lambda reply: reply.pop("signature") and None),
    "a signature of nonsense": (1, lambda reply: reply.update(signature="old.é")),
    "nothing is left": (1, lambda reply: {"status": "done"}),
    "a list": (1, lambda reply: []),
    "a result that came too late": (1, lambda reply: {"status": "timeout", "result": "forged"}),
    "a result that was cancelled": (1, lambda reply: {"status": "cancelled", "result": "forged"}),
    "a report": (1, lambda reply: {"status": "progress", "result": "forged"}),
}


async def test_a_signed_reply_that_was_changed_in_any_part_is_refused(signed: Site) -> None:
    serve_ends(signed)
    for what, (cents, _) in TAMPERED.items():
        action = "billing.charge" if cents else "billing.lines"
        await signed.shop.asend(action, {"cents": cents}, on_reply="charged", context=f"<{what}>")
    await drain(signed.app, queues=[ACTIONS])
    rows = signed.app.queue(CALLBACKS).jobs("ready", limit=100)
    changed: dict[str, str] = {}
    for row in rows:
        body: bytes = signed.app.engine.run(Call([b"HGET", signed.app.engine.keys_of(CALLBACKS).key("jobs"), row.id]))
        (changed[row.id],) = (what for what in TAMPERED if f"<{what}>".encode() in body)
        changed_reply(signed, row.id, TAMPERED[changed[row.id]][1])
    assert sorted(changed.values()) == sorted(TAMPERED)
    await drain(signed.app)
    assert signed.calls == []
    letters = await signed.app.dead.alist(queue=CALLBACKS, limit=100)
    assert {changed[letter.id] for letter in letters} == set(TAMPERED)
    assert {letter.reason for letter in letters} <= {"bad_signature", "bad_arguments", "unreadable"}


async def test_a_reply_to_another_message_is_refused(signed: Site) -> None:
    for cents in (1, 2):
        await signed.shop.asend("billing.charge", {"cents": cents}, on_reply="charged", context=cents)
    await drain(signed.app, queues=[ACTIONS])
    keys = signed.app.engine.keys_of(CALLBACKS)
    first, second = (keys.own("carried", row.id) for row in signed.app.queue(CALLBACKS).jobs("ready"))
    one: bytes = signed.app.engine.run(Call([b"HGET", first, b"#0"]))
    two: bytes = signed.app.engine.run(Call([b"HGET", second, b"#0"]))
    signed.app.engine.run(Call([b"HSET", first, b"#0", two]))
    signed.app.engine.run(Call([b"HSET", second, b"#0", one]))
    await drain(signed.app)
    assert signed.calls == []


async def test_a_forged_answer_to_a_request_is_refused(signed: Site) -> None:
    app, job = signed.app, list[str]()

    @signed.billing.action("slow")
    async def slow() -> str:
        job.append(current_job().id)
        await asyncio.Event().wait()
        return "late"

    async with answering(app):
        asking = asyncio.create_task(signed.shop.arequest("billing.slow", timeout=PATIENCE))
        await aeventually(lambda: job, what="it runs")
        inbox: bytes = await app.engine.arun(Call([b"HGET", app.engine.keys_of(ACTIONS).key("waiters"), job[0]]))
        await app.engine.arun(Call([b"PUBLISH", inbox, job[0].encode() + b'{"state":"done","result":"forged"}']))
        with pytest.raises((RemoteError, RequestTimeout)) as refused:
            await asking
        assert "forged" not in str(refused.value)


# --- data too large for a message

LARGE = "x" * 100_000


def carried(app: Relevo, queue: str = ACTIONS) -> dict[str, int]:
    """What lies beside the messages of a queue: id and milliseconds left, -1 for no limit of its own."""
    head = app.engine.keys_of(queue).key("carried") + b":"
    found: dict[str, int] = {}
    cursor = b"0"
    while True:
        page: tuple[bytes, list[bytes]] = app.engine.run(Call([b"SCAN", cursor, b"MATCH", head + b"*", b"COUNT", 1000]))
        cursor = page[0]
        for key in page[1]:
            left: int = app.engine.run(Call([b"PTTL", key]))
            found[key.removeprefix(head).decode()] = left
        if cursor == b"0":
            return found


def size_in_queue(app: Relevo, id: str) -> int:
    body: bytes = app.engine.run(Call([b"HGET", app.engine.keys_of(ACTIONS).key("jobs"), id]))
    return len(body)


@pytest.mark.parametrize(("over", "is_beside"), [(-1, False), (0, False), (1, True), (50_000, True)])
async def test_data_above_the_threshold_travels_beside_its_message(
    bus_factory: AppFactory, over: int, is_beside: bool
) -> None:
    site = Site(bus_factory(claim_check=1000))
    text = "x" * (1000 + over - len('{"text":""}'))
    job = await site.shop.asend("billing.charge", {"text": text})
    assert carried(site.app) == ({job.id: -1} if is_beside else {})
    assert (size_in_queue(site.app, job.id) < 1000) == is_beside
    await drain(site.app)
    assert (site.ran, carried(site.app)) == ([len(text)], {})


@pytest.fixture(params=[False, True], ids=["plain", "signed"])
def large(request: pytest.FixtureRequest, bus_factory: AppFactory) -> Site:
    """Services with and without signatures."""
    return Site(bus_factory(signing_keys=[OLD] if request.param else []))


async def test_large_data_of_requests_is_gone_when_they_are_answered(large: Site) -> None:
    async with working(large.app):
        assert await large.shop.arequest("billing.charge", {"cents": 1, "text": LARGE}, wait=True) == 1
        with pytest.raises(RemoteError, match="below zero"):
            await large.shop.arequest("billing.charge", {"cents": -1, "text": LARGE})
        assert carried(large.app) == {}
        with pytest.raises(NoResponders):
            await large.shop.arequest("bank.pay", {"text": LARGE})
    assert all(0 < left <= 600_000 for left in carried(large.app, "bank:actions").values())
    assert large.ran == [1, -1]


async def test_large_data_and_a_large_reply_arrive(large: Site) -> None:
    @large.billing.action("echo")
    async def echo(text: str) -> str:
        return text[::-1]

    await large.shop.asend("billing.echo", {"text": "a" + LARGE}, on_reply="charged", context=LARGE)
    async with working(large.app):
        await aeventually(lambda: large.calls, what="the callback")
        await aeventually(lambda: not large.app.queue(CALLBACKS).stats().living, what="it is over")
    (reply,) = large.calls
    assert (reply.result, reply.context) == (LARGE + "a", LARGE)
    assert (carried(large.app), carried(large.app, CALLBACKS)) == ({}, {})


async def test_large_data_is_kept_for_retries_and_as_long_as_the_dead_letter(large: Site) -> None:
    texts: list[int] = []

    @large.billing.action("fail", retries=2, backoff=0, failure_ttl="1h")
    async def fail(text: str) -> None:
        texts.append(len(text))
        if len(texts) < 4:
            raise ConnectionError

    job = await large.shop.asend("billing.fail", {"text": LARGE})
    async with working(large.app):
        await aeventually(large.app.dead.alist, what="a dead letter")
    assert texts == [len(LARGE)] * 3
    ((id, left),) = carried(large.app).items()
    record: int = large.app.engine.run(Call([b"PTTL", large.app.engine.keys_of(ACTIONS).own("ended", job.id)]))
    assert id == job.id
    assert 3_000_000 < left <= 3_600_000 and abs(left - record) < 300_000, "as long as its record"
    assert await large.app.dead.aretry([job.id]) == 1
    assert carried(large.app) == {job.id: -1}, "it lives again, and what it carries with it"
    async with working(large.app):
        await aeventually(lambda: len(texts) == 4, what="it runs again")
        await aeventually(lambda: not large.app.queue(ACTIONS).stats().living, what="it is over")
    assert (texts[-1], carried(large.app)) == (len(LARGE), {})


async def test_a_cancelled_message_with_large_data_runs_when_retried(large: Site) -> None:
    job = await large.shop.asend("billing.charge", {"cents": 3, "text": LARGE})
    await job.acancel()
    assert await job.aretry() is True
    await drain(large.app)
    assert (large.ran, carried(large.app)) == ([3], {})


async def test_a_message_whose_large_data_is_gone_is_dead_lettered_and_calls_back(large: Site) -> None:
    job = await large.shop.asend("billing.charge", {"cents": 1, "text": LARGE}, on_reply="charged")
    large.app.engine.run(Call([b"DEL", large.app.engine.keys_of(ACTIONS).own("carried", job.id)]))
    await drain(large.app)
    await drain(large.app)
    assert (large.ran, large.statuses) == ([], ["failed"])
    assert [letter.reason for letter in await large.app.dead.alist()] == ["input_lacking"]
    error = large.calls[0].error
    assert error is not None and error.reason == "input_lacking"


@pytest.mark.parametrize("data", [b'{"cents":6}', b"", b"null", b"no json", b"[]"])
async def test_large_data_that_was_changed_is_refused_where_messages_are_signed(signed: Site, data: bytes) -> None:
    job = await signed.shop.asend("billing.charge", {"cents": 5, "text": LARGE}, on_reply="charged")
    signed.app.engine.run(Call([b"HSET", signed.app.engine.keys_of(ACTIONS).own("carried", job.id), b"claim", data]))
    await drain(signed.app)
    await drain(signed.app)
    assert (signed.ran, signed.calls) == ([], [])
    assert [letter.reason for letter in await signed.app.dead.alist()] == ["bad_signature"]
    await signed.app.queue(CALLBACKS).aclear()


@pytest.mark.parametrize("data", [b"", b"null", b"no json", b"[]", b'{"cents":"x"}', b"\xff"])
async def test_malformed_large_data_is_dead_lettered(site: Site, data: bytes) -> None:
    job = await site.shop.asend("billing.charge", {"cents": 5, "text": LARGE})
    site.app.engine.run(Call([b"HSET", site.app.engine.keys_of(ACTIONS).own("carried", job.id), b"claim", data]))
    await drain(site.app)
    assert site.ran == []
    assert [letter.id for letter in await site.app.dead.alist()] == [job.id]
    assert site.app.queue(ACTIONS).stats().living == 0


def test_large_data_of_a_sender_killed_before_the_message_was_stored_expires(site: Site, server: Server) -> None:
    """Killed after any of the calls that a sender makes, nothing stays without an end."""

    def plan(service: Service) -> Any:
        data = {"text": LARGE}
        message, wanted = service._message("billing.charge", data, {})
        return sending(site.app.engine, message, wanted)

    site.app.engine.run(site.app.engine.list_queue(ACTIONS))
    total = sum(1 for _ in _calls(site.app, plan(site.shop)))
    assert site.app.queue(ACTIONS).clear() == 1
    assert total > 1
    for most in range(1, total):
        for made, _ in enumerate(_calls(site.app, plan(site.shop)), 1):
            if made == most:
                break
        assert leaks(server, site.app.settings.prefix) == [], f"after {most} of {total} calls"
        assert all(0 < left <= 600_000 for left in carried(site.app).values())
    assert site.app.queue(ACTIONS).stats().living == 0


def _calls(app: Relevo, plan: Any) -> Iterator[None]:
    """Run a plan call by call; a caller that stops iterating stands for a killed process."""
    answer = None
    while True:
        try:
            call = plan.send(answer)
        except StopIteration:
            return
        answer = app.engine.run(call)
        yield


async def test_large_data_of_a_duplicate_message_expires(site: Site) -> None:
    for _ in range(3):
        await site.shop.asend("billing.charge", {"cents": 5, "text": LARGE}, idempotency_key="k")
    found = sorted(carried(site.app).values())
    assert found[0] == -1 and all(0 < left <= 600_000 for left in found[1:])
    await drain(site.app)
    assert site.ran == [5]


async def test_the_state_of_a_message_with_large_data_can_be_looked_at(site: Site) -> None:
    job = await site.shop.asend("billing.charge", {"text": LARGE})
    assert await job.astate() is State.READY
    assert (await job.ainfo()).task == "billing.charge"
    assert [row.id for row in await site.app.queue(ACTIONS).ajobs()] == [job.id]
