"""Messages put on a service's queue, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest
import redis

from relevo import Relevo, State
from relevo.bus.message_store import UNSENT_MS, Asked, Name, Place, Tracked, ask, lay_beside, send
from relevo.engine.job import Record, read_envelope
from relevo.engine.job_store import attach, cancel
from relevo.engine.offers_store import KNOWN_MS, SERVE_MS, Served, offers, present_at, retire, serve, served
from relevo.engine.turn import Settled
from relevo.engine.workers import WorkerInfo
from relevo.errors import OutOfMemory
from relevo.queues.store import pause
from relevo.store.plan import Call
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, kept, knows, moved, new_id, repeated
from tests.store.kin import everything

T = TypeVar("T")

#: A body as it is sent: without its closing brace.
BODY = b'{"t":"billing.charge","k":{"cents":990}'
PLAIN = Place(100)
INBOX = "{relevo:test}:inbox:p1"
NAME = Name("billing.charge:key-1", 600_000)


def sending(
    desk: Desk, id: str = "", *, place: Place = PLAIN, body: bytes = BODY, **more: Any
) -> Call[tuple[str, str]]:
    return send(desk.keys, id or new_id(), body, place, lease_ms=LEASE_MS, **more)


def sent(desk: Desk, id: str = "", **more: Any) -> str:
    """Send a message that must be stored: its id."""
    id = id or new_id()
    assert desk.run(sending(desk, id, **more)) == ("stored", "")
    return id


def body_of(desk: Desk, id: str) -> bytes:
    found: bytes = desk.ask("HGET", "jobs", id)
    return found


def worker(id: str, running: int = 0) -> WorkerInfo:
    return WorkerInfo(
        id=id, host="host", pid=1, queues=("billing:actions",), concurrency=10, started_ms=1, running=running
    )


def serving(desk: Desk, id: str = "w1", *actions: str) -> int:
    """A worker says that it serves these actions: how many serve the queue."""
    known = knows(*(f"billing.{action}" for action in actions or ("charge",)))
    about = dict.fromkeys(actions or ("charge",), b'{"takes":{}}')
    found: int = desk.run(serve(desk.keys, worker(id), known, about))
    return found


def leaving(desk: Desk, id: str = "w1") -> int:
    found: int = desk.run(retire(desk.keys, id))
    return found


def seen(desk: Desk) -> Served:
    now_ms = desk.now_ms
    return served(desk.run(present_at(desk.keys, now_ms)), desk.run(offers(desk.keys)), now_ms)


@contextmanager
def listening(server: Server, *channels: str) -> Iterator[list[tuple[str, bytes]]]:
    """What is published during the block, complete when it ends."""
    heard: list[tuple[str, bytes]] = []
    client = redis.Redis.from_url(server.url, protocol=2)
    ear = client.pubsub()  # type: ignore[no-untyped-call]
    ear.subscribe(*channels, "{relevo:test}:end")
    for _ in range(len(channels) + 1):
        assert ear.get_message(timeout=PATIENCE)["type"] == "subscribe"
    try:
        yield heard
        server.command("PUBLISH", "{relevo:test}:end", "")
        while (message := ear.get_message(timeout=PATIENCE))["channel"] != b"{relevo:test}:end":
            heard.append((message["channel"].decode(), message["data"]))
    finally:
        ear.close()
        client.close()


# --- stored


def test_a_message_is_stored_counted_and_handed_out(desk: Desk) -> None:
    id = sent(desk)
    assert body_of(desk, id) == BODY + b"}", "and it has no deadline"
    assert desk.members("ready") == [id]
    assert desk.stats().totals == {"enqueued": 1}
    assert 0 < desk.ask("TTL", "stats") <= 7 * 86_400
    assert sorted(everything(desk)) == ["clock", "jobs", "ready", "stats"], "and nothing else is written"
    assert desk.drain() == [id]


@pytest.mark.parametrize("timeout_ms", [1, 5_000, 2**31, 2**32 + 1, 3_155_760_000_000])  # up to a hundred years
@pytest.mark.parametrize("ahead", [0, 3_600_000, -3_600_000])
def test_the_deadline_is_of_the_servers_clock(desk: Desk, ahead: int, timeout_ms: int) -> None:
    desk.advance(ahead)
    envelope = read_envelope(body_of(desk, sent(desk, timeout_ms=timeout_ms)))
    assert envelope.expires_ms == desk.now_ms + timeout_ms
    assert bytes(envelope.kwargs) == b'{"cents":990}'
    desk.drain()


def test_a_waiter_is_stored_in_the_same_step(desk: Desk) -> None:
    id = sent(desk, waiter=INBOX)
    assert desk.ask("HGETALL", "waiters") == {id.encode(): INBOX.encode()}
    other = sent(desk)
    assert desk.ask("HEXISTS", "waiters", other) == 0
    desk.drain()
    assert desk.ask("EXISTS", "waiters") == 0


def test_tenants_share_by_their_weights_behind_higher_priorities_and_tiers_are_counted(desk: Desk) -> None:
    big, small = Place(100, "big", 2.0, "free"), Place(100, "small", 1.0, "enterprise")
    last = sent(desk, place=Place(150, "a", 64.0))
    bigs = [sent(desk, place=big) for _ in range(4)]
    smalls = [sent(desk, place=small) for _ in range(2)]
    first = sent(desk, place=Place(0, "b", 0.01))
    totals = desk.stats().totals
    assert (totals["tier:free"], totals["tier:enterprise"], totals["enqueued"]) == (4, 2, 8)
    assert desk.drain() == [first, bigs[0], bigs[1], smalls[0], bigs[2], bigs[3], smalls[1], last]


def test_a_delayed_message_waits_and_keeps_its_tenant(desk: Desk) -> None:
    desk.wait("w1")
    id = sent(desk, delay_ms=60_000, place=Place(100, "acme", 2.0))
    assert desk.bell("w1") == [b""], "the idle worker asks, and gets the time"
    assert (desk.members("ready"), desk.members("scheduled")) == ([], [id])
    assert desk.ask("HGET", "groups", id) == b"2.0 acme"
    assert desk.claim() == []
    desk.advance(60_001)
    assert desk.drain() == [id]


# --- handed over


def test_a_message_is_handed_to_a_worker_that_waits(desk: Desk) -> None:
    desk.wait("w1")
    id = sent(desk, timeout_ms=5_000)
    assert desk.members("ready") == []
    assert desk.bell("w1") == [b"j" + id.encode() + body_of(desk, id)]
    claim = desk.ask("HGET", "claims", id).split()
    assert claim[:2] == [b"1", b"w1"]
    lease = desk.score("running", id)
    assert lease is not None
    assert lease == int(claim[2]) + LEASE_MS
    assert desk.members("idle") == []
    assert desk.ask("EXISTS", "clock") == 0, "virtual times are made only where something is ready"
    assert desk.finish([id]) == []


def test_a_message_behind_others_calls_a_worker_and_waits_for_its_turn(desk: Desk) -> None:
    (other,) = desk.push()
    desk.ask("ZADD", "idle", desk.now_ms + 30_000, "w1")
    desk.ask("PEXPIRE", "idle", 60_000)
    id = sent(desk)
    assert desk.bell("w1") == [b""]
    assert desk.members("ready") == [other, id]
    desk.drain()


def test_a_worker_that_died_waiting_is_not_handed_anything(desk: Desk) -> None:
    desk.wait("gone", idle_ms=1_000)
    desk.advance(1_001)
    id = sent(desk)
    assert desk.members("ready") == [id]
    assert desk.bell("gone") == []
    desk.drain()


def test_a_paused_queue_takes_messages_and_hands_out_none(desk: Desk) -> None:
    desk.wait("w1")
    desk.run(pause(desk.keys, True))
    id = sent(desk)
    assert desk.bell("w1") == []
    assert desk.claim() == []
    desk.run(pause(desk.keys, False))
    assert desk.drain() == [id]


# --- must be served


def test_without_workers_a_message_is_unserved_and_nothing_is_written(desk: Desk) -> None:
    before = everything(desk)
    call = sending(desk, must_be_served="charge", name=NAME, tracked=Tracked("t", 1000), waiter=INBOX, timeout_ms=1000)
    assert desk.run(call) == ("unserved", "")
    assert desk.run(repeated(call)) == ("unserved", "")
    assert everything(desk) == before == {}


def test_only_actions_that_a_worker_serves_are_stored(desk: Desk) -> None:
    assert desk.run(serve(desk.keys, worker("w0"), knows(), {})) == 1, "a queue of callbacks has workers and no offers"
    serving(desk, "w1", "refund")
    for odd in ("charge", "@w1", "refund ", "REFUND", "refund.x"):
        assert desk.run(sending(desk, must_be_served=odd)) == ("unserved", ""), odd
    id = sent(desk, must_be_served="refund")
    assert desk.drain() == [id]


@pytest.mark.parametrize("how", ["leaves", "silent"])
def test_an_action_is_unserved_when_its_last_worker_left_or_its_lease_is_over(desk: Desk, how: str) -> None:
    """A deploy: the new worker no longer has the action that the old one had."""
    serving(desk, "old", "charge", "refund")
    serving(desk, "new", "charge")
    sent(desk, must_be_served="refund")
    if how == "leaves":
        assert leaving(desk, "old") == 1
    else:
        desk.advance(SERVE_MS // 2)
        serving(desk, "new", "charge")
        sent(desk, must_be_served="refund")
        desk.advance(SERVE_MS // 2 + 1)
    assert desk.run(sending(desk, must_be_served="refund")) == ("unserved", "")
    sent(desk, must_be_served="charge")
    serving(desk, "old", "refund")
    sent(desk, must_be_served="refund")
    desk.drain()


@pytest.mark.parametrize("garbage", [b"", b"soon", b"-1 {}", b"\xff\xfe", b'{"takes":{}}'])
def test_a_malformed_offer_is_ignored(desk: Desk, garbage: bytes) -> None:
    serving(desk, "w1", "refund")
    desk.ask("HSET", "offers", "charge", garbage)
    assert desk.run(sending(desk, must_be_served="charge")) == ("unserved", "")


# --- again: the reply was lost and the call is repeated


@pytest.mark.parametrize("since", ["lost", "waits", "handed over", "ended", "worker left"])
def test_a_repeated_call_stores_its_message_once_whatever_became_of_the_first(desk: Desk, since: str) -> None:
    more: dict[str, Any] = {"waiter": INBOX, "timeout_ms": 9_000, "tracked": Tracked("t", 60_000)}
    if since == "waits":
        more |= {"place": Place(100, "a", 2.0)}
    if since in ("waits", "ended"):
        more |= {"name": NAME}
    if since == "handed over":
        desk.wait("w1")
    if since == "worker left":
        serving(desk, "w1", "charge")
        more |= {"must_be_served": "charge"}
    call = sending(desk, id := new_id(), **more)
    if since != "lost":
        assert desk.run(call) == ("stored", "")
    match since:
        case "handed over":
            desk.wait("w2")
        case "ended":
            desk.turn(0, kept(desk.claim()))
        case "worker left":
            leaving(desk, "w1")
    before = everything(desk)
    for _ in range(2):
        assert desk.run(repeated(call)) == ("stored", "")
    assert since == "lost" or everything(desk) == before
    assert desk.stats().totals["enqueued"] == 1
    assert desk.drain() == [id] * (since in ("lost", "waits", "worker left"))


# --- names


def test_the_same_name_is_the_same_message_while_that_waits_runs_or_has_a_record(desk: Desk) -> None:
    first = sent(desk, name=NAME)
    assert 300_000 < desk.ask("PTTL", f"unique:{NAME.name}") <= 600_000

    def is_taken() -> None:
        before = everything(desk)
        assert desk.run(sending(desk, name=NAME)) == ("taken", first)
        assert everything(desk) == before

    is_taken()
    assert desk.claim() == [first]
    is_taken()
    desk.turn(0, kept([first]))
    is_taken()


def test_a_name_is_free_again_when_nothing_is_left_of_its_message(desk: Desk) -> None:
    anew = Name(NAME.name, NAME.hold_ms, until_failed=True)
    first = sent(desk, name=anew)
    desk.drain()
    assert desk.run(sending(desk, name=NAME)) == ("taken", first), "unless it is held for its whole time"
    second = sent(desk, name=anew)
    assert desk.run(sending(desk, name=anew)) == ("taken", second)
    assert desk.drain() == [second]
    assert first != second


def test_a_name_is_free_again_after_its_time(desk: Desk) -> None:
    short = Name(NAME.name, 40)
    first = sent(desk, name=short)
    eventually(lambda: not desk.ask("EXISTS", f"unique:{NAME.name}"), what="the name has ended")
    second = sent(desk, name=short)
    assert desk.drain() == [first, second]


def test_names_of_different_queues_are_different(app: Relevo, desk: Desk, server: Server) -> None:
    other = Desk(desk.run, app.engine.keys_of("other"), server)
    first, second = sent(desk, name=NAME), sent(other, name=NAME)
    assert (desk.drain(), other.drain()) == ([first], [second])


# --- plain requests that leave together


def asking(desk: Desk, *actions: str, timeout_ms: int = 5_000, **place: Any) -> tuple[list[str], list[int]]:
    """Ask for these actions in one call: the ids, and what is said to each."""
    where = Place(**{"priority": 100, **place})
    rows = [Asked(new_id(), action, where, timeout_ms, BODY) for action in actions]
    codes: list[int] = desk.run(ask(desk.keys, INBOX.encode(), rows, lease_ms=LEASE_MS))
    return [row.id for row in rows], codes


def test_requests_that_leave_together_are_stored_in_order_each_with_its_deadline(desk: Desk) -> None:
    desk.advance(-3_600_000)
    ids, codes = asking(desk, "", "", "")
    assert codes == [1, 1, 1]
    assert desk.members("ready") == ids
    assert desk.ask("HGETALL", "waiters") == {id.encode(): INBOX.encode() for id in ids}
    for id in ids:
        envelope = read_envelope(body_of(desk, id))
        assert envelope.expires_ms == desk.now_ms + 5_000
        assert bytes(envelope.kwargs) == b'{"cents":990}'
    assert desk.stats().totals == {"enqueued": 3}
    assert 0 < desk.ask("TTL", "stats") <= 7 * 86_400
    assert desk.drain() == ids
    assert sorted(everything(desk)) == ["stats"]


def test_of_requests_in_one_call_the_unserved_ones_are_reported(desk: Desk) -> None:
    desk.wait("w1")
    before = everything(desk)
    assert asking(desk, "charge")[1] == [0]
    assert asking(desk, "charge", "refund")[1] == [0, 0]
    assert everything(desk) == before, "unserved requests leave nothing and call no worker"
    desk.ask("DEL", "idle")
    serving(desk, "w1", "charge")
    ids, codes = asking(desk, "refund", "charge", "", "@w1", "charge")
    assert codes == [0, 1, 1, 0, 1]
    assert desk.members("ready") == [ids[1], ids[2], ids[4]]
    assert desk.stats().totals == {"enqueued": 3}
    desk.drain()


def test_requests_to_a_worker_silent_too_long_are_reported_as_unserved(desk: Desk) -> None:
    serving(desk, "w1", "charge")
    desk.advance(SERVE_MS + 1)
    assert asking(desk, "charge", "charge")[1] == [0, 0]
    serving(desk, "w2", "refund")
    assert asking(desk, "charge", "refund")[1] == [0, 1]
    desk.drain()


def test_a_lone_request_is_handed_to_a_worker_that_waits(desk: Desk) -> None:
    desk.wait("w1")
    (id,), codes = asking(desk, "")
    assert codes == [1]
    assert desk.bell("w1") == [b"j" + id.encode() + body_of(desk, id)]
    assert desk.ask("HGET", "claims", id).split()[:2] == [b"1", b"w1"]
    assert desk.members("ready") == desk.members("idle") == []
    assert desk.finish([id]) == []


def test_a_lone_request_behind_others_waits_for_its_turn(desk: Desk) -> None:
    (other,) = desk.push()
    desk.ask("ZADD", "idle", desk.now_ms + 30_000, "w1")
    desk.ask("PEXPIRE", "idle", 60_000)
    (id,), _ = asking(desk, "")
    assert desk.bell("w1") == [b""]
    assert desk.drain() == [other, id]


def test_requests_that_leave_together_call_as_many_workers(desk: Desk) -> None:
    for n in range(5):
        desk.wait(f"w{n}")
    asking(desk, "", "", "")
    assert sum(desk.bell(f"w{n}") == [b""] for n in range(5)) == 3
    assert len(desk.members("idle")) == 2
    desk.drain()


def test_requests_that_leave_together_share_as_others_do(desk: Desk) -> None:
    first, _ = asking(desk, *[""] * 3, tenant="big", weight=1.0, tier="free")
    second, _ = asking(desk, *[""] * 3, tenant="small", weight=1.0, tier="free")
    urgent, _ = asking(desk, "", "", priority=0)
    mixed = [id for pair in zip(first, second, strict=True) for id in pair]
    assert desk.drain() == [*urgent, *mixed]
    assert desk.stats().totals["tier:free"] == 6


def test_the_ends_of_a_hundred_requests_of_one_call_are_published(desk: Desk, server: Server) -> None:
    ids, codes = asking(desk, *[""] * 100)
    assert codes == [1] * 100
    assert desk.claim(200) == ids
    with listening(server, INBOX) as heard:
        desk.turn(0, kept(ids, ttl_ms=-300_000))
    assert [text[:20].decode() for _, text in heard] == ids
    assert sorted(everything(desk)) == ["stats"]


# --- data beside the message


def test_data_beside_a_message_has_an_end_until_it_is_sent_and_ends_with_it(desk: Desk) -> None:
    id = new_id()

    def has_an_end() -> bool:
        return bool(0 < desk.ask("PTTL", f"carried:{id}") <= UNSENT_MS)

    desk.run(next(lay_beside(desk.keys, id, b"{}")))  # and now its sender is killed
    assert has_an_end(), "from birth"
    desk.run(lay_beside(desk.keys, id, b'{"cents":990}'))
    assert desk.run(sending(desk, id, must_be_served="charge", is_claimed=True)) == ("unserved", "")
    assert has_an_end(), "it was not sent"
    sent(desk, id, is_claimed=True)
    assert desk.ask("PTTL", f"carried:{id}") == -1, "as long as it takes"
    assert desk.claim() == [id]
    desk.turn(0, moved(id, "done", ms=0))
    assert desk.ask("EXISTS", f"carried:{id}") == 0


@pytest.mark.parametrize("verb", ["dead", "cancelled", "expired", "before it starts"])
def test_data_beside_a_request_ends_with_it_however_it_ends(desk: Desk, verb: str) -> None:
    id = new_id()
    desk.run(lay_beside(desk.keys, id, b"{}"))
    sent(desk, id, is_claimed=True, waiter=INBOX)
    if verb == "before it starts":
        assert desk.run(cancel(desk.keys, [(id, 0, "")], 1000))[0] == ["cancelled"]
    else:
        desk.claim()
        desk.turn(0, moved(id, verb, ms=-60_000, text=b'{"state":"%b"}' % verb.encode()))
    assert desk.ask("EXISTS", f"carried:{id}") == 0


# --- ends


def ended(id: str, verb: str, record: bytes) -> Settled:
    """How a request ends; `first`: done in its first attempt."""
    return kept([id], ttl_ms=-300_000, record=record) if verb == "first" else moved(id, verb, ms=-300_000, text=record)


every_end = pytest.mark.parametrize("verb", ["first", "done", "dead", "cancelled", "expired"])


@every_end
def test_every_kind_of_end_of_a_request_is_published_and_not_kept(desk: Desk, server: Server, verb: str) -> None:
    id, unheard = sent(desk, waiter=INBOX), sent(desk)
    desk.claim(2)
    record = b'{"state":"%b"}' % verb.encode()
    with listening(server, INBOX) as heard:
        for one in (id, unheard):
            assert desk.turn(0, ended(one, verb, record)).refused == []
    assert heard == [(INBOX, id.encode() + record)]
    assert sorted(everything(desk)) == ["stats"]
    assert desk.stats().totals == {"enqueued": 2, "done" if verb == "first" else verb: 2}


@every_end
def test_an_end_without_listeners_is_kept_for_a_moment_and_counted(desk: Desk, verb: str) -> None:
    id = sent(desk, waiter=INBOX)
    desk.claim()
    state = "done" if verb == "first" else verb
    record = b'{"state":"%b"}' % state.encode()
    assert desk.turn(0, ended(id, verb, record)).refused == []
    assert desk.record(id) == record
    assert 0 < desk.ask("PTTL", f"ended:{id}") <= 300_000
    assert desk.stats().totals["unheard"] == 1
    assert sorted(everything(desk)) == [f"ended:{id}", "stats"], "no index of it"
    found = desk.run(attach(desk.keys, id, INBOX.encode()))
    assert isinstance(found, Record)
    assert found.state is State(state)


def test_the_end_of_a_message_is_published_to_all_waiters(desk: Desk, server: Server) -> None:
    other = "{relevo:test}:inbox:p2"
    id = sent(desk, waiter=INBOX, name=NAME)
    assert desk.run(attach(desk.keys, id, other.encode())) is True
    assert desk.run(attach(desk.keys, id, other.encode())) is True, "twice is once"
    desk.claim()
    with listening(server, INBOX, other) as heard:
        desk.turn(0, kept([id], record=b'{"state":"done"}'))
    assert sorted(channel for channel, _ in heard) == [INBOX, other]
    assert desk.record(id) is not None, "under a name it is kept"


def test_a_settlement_after_a_lost_lease_is_not_published(desk: Desk, server: Server) -> None:
    """No double reply. The reply of the worker that lost the lease is refused, and only the other one is published."""
    id = sent(desk, waiter=INBOX)
    assert desk.claim(worker="zombie", lease_ms=0) == [id]
    lost = desk.turn(1, worker="heir").lost
    assert [row[0].decode() for row in lost] == [id]
    desk.turn(0, moved(id, "back", 2))
    assert desk.claim(worker="heir") == [id]
    with listening(server, INBOX) as heard:
        assert desk.turn(0, kept([id], ttl_ms=-300_000, record=b"zombie"), worker="zombie").refused == [id.encode()]
        assert desk.turn(0, moved(id, "dead", 1, ms=-300_000, text=b"zombie")).refused == [id.encode()]
        assert desk.turn(0, moved(id, "dead", 2, ms=-300_000, text=b"zombie")).refused == [id.encode()]
        assert desk.turn(0, moved(id, "done", 3, ms=-300_000, text=b'{"state":"done"}'), worker="heir").refused == []
        assert desk.turn(0, kept([id], ttl_ms=-300_000, record=b"zombie"), worker="zombie").refused == [id.encode()]
        assert desk.turn(0, moved(id, "done", 3, ms=-300_000, text=b"twice"), worker="heir").refused == [id.encode()]
    assert heard == [(INBOX, id.encode() + b'{"state":"done"}')]
    assert desk.record(id) is None


def test_a_cancel_before_the_start_is_published_to_the_waiters(desk: Desk, server: Server) -> None:
    id = sent(desk, waiter=INBOX, place=Place(100, "acme", 2.0))
    with listening(server, INBOX) as heard:
        said, more = desk.run(cancel(desk.keys, [(id, 0, "")], 1000))
        assert (said, more) == (["cancelled"], False)
        assert desk.run(cancel(desk.keys, [(id, 0, "")], 1000))[0] == ["unknown"]
    ((channel, text),) = heard
    assert channel == INBOX
    assert text.startswith(id.encode() + b'{"state":"cancelled"')
    assert sorted(everything(desk)) == ["stats"]


def test_a_request_that_is_handed_back_keeps_its_waiters(desk: Desk, server: Server) -> None:
    id = sent(desk, waiter=INBOX)
    for token in (1, 2, 3):
        assert desk.claim() == [id]
        desk.turn(0, moved(id, "back", token))
    desk.claim()
    with listening(server, INBOX) as heard:
        desk.turn(0, moved(id, "done", 4, ms=-300_000, text=b'{"state":"done"}'))
    assert len(heard) == 1


# --- workers that serve


def test_a_worker_that_serves_is_listed(desk: Desk) -> None:
    about = worker("w1", 3)
    takes = msgspec.json.encode({"takes": {"type": "object"}})
    assert (
        desk.run(serve(desk.keys, about, knows("billing.charge", "billing.refund"), {"charge": takes, "refund": b"{}"}))
        == 1
    )
    assert seen(desk) == Served((about,), {"charge": {"takes": {"type": "object"}}, "refund": {}}, {})
    assert 0 < desk.ask("PTTL", "instances") <= 10 * SERVE_MS
    assert 0 < desk.ask("PTTL", "offers") <= KNOWN_MS


def test_serving_again_renews_the_lease_and_changes_nothing_else(desk: Desk) -> None:
    assert serving(desk, "w1") == 1
    until = desk.score("instances", "w1")
    assert until is not None
    desk.advance(10_000)
    assert serving(desk, "w1") == 1
    assert (desk.score("instances", "w1") or 0) >= until + 10_000
    assert [one.id for one in seen(desk).instances] == ["w1"]
    assert sorted(desk.ask("HKEYS", "offers")) == sorted(
        [b"#w1", b"%" + knows("billing.charge").build.encode(), b"@w1", b"charge"]
    )


def test_a_worker_that_leaves_counts_no_more_and_what_it_offered_can_be_seen(desk: Desk) -> None:
    assert leaving(desk, "unknown") == 0
    assert everything(desk) == {}
    assert serving(desk, "w1", "charge") == 1
    assert serving(desk, "w2", "charge", "refund") == 2
    assert [one.id for one in seen(desk).instances] == ["w1", "w2"]
    assert sorted(seen(desk).actions) == ["charge", "refund"]
    for _ in range(2):
        assert leaving(desk, "w1") == 1
        assert [one.id for one in seen(desk).instances] == ["w2"]
    assert leaving(desk, "w2") == 0
    assert seen(desk) == Served((), {}, {"charge": {"takes": {}}, "refund": {"takes": {}}})
    assert 0 < desk.ask("PTTL", "offers") <= KNOWN_MS


def test_silent_workers_are_removed_some_at_a_time_when_another_renews(desk: Desk) -> None:
    for n in range(25):
        desk.run(serve(desk.keys, worker(f"w{n}"), knows(), {}))
    desk.advance(SERVE_MS + 1)
    assert seen(desk).instances == ()
    assert [serving(desk, "new") for _ in range(4)] == [16, 6, 1, 1]
    assert desk.members("instances") == ["new"]
    assert sorted(desk.ask("HKEYS", "offers")) == sorted(
        [b"#new", b"%" + knows("billing.charge").build.encode(), b"@new", b"charge"]
    )


# --- a server without memory


def test_a_full_server_refuses_messages_and_accepts_renewals_of_workers(own_desk: Desk) -> None:
    desk = own_desk
    serving(desk, "w1")
    id = sent(desk, waiter=INBOX)
    desk.claim()
    before = everything(desk)
    desk.server.command("CONFIG", "SET", "maxmemory", 1)
    with pytest.raises(OutOfMemory, match="memory limit"):
        desk.run(sending(desk, must_be_served="charge", name=NAME, tracked=Tracked("t", 1000), waiter=INBOX))
    with pytest.raises(OutOfMemory):
        desk.run(lay_beside(desk.keys, new_id(), b"{}"))
    assert everything(desk) == before, "nothing half done"
    assert serving(desk, "w1") == 1
    assert serving(desk, "w2") == 2
    assert leaving(desk, "w2") == 1
    with pytest.raises(OutOfMemory):
        asking(desk, "charge", "charge")
    assert desk.stats().living == 1
    assert desk.turn(0, Settled([], [id], [-300_000, b'{"state":"done"}'], [])).refused == []
    desk.server.command("CONFIG", "SET", "maxmemory", 0)
    sent(desk, must_be_served="charge")
