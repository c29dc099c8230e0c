"""Callbacks in their queue: promised before their message is sent, given progress, settled by the first outcome.

Outcomes come twice, late and in any order; a process that dies leaves nothing without an end. In these tests a message
lives in `embedding:actions`, its callback in `ingestion:callbacks`, and the test moves the time.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from relevo import Relevo
from relevo.bus.message_store import Name, Place, Tracked, interim_body, promise, report, send
from relevo.engine.carried import with_inputs
from relevo.engine.edges import Edge, Report
from relevo.engine.job import Envelope
from relevo.engine.job_store import cancel, look
from relevo.engine.message import Reply
from relevo.engine.offers_store import SERVE_MS, retire, serve
from relevo.engine.outbox import RESERVED_MS, deliver, notify, relay, take_outbox
from relevo.engine.turn import Settled
from relevo.engine.workers import WorkerInfo
from relevo.limits import store as limits
from relevo.queues.store import clear, pause
from relevo.store.plan import Call
from tests.conftest import AppFactory
from tests.servers import Server
from tests.store.desk import Desk, knows, moved, new_id, repeated
from tests.store.kin import end, everything, outbox, state_of

CALLBACKS, ACTIONS = "ingestion:callbacks", "embedding:actions"
BODY = b'{"t":"ingestion.ready","i":"reply","a":[{"context":7}]}'
LATE = b'{"t":"ingestion.gave_up","i":"reply","a":[{"context":7}]}'
INTERIM = b'{"t":"ingestion.half","a":[{"status":"progress","result":'
TIMEOUT_MS, FAIL_MS, LEASE_MS = 60_000, 300_000, 12_000
PLACE = Place(100)


class Pair:
    """The queue of messages and the queue of their callbacks."""

    def __init__(self, app: Relevo, server: Server) -> None:
        self.app = app
        self.run = app.engine.client.run
        self.callbacks = Desk(self.run, app.engine.keys_of(CALLBACKS), server)
        self.actions = Desk(self.run, app.engine.keys_of(ACTIONS), server)

    def promising(self, id: str, *, place: Place = PLACE, body: bytes = BODY, **more: Any) -> Call[int]:
        options: dict[str, Any] = {"timeout_ms": TIMEOUT_MS, "failure_ms": FAIL_MS, **more}
        return promise(self.callbacks.keys, CALLBACKS, id, place, body, **options)

    def promise(self, **more: Any) -> str:
        """A callback that waits."""
        id = new_id()
        assert self.run(self.promising(id, **more)) == 1
        return id

    def send(self, callback: str, *, place: Place = PLACE, **more: Any) -> str:
        """The message it waits for."""
        id, edge = new_id(), str(Edge(callback, CALLBACKS, "b", 0))
        body = b'{"t":"embedding.generate","y":true'
        said = self.run(send(self.actions.keys, id, body, place, lease_ms=LEASE_MS, waiter=edge, **more))
        assert said == ("stored", "")
        return id

    def relay(self) -> int:
        """Deliver all outbox messages that are due."""
        return int(self.run(relay(self.app.engine.keys_of, [ACTIONS, CALLBACKS], 1000)))

    def tell(self, callback: str, state: str, number: int = 2, parent: str = "0" * 20, text: bytes = b"") -> int:
        """One word about its message: whether it was news."""
        status = {"done": "done", "timeout": "timeout", "dead": "failed", "expired": "timeout"}.get(state, "cancelled")
        word = text or b'{"status":"%b"}' % status.encode()
        heard, _ = self.run(
            notify(self.callbacks.keys, [Report(callback, parent, number, state, "b", "0", word)], 1000)
        )
        return int(heard)

    def reply(self, callback: str) -> Reply[Any]:
        """What its handler would be given."""
        envelope = msgspec.json.decode(self.body(callback), type=Envelope)
        whole: Envelope = self.run(with_inputs(self.callbacks.keys, callback, envelope))
        (found,) = msgspec.json.decode(whole.args, type=tuple[Reply[Any]])
        return found

    def body(self, callback: str) -> bytes:
        """What would be called."""
        found: bytes = self.run(Call([b"HGET", self.callbacks.keys.key("jobs"), callback]))
        return found

    def report(self, callback: str, *, id: str = "", value: bytes = b"0.5") -> bool:
        is_added: bool = self.run(report(self.callbacks.keys, callback, id or new_id(), INTERIM + value + b"}]}"))
        return is_added

    def lives(self, worker: str) -> None:
        """A worker says that it serves the callbacks."""
        about = WorkerInfo(
            id=worker,
            host="host",
            pid=1,
            queues=(CALLBACKS,),
            concurrency=1,
            started_ms=0,
            running=0,
            done=0,
            failed=0,
            version="0",
        )
        self.run(serve(self.callbacks.keys, about, knows(), {}))

    def handled(self, *ids: str, token: int = 1) -> None:
        """Its worker is done with callbacks that it holds: nothing is kept of them."""
        rows = [row for id in ids for row in moved(id, "done", token, ms=0, text=b'{"state":"done"}').moved]
        assert self.callbacks.turn(0, Settled(moved=rows)).refused == []

    def handle_all(self) -> list[str]:
        """Take and handle all callbacks there are: their ids in order."""
        order: list[str] = []
        while got := self.callbacks.claim(100):
            self.handled(*got)
            order += got
        return order

    def advance(self, ms: int) -> None:
        self.callbacks.advance(ms)


@pytest.fixture
def pair(app_factory: AppFactory, server: Server) -> Iterator[Pair]:
    name = f"t{uuid4().hex[:12]}"
    yield Pair(app_factory(name, prefix=name), server)


# --- promised


def test_a_promise_is_a_job_that_waits_with_its_deadline_beside_it(pair: Pair) -> None:
    callback = pair.promise()
    assert state_of(pair.callbacks, callback) == "waiting"
    assert (pair.callbacks.members("waiting"), pair.callbacks.stats().living) == ([callback], 1)
    ((letter, text),) = outbox(pair.callbacks).items()
    assert (letter, text.splitlines()[0]) == (f"{callback}.late", "timeout 1 deadline")
    due = pair.callbacks.score("errands", letter) or 0
    assert due == pair.callbacks.now_ms + TIMEOUT_MS
    assert pair.callbacks.ask("TTL", f"carried:{callback}") == -1, "it lives as long as its job"


@pytest.mark.parametrize("more", [{}, {"late": LATE, "interim": INTERIM, "prefer": f"w1 {LEASE_MS}"}])
def test_a_promise_that_is_repeated_changes_nothing(pair: Pair, more: dict[str, Any]) -> None:
    call = pair.promising(new_id(), tracked=Tracked("task-7", 60_000), **more)
    assert pair.run(call) == 1
    before = everything(pair.callbacks)
    assert pair.run(repeated(call)) == 1
    assert everything(pair.callbacks) == before


@pytest.mark.parametrize("state", ["done", "timeout", "dead"])
def test_a_promise_that_is_repeated_after_it_was_settled_is_not_made_anew(pair: Pair, state: str) -> None:
    id = new_id()
    call = pair.promising(id)
    pair.run(call)
    pair.tell(id, state)
    before = everything(pair.callbacks)
    assert pair.run(repeated(call)) == 1
    assert everything(pair.callbacks) == before
    end(pair.callbacks, id, "dead")
    before = everything(pair.callbacks)
    assert pair.run(repeated(call)) == 1, "nor while its record is there"
    assert everything(pair.callbacks) == before
    call = pair.promising(new_id(), timeout_ms=1_000)
    pair.run(call)
    pair.advance(1_001)
    pair.relay()
    assert len(pair.handle_all()) == 1
    assert pair.run(repeated(call)) == 1, "nor after it ran, when nothing is kept"
    assert pair.callbacks.stats().living == 0


# --- settled

ENDS = dict.fromkeys(("plain", "kept", "done"), "done") | {
    "dead": "failed",
    "cancelled": "cancelled",
    "expired": "timeout",
}


@pytest.mark.parametrize("how", ENDS)
def test_every_end_of_the_message_settles_its_callback_and_removes_the_deadline(pair: Pair, how: str) -> None:
    callback = pair.promise()
    message = pair.send(callback)
    record = {"plain": b"", "kept": b'{"state":"done","result":[1]}', "done": b'{"state":"done","result":[1]}'}
    end(pair.actions, message, how, record=record.get(how, b""))
    assert pair.relay() == 1
    assert (outbox(pair.actions), outbox(pair.callbacks)) == ({}, {})
    assert state_of(pair.callbacks, callback) == "ready"
    reply = pair.reply(callback)
    assert reply.context == 7
    if how == "plain":  # nothing was kept of what it returned, and the reply has no result
        assert (reply.status, reply.error and reply.error.reason) == ("failed", "result_not_kept")
    else:
        assert reply.status == ENDS[how]
        assert (reply.result == [1]) == (ENDS[how] == "done")
    assert pair.relay() == 0


@pytest.mark.parametrize("how", ["cancelled", "cleared"])
def test_a_message_cancelled_in_or_cleared_from_its_queue_settles_its_callback(pair: Pair, how: str) -> None:
    callback = pair.promise()
    message = pair.send(callback)
    if how == "cancelled":
        assert pair.run(cancel(pair.actions.keys, [(message, FAIL_MS, "")], 1000)) == (["cancelled"], True)
    else:
        assert pair.run(clear(pair.actions.keys)) == (1, True)
    pair.relay()
    reply = pair.reply(callback)
    assert (state_of(pair.callbacks, callback), reply.status) == ("ready", "cancelled")
    assert reply.error and reply.error.reason == how


def test_the_deadline_settles_a_callback_at_its_time_and_not_before(pair: Pair) -> None:
    callback = pair.promise()
    pair.advance(TIMEOUT_MS - 1_000)
    assert (pair.relay(), state_of(pair.callbacks, callback)) == (0, "waiting")
    pair.advance(1_001)
    assert (pair.relay(), state_of(pair.callbacks, callback)) == (1, "ready")
    assert pair.reply(callback).status == "timeout"
    assert outbox(pair.callbacks) == {}


@pytest.mark.parametrize(("state", "body"), [("timeout", LATE), ("done", BODY), ("dead", BODY), ("cancelled", BODY)])
def test_only_the_deadline_calls_the_handler_for_it(pair: Pair, state: str, body: bytes) -> None:
    callback = pair.promise(late=LATE)
    pair.tell(callback, state)
    assert pair.body(callback) == body


WORDS = [("done", 2), ("timeout", 1), ("dead", 4), ("revived", 3), ("removed", 0)]


def test_of_outcomes_in_any_order_and_repeated_the_first_settles_a_callback(pair: Pair) -> None:
    for order in itertools.permutations(WORDS):
        callback = pair.promise(late=LATE)
        first = next(word for word in order if word[0] != "revived")
        news = 0
        for state, number in order:
            for _ in range(2):
                news += pair.tell(callback, state, number, "deadline" if state == "timeout" else "0" * 20)
        assert news == 1
        status = {"done": "done", "timeout": "timeout", "dead": "failed", "removed": "cancelled"}
        assert pair.reply(callback).status == status[first[0]], order
        assert pair.body(callback) == (LATE if first[0] == "timeout" else BODY), order
    assert pair.callbacks.stats().ready == len(pair.handle_all()), "each is queued once"


def test_of_two_outcomes_in_one_call_the_first_settles_a_callback(pair: Pair) -> None:
    for states in (("timeout", "done"), ("done", "timeout")):
        callback = pair.promise(late=LATE)
        rows = [
            Report(callback, parent, number, state, "b", "0", b'{"status":"%b"}' % state.encode())
            for state in states
            for parent, number in [("deadline", 1) if state == "timeout" else ("0" * 20, 2)]
        ]
        heard, _ = pair.run(notify(pair.callbacks.keys, rows, 1000))
        assert (heard, pair.reply(callback).status) == (1, states[0])
        assert pair.body(callback) == (LATE if states[0] == "timeout" else BODY)


@pytest.mark.parametrize("state", ["done", "timeout", "dead"])
def test_outcomes_after_a_callback_was_settled_change_nothing(pair: Pair, state: str) -> None:
    callback = pair.promise(late=LATE)
    pair.tell(callback, state)

    def deaf() -> None:
        before = everything(pair.callbacks)
        for word, number in WORDS:
            assert pair.tell(callback, word, number + 10) == pair.tell(new_id(), word, number) == 0
        assert everything(pair.callbacks) == before

    deaf()
    pair.callbacks.claim()
    deaf()
    pair.advance(30_001)  # its worker dies; the next one takes it back
    (row,) = pair.callbacks.turn(1).lost
    assert row[0].decode() == callback
    deaf()
    pair.handled(callback, token=2)
    deaf()
    assert state_of(pair.callbacks, callback) == "unknown"


def test_a_callback_stands_where_its_message_stood(pair: Pair) -> None:
    """In its level, and behind those of its tenant that came before."""
    low, high = pair.promise(place=Place(150, "acme", 8.0)), pair.promise(place=Place(50))
    first, second = (pair.promise(place=Place(100, "acme", 8.0)) for _ in range(2))
    for callback in (low, second, high, first):
        pair.tell(callback, "done")
    assert pair.callbacks.members("ready") == [high, second, first, low]


# --- a callback that is itself removed


def test_cleared_callbacks_leave_an_outbox_message_that_ends(pair: Pair) -> None:
    callback = pair.promise(late=LATE)
    message = pair.send(callback)
    assert pair.run(clear(pair.callbacks.keys)) == (1, False)
    end(pair.actions, message, "kept")
    pair.relay()
    pair.advance(TIMEOUT_MS + 1)
    pair.relay()
    assert (outbox(pair.callbacks), pair.callbacks.stats().living) == ({}, 0)
    assert state_of(pair.callbacks, callback) == "unknown"


@pytest.mark.parametrize("then", ["deadline", "deadline with on_timeout", "done", "dead"])
def test_a_callback_that_was_cancelled_does_not_come_back(pair: Pair, then: str) -> None:
    callback = pair.promise(late=LATE if then.endswith("on_timeout") else b"", interim=INTERIM)
    assert pair.run(cancel(pair.callbacks.keys, [(callback, FAIL_MS, "")], 1000))[0] == ["cancelled"]
    assert pair.report(callback) is False, "no progress is added to it"
    if then in ("done", "dead"):
        pair.tell(callback, then)
    pair.advance(TIMEOUT_MS + 1)
    pair.relay()
    assert state_of(pair.callbacks, callback) == "cancelled"
    assert (pair.callbacks.ask("HLEN", "jobs"), pair.callbacks.stats().living, outbox(pair.callbacks)) == (0, 0, {})


# --- sticky


def test_a_sticky_callback_is_handed_to_its_worker_while_that_lives(pair: Pair) -> None:
    pair.lives("w1")
    callback = pair.promise(prefer=f"w1 {LEASE_MS}", late=LATE)
    pair.tell(callback, "timeout")
    assert state_of(pair.callbacks, callback) == "running"
    assert pair.callbacks.bell("w1") == [b"j" + callback.encode() + LATE], "the body that is to run"
    held = pair.run(look(pair.callbacks.keys, callback)).claim
    assert held is not None and held.worker == "w1"
    assert pair.callbacks.claim(worker="w2") == []
    pair.handled(callback)


def test_a_sticky_callback_that_its_worker_never_began_goes_to_another_after_a_lease(pair: Pair) -> None:
    pair.lives("w1")
    callback = pair.promise(prefer=f"w1 {LEASE_MS}")
    pair.tell(callback, "done")
    pair.advance(LEASE_MS - 100)
    assert pair.callbacks.turn(1, worker="w2").lost == []
    pair.advance(101)
    (row,) = pair.callbacks.turn(1, worker="w2").lost
    assert row[0].decode() == callback
    assert pair.callbacks.finish([callback]) == [callback.encode()], "the word of the first holder counts no more"


@pytest.mark.parametrize("how", ["never there", "went", "silent", "paused"])
def test_a_sticky_callback_goes_to_any_worker_when_its_own_is_gone_or_its_queue_paused(pair: Pair, how: str) -> None:
    if how != "never there":
        pair.lives("w1")
    if how == "went":
        pair.run(retire(pair.callbacks.keys, "w1"))
    if how == "silent":
        pair.advance(SERVE_MS + 1)
    pair.lives("w2")
    callback = pair.promise(prefer=f"w1 {LEASE_MS}")
    pair.run(pause(pair.callbacks.keys, how == "paused"))
    pair.tell(callback, "done")
    assert (state_of(pair.callbacks, callback), pair.callbacks.bell("w1")) == ("ready", [])
    pair.run(pause(pair.callbacks.keys, False))
    assert pair.callbacks.claim(worker="w2") == [callback]


# --- reports


def test_reports_are_queued_once_and_in_order_before_the_reply(pair: Pair) -> None:
    callback = pair.promise(interim=INTERIM)
    assert pair.run(interim_body(pair.callbacks.keys, callback)) == INTERIM
    reports = [new_id() for _ in range(5)]
    for id in reports:
        assert pair.report(callback, id=id, value=b'{"pages":3}') is True
        before = everything(pair.callbacks)
        assert pair.report(callback, id=id) is False
        assert everything(pair.callbacks) == before
    pair.tell(callback, "done")
    assert pair.callbacks.members("ready") == [*reports, callback]
    body: bytes = pair.callbacks.ask("HGET", "jobs", reports[0])
    assert msgspec.json.decode(body)["a"] == [{"status": "progress", "result": {"pages": 3}}]
    assert pair.callbacks.stats().totals["enqueued"] == 6


@pytest.mark.parametrize("state", ["done", "timeout", "dead", "removed"])
def test_no_progress_is_added_after_the_outcome(pair: Pair, state: str) -> None:
    callback = pair.promise(interim=INTERIM)
    pair.tell(callback, state)
    for _ in range(2):
        before = everything(pair.callbacks)
        assert pair.report(callback) is False
        assert everything(pair.callbacks) == before
        pair.callbacks.claim()


def test_no_progress_is_added_to_a_callback_that_is_gone_or_wants_none(pair: Pair) -> None:
    unwanted, gone = pair.promise(), pair.promise(interim=INTERIM)
    pair.run(clear(pair.callbacks.keys))
    for callback in (unwanted, gone, new_id()):
        assert pair.run(interim_body(pair.callbacks.keys, callback)) is None
        assert pair.report(callback) is False


def test_a_report_stands_in_the_line_of_its_tenant_and_wakes_a_worker(pair: Pair) -> None:
    callback = pair.promise(place=Place(50, "acme", 8.0), interim=INTERIM)
    pair.callbacks.wait("w1")
    id = new_id()
    pair.report(callback, id=id)
    assert pair.callbacks.bell("w1") == [b""]
    assert (pair.callbacks.score("ready", id) or 0) // 2**43 == 50


def test_no_progress_is_added_after_the_outcome_while_the_callback_waits_for_its_tenant(pair: Pair) -> None:
    body = b'{"t":"ingestion.ready","g":"acme","i":"reply","a":[{"context":7}]}'
    callback = pair.promise(place=Place(100, "acme"), body=body, interim=INTERIM)
    pair.run(limits.pause(pair.callbacks.keys, "g:acme"))
    pair.tell(callback, "done")
    assert pair.callbacks.claim() == []
    is_added = pair.report(callback)
    pair.run(limits.resume(pair.callbacks.keys, "g:acme"))
    handled = pair.handle_all()
    assert (is_added, handled) == (False, [callback])


# --- letters on their way

GARBAGE = [
    b"",
    b"no json",
    b"[]",
    b'{"state":"nonsense"}',
    b'{"state":"done","story":7}',
    b"\xff",
    b'{"state":"done"}\x1e\xff',
]


@pytest.mark.parametrize("record", GARBAGE)
@pytest.mark.parametrize("state", ["done", "dead"])
def test_an_outbox_message_with_an_unreadable_record_delays_no_other(pair: Pair, state: str, record: bytes) -> None:
    bad, good = pair.promise(), pair.promise()
    message = pair.send(good)
    edge = str(Edge(bad, CALLBACKS, "b", 0)).encode()
    pair.actions.ask("HSET", "letters", "a.2", b"%b 2 %b\n%b\n%b" % (state.encode(), b"0" * 20, edge, record))
    pair.actions.ask("ZADD", "errands", 1, "a.2")
    end(pair.actions, message, "kept", record=b'{"state":"done","result":1}')
    pair.relay()
    assert outbox(pair.actions) == {}
    assert state_of(pair.callbacks, good) == "ready"
    pair.advance(TIMEOUT_MS + 1)
    pair.relay()
    assert state_of(pair.callbacks, bad) == "ready", "at the latest its deadline comes"


def test_a_relay_that_dies_before_it_confirms_has_settled_the_callback(pair: Pair) -> None:
    callback = pair.promise()
    message = pair.send(callback)
    end(pair.actions, message, "kept", record=b'{"state":"done","result":1}')
    taken = pair.run(take_outbox(pair.actions.keys))
    pair.run(deliver(pair.app.engine.keys_of, pair.actions.keys, list(zip(taken.ids, taken.texts, strict=True)), 1000))
    assert pair.handle_all() == [callback]
    before = everything(pair.callbacks)
    pair.advance(RESERVED_MS + 1)
    assert pair.relay() == 1
    assert (everything(pair.callbacks), outbox(pair.actions)) == (before, {})


@pytest.mark.parametrize("has_reply", [False, True])
def test_a_relay_that_dies_with_the_deadline_in_hand_is_followed_by_another(pair: Pair, has_reply: bool) -> None:
    """A reply that comes while it is held counts."""
    callback = pair.promise(late=LATE)
    message = pair.send(callback)
    pair.advance(TIMEOUT_MS + 1)
    taken = pair.run(take_outbox(pair.callbacks.keys))
    assert taken.ids == [f"{callback}.late"]
    assert pair.relay() == 0
    if has_reply:
        end(pair.actions, message, "kept", record=b'{"state":"done","result":1}')
        pair.relay()
        pair.run(
            deliver(pair.app.engine.keys_of, pair.actions.keys, list(zip(taken.ids, taken.texts, strict=True)), 1000)
        )
        assert pair.run(take_outbox(pair.callbacks.keys, taken.ids)).ids == []
    else:
        pair.advance(RESERVED_MS + 1)
        assert pair.relay() == 1
    assert pair.reply(callback).status == ("done" if has_reply else "timeout")
    assert pair.body(callback) == (BODY if has_reply else LATE)
    assert outbox(pair.callbacks) == {}


def test_a_message_with_the_key_of_another_leaves_its_own_promise_to_the_deadline(pair: Pair) -> None:
    """Services refuse this; a client that does it gets a callback that ends."""
    first, second = pair.promise(), pair.promise()
    name = Name("embedding.generate:k", 60_000)
    message = pair.send(first, name=name)
    edge = str(Edge(second, CALLBACKS, "b", 0))
    body = b'{"t":"embedding.generate"'
    said = pair.run(send(pair.actions.keys, new_id(), body, PLACE, lease_ms=LEASE_MS, waiter=edge, name=name))
    assert said == ("taken", message)
    pair.advance(TIMEOUT_MS + 1)
    pair.relay()
    assert [state_of(pair.callbacks, one) for one in (first, second)] == ["ready", "ready"]


# --- many of them


def test_many_callbacks_whose_outcomes_come_twice_and_mixed_are_each_settled_once(pair: Pair) -> None:
    """Replies, faults, cancellations and deadlines race; relays die with messages in hand, and messages come twice."""
    chance = random.Random(7)
    callbacks = [pair.promise(late=LATE, timeout_ms=chance.randrange(1, 6_000)) for _ in range(300)]
    messages = {pair.send(callback) for callback in callbacks}
    handled: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    #: outbox messages that a relay took and delivers once more
    in_hand: list[tuple[str, bytes]] = []
    for turn in itertools.count():
        pair.advance(chance.randrange(0, 400))
        ended = pair.actions.claim(chance.randrange(1, 60))
        messages.difference_update(ended)
        rows = []
        for id in ended:
            how = chance.choice(["done", "dead", "expired", "cancelled"])
            rows += moved(id, how, ms=0, text=b'{"state":"%b","result":1}' % how.encode()).moved
        assert pair.actions.turn(0, Settled(moved=rows)).refused == []
        for desk in chance.sample([pair.actions, pair.callbacks], 2):
            taken = pair.run(take_outbox(desk.keys))
            found = list(zip(taken.ids, taken.texts, strict=True))
            in_hand += found
            if chance.random() < 0.7:  # else it dies with them in hand
                told = found * chance.randrange(1, 3)
                chance.shuffle(told)
                finished, _ = pair.run(deliver(pair.app.engine.keys_of, pair.actions.keys, told, 1000))
                if chance.random() < 0.7:  # else before it says so
                    pair.run(take_outbox(desk.keys, finished))
        if turn % 5 == 0:
            chance.shuffle(in_hand)
            pair.run(deliver(pair.app.engine.keys_of, pair.actions.keys, in_hand, 1000))
            in_hand.clear()
        got = pair.callbacks.claim(100)
        for id in got:
            reply = pair.reply(id)
            statuses[reply.status] += 1
            assert (pair.body(id) == LATE) == (reply.status == "timeout")
        pair.handled(*got)
        handled.update(got)
        if not messages and not in_hand and not got and not pair.callbacks.ask("ZCARD", "waiting"):
            break
        assert turn < 500, "it comes to an end"
    pair.advance(60_000)
    pair.relay()
    handled.update(pair.handle_all())
    assert handled == Counter(callbacks)
    assert (outbox(pair.actions), outbox(pair.callbacks)) == ({}, {})
    assert pair.callbacks.stats().living == pair.actions.stats().living == 0
    assert min(statuses[status] for status in ("done", "failed", "cancelled", "timeout")) > 5, statuses
