"""With `signing_keys`, whoever can write to the server but has no key can make nothing run and nothing be believed.

Each test is an attack by such a process. What it forges becomes a dead letter `bad_signature`, or an error to whoever
waits for a result; what honest processes do beside it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from relevo import Cancel, Job, Relevo, chain, current_job, group
from relevo.bus.headers import Sending
from relevo.bus.outgoing import outgoing
from relevo.engine.job import read_record
from relevo.engine.message import Reply
from relevo.engine.signed_ends import passed_on
from relevo.errors import (
    BadSignature,
    ConfigurationError,
    JobCancelled,
    JobError,
    JobExpired,
    JobFailed,
    OptionError,
    RemoteError,
    ResultNotKept,
)
from relevo.store.plan import Call
from tests.answering import answering
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times, noting
from tests.working import drain, working

KEY = "k1:0123456789abcdef"
SIGNED: dict[str, Any] = {"signing_keys": [KEY]}


def command(app: Relevo, *words: Any) -> Any:
    """What a process with the server's password can do."""
    return app.engine.run(Call(list(words)))


def stored(app: Relevo, job: Any) -> bytes:
    """The body of a job in its queue."""
    body: bytes = command(app, b"HGET", app.engine.keys_of(job.queue).key("jobs"), job.id)
    return body


def take_out(app: Relevo, job: Any) -> bytes:
    """The same, taken out of the queue."""
    body, keys = stored(app, job), app.engine.keys_of(job.queue)
    command(app, b"HDEL", keys.key("jobs"), job.id)
    for state in ("ready", "scheduled", "waiting"):
        command(app, b"ZREM", keys.key(state), job.id)
    return body


def put(app: Relevo, queue: str, body: bytes, id: str = "") -> str:
    """Any body into any queue."""
    id, keys = id or app.engine.new_id(), app.engine.keys_of(queue)
    app.engine.run(app.engine.list_queue(queue))
    command(app, b"HSET", keys.key("jobs"), id, body)
    command(app, b"ZADD", keys.key("ready"), 100 * 2**43, id)
    return id


async def reasons(app: Relevo, queue: str | None = None) -> list[str]:
    return [letter.reason for letter in await app.dead.alist(queue=queue, limit=100)]


class Till:
    """A service `till` with an action `charge`, what it charged, and a service `shop` that asks it."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.charged: list[int] = []
        self.replies: list[Reply[Any]] = []
        self.till, self.shop = app.service("till"), app.service("shop")

        @self.till.action("charge", retries=0)
        async def charge(cents: int = 0) -> int:
            self.charged.append(cents)
            return cents

        @self.shop.action("settled")
        async def settled(reply: Reply[Any]) -> None:
            self.replies.append(reply)


@pytest.fixture
def till(bus_factory: AppFactory) -> Till:
    return Till(bus_factory(**SIGNED))


# --- where a message belongs


async def test_an_event_does_not_run_as_an_action_of_its_name(till: Till) -> None:
    heard: list[int] = []

    @till.shop.on("till.charge", retries=0)
    async def on_charge(cents: int) -> None:
        heard.append(cents)

    await drain(till.app)  # registers the subscription
    assert await till.till.apublish("charge", {"cents": 5}) == 1
    (row,) = till.app.queue("shop:notifications:till.charge").jobs()
    body = stored(till.app, Job(till.app.engine, row.id, "shop:notifications:till.charge"))
    put(till.app, "till:actions", body, row.id)
    await drain(till.app)
    assert (heard, till.charged) == ([5], [])
    assert await reasons(till.app, "till:actions") == ["bad_signature"]


@pytest.mark.parametrize("place", ["another env", "another prefix", "another context", "another service's queue"])
async def test_a_message_runs_only_where_it_was_sent(till: Till, bus_factory: AppFactory, place: str) -> None:
    sent = await till.shop.asend("till.charge", {"cents": 5})
    body = take_out(till.app, sent)
    prefix = till.app.settings.prefix
    others = {"another env": {"env": "live"}, "another prefix": {"prefix": f"{prefix}x"}}
    there = Till(bus_factory(**SIGNED, **others.get(place, {})))
    queue = {"another context": "till:acme:actions", "another service's queue": "shop:callbacks"}.get(place, sent.queue)
    there.app.service("till", context="acme").action("refund")(lambda: None)
    put(there.app, queue, body, sent.id)
    await drain(there.app)
    assert (there.charged, await reasons(there.app, queue)) == ([], ["bad_signature"])
    put(till.app, sent.queue, body, sent.id)
    await drain(till.app)
    assert till.charged == [5], "and there it runs"
    for name in ("prefix", "env"):
        if place == f"another {name}":
            command(there.app, b"DEL", *command(there.app, b"KEYS", f"*{there.app.settings.prefix}*"))


# --- how long it is good for


@pytest.mark.parametrize("how", ["as it was", "moved", "removed"])
@pytest.mark.parametrize("kind", ["send", "task", "event"])
async def test_a_message_that_is_stored_again_after_its_deadline_does_not_run(
    server: Server, bus_factory: AppFactory, kind: str, how: str
) -> None:
    times = Times(server, bus_factory)
    app, ran = times.another(**SIGNED), list[str]()
    shop = app.service("shop")

    @app.service("till").action("charge")
    async def charge() -> None:
        ran.append("send")

    @app.task(name="report", expires="1m")
    async def report() -> None:
        ran.append("task")

    @app.service("mail").on("shop.sold", retention="1m")
    async def sold() -> None:
        ran.append("event")

    await drain(app)
    if kind == "send":
        job: Any = await shop.asend("till.charge", timeout="1m")
    elif kind == "task":
        job = await report.aenqueue()
    else:
        await shop.apublish("sold")
        (row,) = app.queue("mail:notifications:shop.sold").jobs()
        job = Job(app.engine, row.id, "mail:notifications:shop.sold")
    body = stored(app, job)
    await drain(app)
    assert ran == [kind]
    times.move(HOUR)
    deadline = msgspec.json.decode(body)["x"]
    ends = {"as it was": b"%d" % deadline, "moved": b"%d" % (deadline + 2 * HOUR)}
    now = (
        body.replace(b'"x":%d' % deadline, b'"x":' + ends[how])
        if how in ends
        else body.replace(b',"x":%d' % deadline, b"")
    )
    put(app, job.queue, now, job.id)
    await drain(app)
    assert ran == [kind], "not a second time"
    await app.aclose()


# --- tasks


async def test_a_task_without_a_signature_does_not_run(app_factory: AppFactory) -> None:
    app, ran = app_factory(**SIGNED), list[int]()

    @app.task(name="pay", retries=0)
    async def pay(cents: int) -> None:
        ran.append(cents)

    forged = put(app, "default", b'{"t":"pay","a":[666]}')
    honest = await pay.aenqueue(1)
    again = stored(app, honest)
    await drain(app)
    # Its id, its queue and each byte of it are signed.
    put(app, "default", again.replace(b"[1]", b"[2]"))
    put(app, "default", again)
    put(app, "other", again, honest.id)
    await drain(app, queues=["default", "other"])
    assert ran == [1]
    assert await reasons(app) == ["bad_signature"] * 4
    with pytest.raises(BadSignature, match="bears no signature"):
        await (await app.ajob(forged)).aresult(timeout=PATIENCE)


async def test_take_gives_no_job_without_a_signature(app_factory: AppFactory) -> None:
    app = app_factory(**SIGNED)
    app.task(name="pay")(lambda cents: cents)
    put(app, "default", b'{"t":"pay","a":[666]}')
    assert await app.queue().atake(10) == []
    await app.tasks["pay"].aenqueue(1)
    (lease,) = await app.queue().atake(10)
    assert (lease.args, await lease.adone(7)) == ([1], True)
    assert await (await app.ajob(lease.id)).aresult() == 7


async def test_jobs_of_every_form_are_signed(app_factory: AppFactory) -> None:
    app, ran = app_factory(**SIGNED, allow=[__name__]), list[Any]()

    @app.task(name="note")
    async def note(*what: Any) -> Any:
        ran.append(what[0])
        return what[0]

    @app.task(name="fail", retries=0, on_failure="note")
    async def fail(reason: str) -> None:
        raise ValueError(reason)

    note.enqueue_many([(("many",), {}), (("many",), {})])
    first = note.using(delay=0.001, tenant="acme", priority=7, unique="until_done", expires="1h").enqueue("rich")
    await note.using(depends_on=[first]).aenqueue("after")
    chain(note.s("a"), note.s("b"), group(note.s("c"), note.s("d"))).enqueue()
    group(note.s(n) for n in range(3)).then(note.s()).enqueue()
    app.schedule("often", note.s("tick"), every="1h", run_now=True)
    failed = fail.enqueue("why")
    app.enqueue(_plain, 3)
    await drain(app)
    await aeventually(lambda: app.queue().stats().scheduled == 0 or None, what="the delayed one is due")
    await drain(app)
    words = sorted(one for one in ran if isinstance(one, str))
    assert words == sorted(["many", "many", "rich", "after", "a", "a", "a", "a", "tick"])
    assert [one for one in ran if isinstance(one, list)] == [[0, 1, 2]]
    assert [one["job"] for one in ran if isinstance(one, dict)] == [failed.id], "its handler was signed where it failed"
    assert await reasons(app) == ["retries_exhausted"]
    assert await app.dead.aretry([failed.id]) == 1
    await drain(app)
    again = await app.dead.aedit(failed.id, args=["other"])
    await drain(app)
    assert (await again.ainfo()).reason == "retries_exhausted"
    app.schedules.get("often").remove()


def _plain(n: int) -> int:
    return n


async def test_a_forged_job_that_is_given_up_has_no_handler_called(app_factory: AppFactory) -> None:
    """What ends without having run, because its worker died, or its inputs are gone, must not be signed on the way."""
    app, ran = app_factory(**SIGNED), list[Any]()

    @app.task(name="wipe")
    async def wipe(what: Any) -> None:
        ran.append(what)

    app.task(name="pay", retries=0, on_failure="wipe")(lambda: None)
    taken = put(app, "default", b'{"t":"pay","f":"wipe"}')
    put(app, "default", b'{"t":"pay","f":"wipe","i":"one"}')
    keys = app.engine.keys_of("default")
    command(app, b"ZREM", keys.key("ready"), taken)
    command(app, b"ZADD", keys.key("running"), 1, taken)
    command(app, b"HSET", keys.key("claims"), taken, "1 gone 1")
    command(app, b"HSET", keys.key("story"), taken, '{"crashes":9}')
    await drain(app)
    assert (ran, sorted(await reasons(app))) == ([], ["input_lacking", "poison"])
    with pytest.raises(BadSignature):
        await (await app.ajob(taken)).aresult()


# --- results


RECORDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another result": lambda record: {**record, "result": 666},
    "another end": lambda record: {**record, "state": "dead", "reason": "permanent"},
    "cancelled": lambda record: {"state": "cancelled", "reason": "cancelled", "ended_ms": 1},
    "expired": lambda record: {"state": "expired", "ended_ms": 1},
    "made up": lambda record: {"state": "done", "result": 666},
}


@pytest.mark.parametrize("how", [*RECORDS, "of another job"])
async def test_a_forged_result_is_not_believed(app_factory: AppFactory, how: str) -> None:
    app = app_factory(**SIGNED)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    job, other = await add.aenqueue(1, 2), await add.aenqueue(3, 4)
    await drain(app)
    keys = app.engine.keys_of("default")
    record: bytes = command(app, b"GET", keys.own("ended", job.id))
    if how in RECORDS:
        forged = msgspec.json.encode(RECORDS[how](msgspec.json.decode(record)))
    else:
        forged = command(app, b"GET", keys.own("ended", other.id))
    assert await job.aresult() == 3
    command(app, b"SET", keys.own("ended", job.id), forged, b"PX", 60_000)
    with pytest.raises(BadSignature, match=job.id):
        await job.aresult()


@pytest.mark.parametrize("forged", ['{"state":"done","result":666}', '{"state":"cancelled"}', '{"state":"expired"}'])
async def test_a_forged_word_to_one_who_waits_is_not_believed(app_factory: AppFactory, forged: str) -> None:
    app = app_factory(**SIGNED)
    job = await app.task(name="slow")(lambda: None).aenqueue()
    waiting = asyncio.create_task(job.aresult(timeout=PATIENCE))
    keys = app.engine.keys_of("default")
    inbox: bytes = await aeventually(lambda: command(app, b"HGET", keys.key("waiters"), job.id), what="it waits")
    command(app, b"PUBLISH", inbox, job.id + forged)
    with pytest.raises(BadSignature):
        await waiting
    await app.queue().aclear()
    await app.aclose()


async def test_who_waits_for_a_job_hears_that_its_queue_was_cleared(app_factory: AppFactory) -> None:
    app = app_factory(**SIGNED)
    job = await app.task(name="slow")(lambda: None).aenqueue()
    waiting = asyncio.create_task(job.aresult(timeout=PATIENCE))
    await aeventually(lambda: command(app, b"HLEN", app.engine.keys_of("default").key("waiters")), what="it waits")
    assert await app.queue().aclear() == 1
    with pytest.raises(JobCancelled, match="cleared"):
        await waiting
    await app.aclose()


def apart() -> None:
    """A task of a child process."""


async def test_every_end_of_a_task_is_believed_by_who_waits_for_it(app_factory: AppFactory) -> None:
    app, started = app_factory(**SIGNED), list[str]()

    @app.task(name="end", retries=0)
    async def end(how: str) -> str:
        if how == "stop":
            raise Cancel("no need")
        if how == "hang":
            started.append(current_job().id)
            await asyncio.Event().wait()
        if how == "fail":
            raise ValueError(how)
        return how

    @app.task(name="plain")
    def plain() -> str:
        return "in a thread"

    app.task(name="apart", executor="process")(apart)

    failed = await end.aenqueue("fail")
    cancelled = await end.aenqueue("never")
    assert await cancelled.acancel()
    late = await end.using(expires=0.001).aenqueue("late")
    after = await end.using(depends_on=[failed]).aenqueue("after a failure")
    hung = await end.aenqueue("hang")
    wordless = await end.using(result_ttl=0).aenqueue("no result is kept")
    named = await end.using(name="one").aenqueue("named")
    of_thread, large = await plain.aenqueue(), await end.aenqueue("x" * 10_000)
    flow = chain(end.s("a"), end.si("fail"), end.si("b")).on_failure(end.si("handler")).enqueue()
    after_flow = await end.using(depends_on=[flow]).aenqueue("after a workflow")
    async with working(app):
        waiting = asyncio.create_task(wordless.aresult(timeout=PATIENCE))
        await aeventually(lambda: started, what="it runs")
        assert await hung.acancel()
        assert await named.aresult(timeout=PATIENCE) == "named"
        assert await of_thread.aresult(timeout=PATIENCE) == "in a thread"
        assert await large.aresult(timeout=PATIENCE) == "x" * 10_000
        expected: list[tuple[Any, type[Exception]]] = [
            (failed, JobFailed), (cancelled, JobCancelled), (late, JobExpired), (after, JobCancelled),
            (hung, JobCancelled), (await end.aenqueue("stop"), JobCancelled), (flow, JobFailed),
            (await end.using(depends_on=[failed]).aenqueue("too late"), JobCancelled), (after_flow, JobCancelled),
        ]  # fmt: skip
        for job, error in expected:
            with pytest.raises(error):
                await job.aresult(timeout=PATIENCE)
        with pytest.raises(ResultNotKept):
            await waiting
    assert await reasons(app) == ["retries_exhausted"] * 2


# --- workflows


@pytest.mark.parametrize("how", ["another value", "of another job", "unsigned"])
async def test_a_forged_input_is_not_taken(app_factory: AppFactory, how: str) -> None:
    app, ran = app_factory(**SIGNED), list[Any]()

    @app.task(name="number")
    async def number(n: int) -> int:
        return n

    @app.task(name="pay", queue="pay", retries=0)
    async def pay(cents: Any) -> None:
        ran.append(cents)

    flows = [chain(number.s(n), pay.s()).enqueue() for n in (1, 2)]
    await drain(app, queues=["default"])
    keys = app.engine.keys_of("pay")
    mine, other = (row.id for row in app.queue("pay").jobs())
    known: bytes = command(app, b"HGET", keys.own("carried", mine), b"#0")
    forged = {
        "another value": known.replace(b"1", b"7", 1),
        "of another job": command(app, b"HGET", keys.own("carried", other), b"#0"),
        "unsigned": b"666",
    }
    command(app, b"HSET", keys.own("carried", mine), b"#0", forged[how])
    await drain(app, queues=["pay"])
    assert (ran, await reasons(app)) == ([2], ["bad_signature"])
    await drain(app, queues=["default"])
    with pytest.raises(JobFailed) as refused:
        await flows[0].aresult(timeout=PATIENCE)
    assert refused.value.reason == "bad_signature"
    command(app, b"HSET", keys.own("carried", mine), b"#0", known)
    assert await app.dead.aretry([mine]) == 1
    await drain(app, queues=["pay"])
    assert ran == [2, 1]


async def test_a_forged_member_does_not_join_a_workflow(app_factory: AppFactory) -> None:
    """Honest ones do; the result of another job, though signed, is none of them."""
    app, sums = app_factory(**SIGNED), list[list[int]]()

    @app.task(name="number")
    async def number(n: int) -> int:
        if n == 1:
            await app.workflow().aadd(number.s(10))
        return n

    @app.task(name="total", queue="total", retries=0)
    async def total(numbers: list[int]) -> int:
        sums.append(numbers)
        return sum(numbers)

    honest = group(number.s(1), number.s(2)).then(total.s()).enqueue()
    await drain(app)
    assert sums == [[1, 2, 10]]
    assert await honest.aresult(timeout=PATIENCE) == 13
    stranger = await number.aenqueue(666)
    group(number.s(1), number.s(2)).then(total.s()).enqueue()
    await drain(app, queues=["default"])
    (row,) = app.queue("total").jobs()
    bag = app.engine.keys_of("total").own("carried", row.id)
    record: bytes = command(app, b"GET", app.engine.keys_of("default").own("ended", stranger.id))
    signed = passed_on(b"666", stranger.id, app.engine.keys_of("default").place, read_record(record).signature)
    late: bytes = command(app, b"HGET", bag, b"late")
    command(app, b"HSET", bag, b"late", late + stranger.id.encode(), "#" + stranger.id, signed)
    await drain(app, queues=["total"])
    assert (len(sums), await reasons(app)) == (1, ["bad_signature"])


async def test_a_forged_result_of_a_workflow_is_not_believed(app_factory: AppFactory) -> None:
    app = app_factory(**SIGNED)

    @app.task(name="number")
    async def number(n: int) -> int:
        return n

    flow, other = group(number.s(1), number.s(2)).enqueue(), group(number.s(3), number.s(4)).enqueue()
    await drain(app)
    keys = app.engine.keys_of("default")
    bag = keys.own("carried", flow.id)
    assert await flow.aresult() == [1, 2]
    known = command(app, b"HGETALL", bag)
    plan: bytes = command(app, b"HGET", keys.own("carried", other.id), b"plan")
    theirs = {field: command(app, b"HGET", keys.own("carried", other.id), field) for field in (b"#0", b"#1")}
    for forged in ({b"#0": b"666"}, theirs, {**theirs, b"plan": plan}):
        command(app, b"HSET", bag, *(part for pair in forged.items() for part in pair))
        with pytest.raises(BadSignature):
            await flow.aresult()
        command(app, b"HSET", bag, *known)
    assert await flow.aresult() == [1, 2]
    for state in ("dead", "cancelled"):
        command(app, b"SET", keys.own("ended", flow.id), f'{{"state":"{state}","target":"workflow"}}', b"PX", 60_000)
        with pytest.raises(BadSignature, match="none of its members"):
            await flow.aresult()


async def test_a_forged_checkpoint_is_not_believed(app_factory: AppFactory) -> None:
    app, fetched, broken = app_factory(**SIGNED), list[int](), [True]

    def fetch() -> int:
        fetched.append(7)
        return 7

    @app.task(name="pay", retries=0)
    async def pay() -> int:
        cents = await current_job().astep("fetch", fetch)
        for item in current_job().iterate([1, 2], every=0):
            if broken:
                raise ValueError(item)
        return cents

    job = await pay.aenqueue()
    await drain(app)
    bag = app.engine.keys_of("default").own("carried", job.id)
    known: bytes = command(app, b"HGET", bag, b"s:fetch")
    for forged in (b"666", known.replace(b"7", b"8", 1)):
        command(app, b"HSET", bag, b"s:fetch", forged)
        assert await app.dead.aretry([job.id]) == 1
        await drain(app)
        assert (await job.ainfo()).attempts[-1].error.endswith("BadSignature")
    command(app, b"HSET", bag, b"s:fetch", known)
    broken.clear()
    assert await app.dead.aretry([job.id]) == 1
    await drain(app)
    assert (await job.aresult(), fetched) == (7, [7])


# --- answers


@pytest.mark.parametrize(
    "forged", ['{"state":"cancelled","reason":"cancelled"}', '{"state":"expired"}', '{"state":"done","result":1}']
)
async def test_a_forged_answer_to_a_request_is_not_believed(till: Till, forged: str) -> None:
    told = asyncio.Event()

    @till.till.action("slow")
    async def slow() -> None:
        await told.wait()

    keys = till.app.engine.keys_of("till:actions")
    async with answering(till.app):
        asking = asyncio.create_task(till.shop.arequest("till.slow", timeout=PATIENCE))
        rows = await aeventually(lambda: command(till.app, b"HGETALL", keys.key("waiters")), what="it is asked")
        command(till.app, b"PUBLISH", rows[1], rows[0] + forged.encode())
        with pytest.raises(RemoteError) as refused:
            await asking
        told.set()
        assert refused.value.reason == "bad_signature"


async def test_a_callback_that_is_told_too_early_of_a_timeout_waits_for_its_deadline(
    server: Server, bus_factory: AppFactory
) -> None:
    times = Times(server, bus_factory)
    till = Till(times.another(**SIGNED))
    await till.shop.asend("till.charge", on_reply="settled", timeout="1h")
    (row,) = till.app.queue("shop:callbacks").jobs("waiting")
    keys = till.app.engine.keys_of("shop:callbacks")
    command(till.app, b"HSET", keys.own("carried", row.id), "#0", '{"status":"timeout"}')
    command(till.app, b"ZREM", keys.key("waiting"), row.id)
    command(till.app, b"ZADD", keys.key("ready"), 100 * 2**43, row.id)
    await drain(till.app, queues=["shop:callbacks"])
    assert till.replies == []
    times.move(HOUR + MINUTE)
    await drain(till.app, queues=["shop:callbacks"])
    assert [reply.status for reply in till.replies] == ["timeout"], "which it can see for itself"
    await till.app.aclose()


@pytest.mark.parametrize("forged", ['{"status":"cancelled"}', '{"status":"timeout","signature":"v2.end.k1.x"}'])
async def test_a_callback_is_not_told_of_a_forged_end(till: Till, forged: str) -> None:
    await till.shop.asend("till.charge", on_reply="settled", timeout="1h")
    await drain(till.app, queues=["till:actions"])
    (row,) = till.app.queue("shop:callbacks").jobs()
    command(till.app, b"HSET", till.app.engine.keys_of("shop:callbacks").own("carried", row.id), "#0", forged)
    await drain(till.app)
    assert (till.replies, await reasons(till.app)) == ([], ["bad_signature"])


@pytest.mark.parametrize("by", ["its sender", "its handler", "its deadline"])
async def test_a_callback_is_told_of_an_end_without_an_answer(server: Server, bus_factory: AppFactory, by: str) -> None:
    times = Times(server, bus_factory)
    till = Till(times.another(**SIGNED))

    @till.till.action("refuse")
    async def refuse() -> None:
        raise Cancel("no need")

    job = await till.shop.asend("till.refuse", on_reply="settled", timeout="1h")
    if by == "its sender":
        assert await job.acancel()
    elif by == "its deadline":  # a worker meets the message after it: it is expired, and so is the callback's patience
        times.move(HOUR + MINUTE)
    for _ in range(2):
        await drain(till.app)
    assert [reply.status for reply in till.replies] == ["timeout" if by == "its deadline" else "cancelled"]
    assert await reasons(till.app) == []


async def test_nothing_is_signed_for_who_wrote_it_in_place_of_a_report(till: Till) -> None:
    """A report begins with what the callback's sender stored, and is signed by who reports."""
    wiped: list[Any] = []

    @till.shop.action("wipe")
    async def wipe(reply: Reply[Any]) -> None:
        wiped.append(reply)

    @till.till.action("report")
    async def report() -> None:
        wiped.append(await till.till.areport("half"))

    await till.shop.asend("till.report", on_reply="settled", on_progress="settled", timeout="1h")
    (row,) = till.app.queue("shop:callbacks").jobs("waiting")
    bag = till.app.engine.keys_of("shop:callbacks").own("carried", row.id)
    interim: bytes = command(till.app, b"HGET", bag, b"interim")
    command(till.app, b"HSET", bag, b"interim", interim.replace(b"shop.settled", b"shop.wipe"))
    await drain(till.app)
    assert wiped == [False]


# --- schedules


FORGED_SCHEDULES: dict[str, Callable[[bytes], bytes]] = {
    "other arguments": lambda text: text.replace(b'"a":[1]', b'"a":[666]'),
    "another name": lambda text: text.replace(b'"name":"hourly"', b'"name":"other"'),
    "unsigned": lambda text: text[: text.index(b',"s":')].replace(b'"a":[1]', b'"a":[666]') + b"}",
}


@pytest.mark.parametrize("how", FORGED_SCHEDULES)
async def test_a_forged_schedule_does_not_fire(
    server: Server, app_factory: AppFactory, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    times = Times(server, app_factory, at_full_hour=True)
    app, ran = times.another(**SIGNED), list[int]()

    @app.task(name="pay")
    async def pay(cents: int) -> None:
        ran.append(cents)

    app.schedule("hourly", pay.s(1), every="1h")
    times.move_past(HOUR)
    await drain(app)
    assert ran == [1]
    keys = app.engine.keys_of("default")
    record: bytes = command(app, b"HGET", keys.key("schedules"), "hourly")
    command(app, b"HSET", keys.key("schedules"), "hourly", FORGED_SCHEDULES[how](record))
    times.move_past(HOUR)
    await drain(app)
    assert (ran, await reasons(app)) == ([1], [])
    assert "hourly does not fire" in caplog.text
    handle = app.schedules.get("hourly")
    for act in (handle.run_now, lambda: handle.edit(every="2h")):
        with pytest.raises(BadSignature, match="hourly"):
            act()
    app.schedule("hourly", pay.s(1), every="1h")
    times.move_past(HOUR)
    await drain(app)
    assert ran == [1, 1], "registered again, it fires"
    app.schedules.get("hourly").remove()


async def test_a_forged_record_of_a_schedule_that_code_names_gives_way_to_the_code(
    server: Server, app_factory: AppFactory
) -> None:
    times = Times(server, app_factory, at_full_hour=True)
    app = times.another(**SIGNED)
    ticks = noting(app, every="1h")
    await drain(app)
    keys = app.engine.keys_of("default")
    record: bytes = command(app, b"HGET", keys.key("schedules"), "note")
    command(
        app, b"HSET", keys.key("schedules"), "note", record.replace(b'"allow"', b'"skip"').replace(b'"note"', b'"x"', 1)
    )
    await drain(app)
    tick = times.move_past(HOUR)
    await drain(app)
    assert ticks == [tick]
    app.schedules.get("note").remove()


# --- services


def as_service(app: Relevo, service: str, source: str) -> Any:
    """What a service sends that says it is another one: its key is all it has."""
    message = outgoing(app.engine, source, "till.charge", {"cents": 666}, Sending(), intent="send")
    signer = app.engine.keys_of(message.queue).signer
    assert signer is not None
    text = message._text(app.engine, None)
    return message, text + signer.signature_field("send", message.id, text, service=service) + b"}"


async def test_a_service_cannot_send_as_another_one(bus_factory: AppFactory) -> None:
    keys = {name: f"{name}:k1:{name:*<16}" for name in ("shop", "mail", "till")}
    till = Till(bus_factory(signing_keys=list(keys.values())))
    mail = bus_factory(signing_keys=[keys["mail"], keys["till"]])
    message, body = as_service(mail, "mail", "shop")
    put(till.app, message.queue, body, message.id)
    await drain(till.app)
    assert (till.charged, await reasons(till.app)) == ([], ["bad_signature"])
    letter = (await till.app.dead.alist())[0]
    assert "of 'mail'" in letter.error or "of 'mail'" in (await till.app.dead.ashow(letter.id)).attempts[-1].message
    with pytest.raises(ConfigurationError, match="'shop'"):
        await mail.service("shop").asend("till.charge")
    async with answering(till.app):
        assert await mail.service("mail").arequest("till.charge", {"cents": 1}) == 1
        assert await till.shop.arequest("till.charge", {"cents": 2}) == 2
        await till.shop.asend("till.charge", {"cents": 3}, on_reply="settled")
        await aeventually(lambda: till.replies, what="the callback")
    assert (till.charged, await reasons(till.app)) == ([1, 2, 3], ["bad_signature"])
    await mail.aclose()


# --- dead letters


async def test_an_operator_can_vouch_for_what_bears_no_signature(bus_factory: AppFactory) -> None:
    """Jobs of before there were keys, or of an earlier release; of each kind that can be known by looking at it."""
    plain = Till(bus_factory("shop"))
    plain.app.task(name="pay")(lambda cents: cents)
    await plain.app.tasks["pay"].aenqueue(1)
    await plain.shop.asend("till.charge", {"cents": 2})
    chain(plain.app.tasks["pay"].s(1), plain.app.tasks["pay"].s()).enqueue()
    signed = Till(bus_factory("shop", **SIGNED))
    signed.app.task(name="pay")(lambda cents: signed.charged.append(cents))
    await drain(signed.app)
    letters = await signed.app.dead.alist()
    assert {letter.reason for letter in letters} == {"bad_signature"}
    assert "dead retry" in (await signed.app.dead.ashow(letters[0].id)).attempts[-1].message
    assert await signed.app.dead.aretry(all=True) == 3
    await drain(signed.app)
    assert (signed.charged, len(await reasons(signed.app))) == ([], 3), "run again as they are, they are refused again"
    with pytest.raises(JobError, match="cannot be edited"):
        (charge,) = (letter.id for letter in letters if letter.task == "till.charge")
        await signed.app.dead.aedit(charge, kwargs={"cents": 1})
    with pytest.raises(OptionError, match="no signing_keys"):
        await plain.app.dead.aretry(all=True, sign=True)
    assert await signed.app.dead.aretry(all=True, sign=True) == 3
    await drain(signed.app)
    assert sorted(signed.charged) == [1, 1, 2]
    with pytest.raises(JobError, match="came from another job"):
        await signed.app.dead.aretry(all=True, sign=True)


async def test_letters_that_are_brought_to_another_env_are_signed_for_it(bus_factory: AppFactory) -> None:
    def till(env: str, ok: bool, **settings: Any) -> tuple[Relevo, list[Any]]:
        app, ran = bus_factory("shop", env=env, **settings), list[Any]()

        def tried(*what: Any) -> None:
            if not ok:
                raise ValueError
            ran.append(what)

        app.service("till").action("charge", retries=0)(lambda cents: tried("charge", cents))
        app.service("shop").action("settled", retries=0)(lambda reply: tried("settled", reply["result"]))
        app.service("till").action("free")(lambda: 0)
        app.service("mail").on("shop.sold", retries=0)(lambda n: tried("sold", n))
        app.task(name="number")(lambda n: n)
        app.task(name="pay", retries=0)(lambda cents: tried("pay", cents))
        app.task(name="total", retries=0)(lambda numbers: tried("total", numbers))
        app.task(name="steps", retries=0)(lambda: tried("steps", current_job().step("where", lambda: env)))
        return app, ran

    here, _ = till("here", False, **SIGNED)
    await drain(here)
    shop, number = here.service("shop"), here.tasks["number"]
    await shop.asend("till.charge", {"cents": 5})
    await shop.asend("till.free", on_reply="settled")
    await shop.apublish("sold", {"n": 1})
    chain(number.s(7), here.tasks["pay"].s()).enqueue()
    group(number.s(1), number.s(2)).then(here.tasks["total"].s()).enqueue()
    await here.tasks["steps"].aenqueue()
    forged = put(here, "default", b'{"t":"pay","a":[666]}')
    for _ in range(2):
        await drain(here)
    lines = [line async for line in here.dead.aexport()]
    assert len(lines) == 7
    there, ran = till("there", True, **SIGNED)
    await drain(there)
    assert (await there.dead.aload(lines)).new == 7
    assert await there.dead.aretry(all=True) == 7
    for _ in range(2):
        await drain(there)
    assert sorted(map(repr, ran)) == sorted(map(repr, [
        ("charge", 5), ("settled", 0), ("sold", 1), ("pay", 7), ("total", [1, 2]), ("steps", "here"),
    ]))  # fmt: skip
    assert [letter.id for letter in await there.dead.alist()] == [forged], "what was not good is not signed by the way"
    for app in (here, there):
        await app.aclose()
    command(there, b"DEL", *command(there, b"KEYS", f"*{there.settings.prefix}*"))


# --- without keys


async def test_without_keys_nothing_is_signed_and_nothing_more_is_stored(bus_factory: AppFactory) -> None:
    till = Till(bus_factory("shop"))
    app = till.app

    @app.task(name="pay")
    async def pay(cents: int) -> int:
        return cents

    job = pay.enqueue(1)
    assert stored(app, job) == b'{"t":"pay","a":[1]}'
    app.schedule("hourly", pay.s(1), every="1h")
    record: bytes = command(app, b"HGET", app.engine.keys_of("default").key("schedules"), "hourly")
    chain(pay.s(1), pay.s()).enqueue()
    await till.shop.asend("till.charge", {"cents": 2}, on_reply="settled", on_progress="settled", timeout="1h")
    bags = command(app, b"KEYS", f"*{app.settings.prefix}*carried*")
    texts = [
        record,
        *(command(app, b"HVALS", app.engine.keys_of(queue).key("jobs")) for queue in ("default", "till:actions")),
    ]
    texts += [command(app, b"HGETALL", bag) for bag in bags]
    await drain(app)
    texts.append(command(app, b"GET", app.engine.keys_of("default").own("ended", job.id)))
    assert not [text for text in texts if b'"s":"' in repr(text).encode() or b'"z":' in repr(text).encode()]
    assert b"signature" not in texts[-1] and b"traceback" not in texts[-1]
    app.schedules.get("hourly").remove()
