"""send.lua, ask.lua and serve.lua: messages put on a service's queue, and the workers that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
import pytest
import redis

from relevo import Relevo, State
from relevo.errors import OutOfMemory
from relevo.model.job import Record, read_envelope
from relevo.store.jobs import attach, cancel, look
from relevo.store.messages import UNSENT_MS, Asked, Name, Place, Tracked, ask, lay_beside, send
from relevo.store.plan import Call
from relevo.store.presence import KNOWN_MS, SERVE_MS, Served, offers, present_at, retire, serve, served
from relevo.store.queues import pause
from relevo.store.turns import Settled
from relevo.store.workers import WorkerInfo
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id
from tests.store.kin import everything

T = TypeVar("T")

#: A body as it is sent: without its closing brace.
BODY = b'{"t":"billing.charge","k":{"cents":990}'
PLAIN = Place(100)
INBOX = "{relevo:test}:inbox:p1"
NAME = Name("billing.charge:key-1", 600_000)


def repeated(call: Call[T]) -> Call[T]:
    """The call as a driver sends it after it lost the reply."""
    assert call.again == 0
    return Call([1, *call.args[1:]], call.decode, call.script, call.keys, again=0)


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
    return WorkerInfo(id, "host", 1, ("billing:actions",), 10, 1, running)


def serving(desk: Desk, id: str = "w1", *actions: str) -> int:
    """A worker says that it serves these actions: how many serve the queue."""
    found: int = desk.run(serve(desk.keys, worker(id), dict.fromkeys(actions or ("charge",), b'{"takes":{}}')))
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
    assert body_of(desk, id) == BODY + b"}"
    assert desk.members("ready") == [id]
    assert desk.stats().totals == {"enqueued": 1}
    assert 0 < desk.ask("TTL", "stats") <= 7 * 86_400
    assert sorted(everything(desk)) == ["clock", "jobs", "ready", "stats"], "and nothing else is written"
    assert desk.drain() == [id]


def test_a_message_without_a_deadline_has_none(desk: Desk) -> None:
    id = sent(desk)
    assert read_envelope(body_of(desk, id)).expires_ms is None
    desk.drain()


@pytest.mark.parametrize("ahead", [0, 3_600_000, -3_600_000])
def test_the_deadline_is_of_the_servers_clock(desk: Desk, ahead: int) -> None:
    desk.advance(ahead)
    before = desk.now_ms
    id = sent(desk, timeout_ms=5_000)
    envelope = read_envelope(body_of(desk, id))
    assert envelope.expires_ms is not None
    assert before + 5_000 <= envelope.expires_ms <= desk.now_ms + 5_000
    assert bytes(envelope.kwargs) == b'{"cents":990}'
    desk.drain()


@pytest.mark.parametrize("timeout_ms", [1, 2**31, 2**32 + 1, 3_155_760_000_000])
def test_a_deadline_is_a_whole_number_however_far_it_is(desk: Desk, timeout_ms: int) -> None:
    """A hundred years is the longest time that can be said."""
    before = desk.now_ms
    expires = read_envelope(body_of(desk, sent(desk, timeout_ms=timeout_ms))).expires_ms
    assert expires is not None
    assert 0 <= expires - before - timeout_ms < 5_000
    desk.drain()


def test_a_waiter_is_stored_in_the_same_step(desk: Desk) -> None:
    id = sent(desk, waiter=INBOX)
    assert desk.ask("HGETALL", "waiters") == {id.encode(): INBOX.encode()}
    other = sent(desk)
    assert desk.ask("HEXISTS", "waiters", other) == 0
    desk.drain()
    assert desk.ask("EXISTS", "waiters") == 0


def test_tenants_share_by_their_weights(desk: Desk) -> None:
    big, small = Place(100, "big", 2.0), Place(100, "small", 1.0)
    bigs = [sent(desk, place=big) for _ in range(4)]
    smalls = [sent(desk, place=small) for _ in range(2)]
    assert desk.drain() == [bigs[0], bigs[1], smalls[0], bigs[2], bigs[3], smalls[1]]


def test_priority_goes_before_shares(desk: Desk) -> None:
    last, first = sent(desk, place=Place(150, "a", 64.0)), sent(desk, place=Place(0, "b", 0.01))
    assert desk.drain() == [first, last]


def test_tiers_are_counted(desk: Desk) -> None:
    sent(desk, place=Place(100, "t", 1.0, "free"))
    sent(desk, place=Place(100, "t", 1.0, "free"))
    sent(desk, place=Place(100, "u", 8.0, "enterprise"))
    sent(desk)
    totals = desk.stats().totals
    assert (totals["tier:free"], totals["tier:enterprise"], totals["enqueued"]) == (2, 1, 4)
    desk.drain()


def test_a_delayed_message_waits_and_keeps_its_tenant(desk: Desk) -> None:
    id = sent(desk, delay_ms=60_000, place=Place(100, "acme", 2.0))
    assert desk.members("ready") == []
    assert desk.ask("HGET", "groups", id) == b"2.0 acme"
    assert desk.claim() == []
    desk.advance(60_001)
    assert desk.drain() == [id]


def test_what_is_made_for_a_task_is_noted_and_the_note_has_an_end(desk: Desk) -> None:
    first = sent(desk, tracked=Tracked("chat-7", 60_000))
    desk.advance(1000)
    second = sent(desk, tracked=Tracked("chat-7", 60_000))
    sent(desk)
    assert desk.members("made:chat-7") == [first, second]
    assert 0 < desk.ask("PTTL", "made:chat-7") <= 60_000
    desk.drain()


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


def test_a_delayed_message_calls_an_idle_worker_so_that_it_learns_the_time(desk: Desk) -> None:
    desk.wait("w1")
    id = sent(desk, delay_ms=60_000)
    assert desk.bell("w1") == [b""]
    assert desk.members("scheduled") == [id]
    desk.run(cancel(desk.keys, [(id, 0, "")], 1000))


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
    assert desk.run(call) == ("nobody", "")
    assert desk.run(repeated(call)) == ("nobody", "")
    assert everything(desk) == before == {}


def test_an_action_that_is_served_is_stored(desk: Desk) -> None:
    serving(desk, "w1", "charge")
    id = sent(desk, must_be_served="charge")
    assert desk.drain() == [id]


def test_an_action_that_no_worker_has_is_unserved(desk: Desk) -> None:
    serving(desk, "w1", "refund")
    assert desk.run(sending(desk, must_be_served="charge")) == ("nobody", "")
    for odd in ("@w1", "refund ", "REFUND", "refund.x"):
        assert desk.run(sending(desk, must_be_served=odd)) == ("nobody", ""), odd


def test_a_worker_that_leaves_serves_no_more_at_once(desk: Desk) -> None:
    serving(desk, "w1", "charge")
    assert leaving(desk, "w1") == 0
    assert desk.run(sending(desk, must_be_served="charge")) == ("nobody", "")


def test_a_worker_silent_for_its_lease_serves_no_more(desk: Desk) -> None:
    serving(desk, "w1", "charge")
    desk.advance(SERVE_MS // 2)
    sent(desk, must_be_served="charge")
    desk.advance(SERVE_MS // 2 + 1)
    assert desk.run(sending(desk, must_be_served="charge")) == ("nobody", "")
    serving(desk, "w1", "charge")
    sent(desk, must_be_served="charge")
    desk.drain()


def test_an_action_is_unserved_after_the_lease_of_its_last_worker(desk: Desk) -> None:
    """A deploy: the new worker no longer has the action that the old one, which was killed, had."""
    serving(desk, "old", "charge", "refund")
    serving(desk, "new", "charge")
    desk.advance(SERVE_MS // 2)
    serving(desk, "new", "charge")
    desk.advance(SERVE_MS // 2 + 1)
    assert desk.run(sending(desk, must_be_served="refund")) == ("nobody", "")
    sent(desk, must_be_served="charge")
    desk.drain()


def test_an_action_is_unserved_after_its_only_worker_left(desk: Desk) -> None:
    serving(desk, "old", "charge", "refund")
    serving(desk, "new", "charge")
    leaving(desk, "old")
    assert desk.run(sending(desk, must_be_served="charge"))[0] == "stored"
    desk.drain()
    assert desk.run(sending(desk, must_be_served="refund")) == ("nobody", "")


@pytest.mark.parametrize("garbage", [b"", b"soon", b"-1 {}", b"\xff\xfe", b'{"takes":{}}'])
def test_a_malformed_offer_is_ignored(desk: Desk, garbage: bytes) -> None:
    serving(desk, "w1", "refund")
    desk.ask("HSET", "offers", "charge", garbage)
    assert desk.run(sending(desk, must_be_served="charge")) == ("nobody", "")


# --- again: the reply was lost and the call is repeated


def test_a_repeated_call_stores_nothing_twice(desk: Desk) -> None:
    call = sending(
        desk,
        new_id(),
        waiter=INBOX,
        timeout_ms=9_000,
        name=NAME,
        tracked=Tracked("t", 60_000),
        place=Place(100, "a", 2.0),
    )
    assert desk.run(call) == ("stored", "")
    before = everything(desk)
    for _ in range(2):
        assert desk.run(repeated(call)) == ("stored", "")
    assert everything(desk) == before
    desk.drain()


def test_a_repeated_call_whose_first_was_lost_stores_it(desk: Desk) -> None:
    call = sending(desk, id := new_id(), waiter=INBOX)
    assert desk.run(repeated(call)) == ("stored", "")
    assert desk.drain() == [id]


def test_a_repeated_call_leaves_a_message_alone_that_was_handed_over(desk: Desk) -> None:
    desk.wait("w1")
    call = sending(desk, id := new_id())
    desk.run(call)
    desk.wait("w2")
    before = everything(desk)
    assert desk.run(repeated(call)) == ("stored", "")
    assert everything(desk) == before, "w2 is not handed what w1 has"
    assert desk.finish([id]) == []


def test_a_repeated_call_leaves_a_message_alone_that_has_ended_with_a_record(desk: Desk) -> None:
    call = sending(desk, id := new_id(), name=NAME)
    desk.run(call)
    assert desk.claim() == [id]
    desk.turn(0, kept([id]))
    before = everything(desk)
    assert desk.run(repeated(call)) == ("stored", "")
    assert everything(desk) == before


def test_a_repeated_call_is_stored_although_its_last_worker_has_left(desk: Desk) -> None:
    serving(desk, "w1", "charge")
    call = sending(desk, id := new_id(), must_be_served="charge")
    desk.run(call)
    leaving(desk, "w1")
    assert desk.run(repeated(call)) == ("stored", ""), "it is stored, served or not"
    assert desk.drain() == [id]


# --- names


def test_the_same_name_is_the_same_message(desk: Desk) -> None:
    first = sent(desk, name=NAME)
    before = everything(desk)
    assert desk.run(sending(desk, name=NAME)) == ("taken", first)
    assert desk.run(sending(desk, name=NAME)) == ("taken", first)
    assert everything(desk) == before
    assert 300_000 < desk.ask("PTTL", f"unique:{NAME.name}") <= 600_000
    assert desk.drain() == [first]


def test_a_name_is_taken_while_its_message_waits_runs_or_has_a_record(desk: Desk) -> None:
    first = sent(desk, name=NAME)
    assert desk.run(sending(desk, name=NAME)) == ("taken", first)
    assert desk.claim() == [first]
    assert desk.run(sending(desk, name=NAME)) == ("taken", first)
    desk.turn(0, kept([first]))
    assert desk.run(sending(desk, name=NAME)) == ("taken", first)


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
    other = Desk(desk.run, app.keys_of("other"), server)
    first, second = sent(desk, name=NAME), sent(other, name=NAME)
    assert (desk.drain(), other.drain()) == ([first], [second])


# --- plain requests that leave together


def asking(desk: Desk, *actions: str, timeout_ms: int = 5_000, **place: Any) -> tuple[list[str], list[int]]:
    """Ask for these actions in one call: the ids, and what is said to each."""
    where = Place(**{"priority": 100, **place})
    rows = [Asked(new_id(), action, where, timeout_ms, BODY) for action in actions]
    codes: list[int] = desk.run(ask(desk.keys, INBOX.encode(), rows, LEASE_MS))
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
    serving(desk, "w1", "charge")
    ids, codes = asking(desk, "refund", "charge", "", "@w1", "charge")
    assert codes == [0, 1, 1, 0, 1]
    assert desk.members("ready") == [ids[1], ids[2], ids[4]]
    assert desk.stats().totals == {"enqueued": 3}
    desk.drain()


def test_unserved_requests_leave_nothing(desk: Desk) -> None:
    assert asking(desk, "charge")[1] == [0]
    assert asking(desk, "charge", "refund")[1] == [0, 0]
    assert everything(desk) == {}


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


def test_a_single_unserved_request_calls_no_worker(desk: Desk) -> None:
    desk.wait("w1")
    assert asking(desk, "charge")[1] == [0]
    assert desk.bell("w1") == []
    assert desk.members("idle") == ["w1"]


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
    first, _ = asking(desk, *[""] * 3, group="big", weight=1.0, tier="free")
    second, _ = asking(desk, *[""] * 3, group="small", weight=1.0, tier="free")
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


def test_data_beside_a_message_ends_with_it(desk: Desk) -> None:
    id = new_id()
    desk.run(lay_beside(desk.keys, id, b'{"cents":990}'))
    assert 0 < desk.ask("PTTL", f"carried:{id}") <= UNSENT_MS
    sent(desk, id, is_claimed=True)
    assert desk.ask("PTTL", f"carried:{id}") == -1, "as long as it takes"
    assert desk.claim() == [id]
    desk.turn(0, moved(id, "done", ms=0))
    assert desk.ask("EXISTS", f"carried:{id}") == 0


@pytest.mark.parametrize("verb", ["dead", "cancelled", "expired"])
def test_data_beside_a_request_ends_with_it_however_it_ends(desk: Desk, verb: str) -> None:
    id = new_id()
    desk.run(lay_beside(desk.keys, id, b"{}"))
    sent(desk, id, is_claimed=True, waiter=INBOX)
    desk.claim()
    desk.turn(0, moved(id, verb, ms=-60_000, text=b'{"state":"%b"}' % verb.encode()))
    assert desk.ask("EXISTS", f"carried:{id}") == 0


def test_data_beside_a_request_that_is_cancelled_before_it_starts_goes_with_it(desk: Desk) -> None:
    id = new_id()
    desk.run(lay_beside(desk.keys, id, b"{}"))
    sent(desk, id, is_claimed=True, waiter=INBOX)
    assert desk.run(cancel(desk.keys, [(id, 0, "")], 1000))[0] == ["cancelled"]
    assert sorted(everything(desk)) == ["stats"]


def test_data_of_a_message_that_is_not_sent_has_an_end(desk: Desk) -> None:
    id = new_id()
    desk.run(lay_beside(desk.keys, id, b"{}"))
    assert desk.run(sending(desk, id, must_be_served="charge", is_claimed=True)) == ("nobody", "")
    assert 0 < desk.ask("PTTL", f"carried:{id}") <= UNSENT_MS


def test_data_beside_a_message_has_an_end_from_birth(desk: Desk) -> None:
    id = new_id()
    steps = lay_beside(desk.keys, id, b"{}")
    desk.run(next(steps))  # and now its sender is killed
    left = desk.ask("PTTL", f"carried:{id}")
    desk.ask("DEL", f"carried:{id}")
    assert 0 < left <= UNSENT_MS


# --- ends


def test_the_end_of_a_request_is_published_and_nothing_stays(desk: Desk, server: Server) -> None:
    id = sent(desk, waiter=INBOX)
    desk.claim()
    record = b'{"state":"done","result":7}'
    with listening(server, INBOX) as heard:
        assert desk.turn(0, kept([id], ttl_ms=-60_000, record=record)).refused == []
    assert heard == [(INBOX, id.encode() + record)]
    assert sorted(everything(desk)) == ["stats"]
    assert desk.stats().totals == {"enqueued": 1, "done": 1}


@pytest.mark.parametrize("verb", ["done", "dead", "cancelled", "expired"])
def test_every_kind_of_end_of_a_request_is_published_and_not_kept(desk: Desk, server: Server, verb: str) -> None:
    id = sent(desk, waiter=INBOX)
    desk.claim()
    record = b'{"state":"%b"}' % verb.encode()
    with listening(server, INBOX) as heard:
        assert desk.turn(0, moved(id, verb, ms=-60_000, text=record)).refused == []
    assert heard == [(INBOX, id.encode() + record)]
    assert sorted(everything(desk)) == ["stats"]


@pytest.mark.parametrize("verb", ["first", "done", "dead", "cancelled", "expired"])
def test_an_end_without_listeners_is_kept_for_a_moment_and_counted(desk: Desk, verb: str) -> None:
    id = sent(desk, waiter=INBOX)
    desk.claim()
    state = "done" if verb == "first" else verb
    record = b'{"state":"%b"}' % state.encode()
    settled = (
        kept([id], ttl_ms=-300_000, record=record) if verb == "first" else moved(id, verb, ms=-300_000, text=record)
    )
    assert desk.turn(0, settled).refused == []
    assert desk.record(id) == record
    assert 0 < desk.ask("PTTL", f"ended:{id}") <= 300_000
    assert desk.stats().totals["unheard"] == 1
    assert sorted(everything(desk)) == [f"ended:{id}", "stats"], "no index of it"
    found = desk.run(attach(desk.keys, id, INBOX.encode()))
    assert isinstance(found, Record)
    assert found.state is State(state)


def test_an_end_without_waiters_and_listeners_is_not_kept(desk: Desk) -> None:
    id = sent(desk)
    desk.claim()
    desk.turn(0, kept([id], ttl_ms=-300_000))
    assert desk.record(id) is None
    assert "unheard" not in desk.stats().totals


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


def test_a_running_message_is_cancelled_by_its_worker(desk: Desk) -> None:
    id = sent(desk, waiter=INBOX)
    desk.claim(worker="w1")
    assert desk.run(cancel(desk.keys, [(id, 0, "")], 1000))[0] == ["asked"]
    assert desk.bell("w1") == [b"c" + id.encode()]
    assert desk.run(look(desk.keys, id)).state is State.RUNNING
    desk.turn(0, moved(id, "cancelled", ms=-300_000, text=b'{"state":"cancelled"}'))


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
    assert desk.run(serve(desk.keys, about, {"charge": takes, "refund": b"{}"})) == 1
    assert seen(desk) == Served((about,), {"charge": {"takes": {"type": "object"}}, "refund": {}}, {})
    assert 0 < desk.ask("PTTL", "instances") <= 2 * SERVE_MS
    assert 0 < desk.ask("PTTL", "offers") <= KNOWN_MS


def test_serving_again_renews_the_lease_and_changes_nothing_else(desk: Desk) -> None:
    assert serving(desk, "w1") == 1
    until = desk.score("instances", "w1")
    assert until is not None
    desk.advance(10_000)
    assert serving(desk, "w1") == 1
    assert (desk.score("instances", "w1") or 0) >= until + 10_000
    assert [one.id for one in seen(desk).instances] == ["w1"]
    assert sorted(desk.ask("HKEYS", "offers")) == [b"#w1", b"@w1", b"charge"]


def test_several_workers_serve_a_queue_and_each_may_serve_other_actions(desk: Desk) -> None:
    assert serving(desk, "w1", "charge") == 1
    assert serving(desk, "w2", "charge", "refund") == 2
    found = seen(desk)
    assert [one.id for one in found.instances] == ["w1", "w2"]
    assert sorted(found.actions) == ["charge", "refund"]


def test_a_goodbye_counts_once_and_leaves_what_was_offered_to_be_seen(desk: Desk) -> None:
    serving(desk, "w1", "charge")
    assert leaving(desk, "w1") == 0
    before = everything(desk)
    assert leaving(desk, "w1") == 0
    assert everything(desk) == before
    assert seen(desk) == Served((), {}, {"charge": {"takes": {}}})
    assert 0 < desk.ask("PTTL", "offers") <= KNOWN_MS


def test_leaving_without_having_served_writes_nothing(desk: Desk) -> None:
    assert leaving(desk, "unknown") == 0
    assert everything(desk) == {}


def test_a_goodbye_leaves_the_others(desk: Desk) -> None:
    serving(desk, "w1")
    serving(desk, "w2")
    assert leaving(desk, "w1") == 1
    assert [one.id for one in seen(desk).instances] == ["w2"]
    sent(desk, must_be_served="charge")
    desk.drain()


def test_a_silent_worker_is_removed_when_another_renews(desk: Desk) -> None:
    serving(desk, "silent")
    desk.advance(SERVE_MS + 1)
    assert seen(desk).instances == ()
    assert serving(desk, "w2") == 1
    assert desk.members("instances") == ["w2"]
    assert desk.ask("HEXISTS", "offers", "@silent") == 0


def test_many_silent_workers_are_removed_some_at_a_time(desk: Desk) -> None:
    for n in range(25):
        desk.run(serve(desk.keys, worker(f"w{n}"), {}))
    desk.advance(SERVE_MS + 1)
    assert [serving(desk, "new") for _ in range(4)] == [16, 6, 1, 1]
    assert sorted(desk.ask("HKEYS", "offers")) == [b"#new", b"@new", b"charge"]


def test_a_worker_may_serve_a_queue_without_actions(desk: Desk) -> None:
    """A queue of callbacks has workers and no offers."""
    assert desk.run(serve(desk.keys, worker("w1"), {})) == 1
    assert seen(desk) == Served((worker("w1"),), {}, {})
    assert desk.run(sending(desk, must_be_served="charge")) == ("nobody", "")


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
    assert desk.run(sending(desk, must_be_served="refund")) == ("nobody", ""), "the answer needs no memory"
    with pytest.raises(OutOfMemory):
        asking(desk, "charge", "charge")
    assert asking(desk, "refund")[1] == [0]
    assert desk.stats().living == 1
    assert desk.turn(0, Settled([], [id], [-300_000, b'{"state":"done"}'], [])).refused == []
    desk.server.command("CONFIG", "SET", "maxmemory", 0)
    sent(desk, must_be_served="charge")
