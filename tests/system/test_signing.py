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

from relevo import Job, Relevo, Reply, State, chain, current_job, group
from relevo.errors import JobError, RemoteError, RequestTimeout
from relevo.store.plan import Call
from tests.answering import answering
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times, noting
from tests.working import drain, working

KEY = "k1:0123456789abcdef"
SIGNED = {"signing_keys": [KEY]}


def command(app: Relevo, *words: Any) -> Any:
    """What a process with the server's password can do."""
    return app.run(Call(list(words)))


def stored(app: Relevo, job: Any) -> bytes:
    """The body of a job in its queue."""
    body: bytes = command(app, b"HGET", app.keys_of(job.queue).key("jobs"), job.id)
    return body


def take_out(app: Relevo, job: Any) -> bytes:
    """The same, taken out of the queue."""
    body, keys = stored(app, job), app.keys_of(job.queue)
    command(app, b"HDEL", keys.key("jobs"), job.id)
    for state in ("ready", "scheduled", "waiting"):
        command(app, b"ZREM", keys.key(state), job.id)
    return body


def put(app: Relevo, queue: str, body: bytes, id: str = "") -> str:
    """Any body into any queue."""
    id, keys = id or app.new_id(), app.keys_of(queue)
    app.run(app.list_queue(queue))
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
    body = stored(till.app, Job(till.app, row.id, "shop:notifications:till.charge"))
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
        job = Job(app, row.id, "mail:notifications:shop.sold")
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
    with pytest.raises(JobError, match="sign"):
        await app.queue("default").atake(1) or await (await app.ajob(forged)).aresult(timeout=PATIENCE)
