"""engine/turn.lua: settle, promote, take back, hand out; each part in order, bounded, and fenced by the token."""

from __future__ import annotations

import pytest
import redis

from relevo.engine.push import NewJob, push_rich
from relevo.engine.turn import MOST, Limits, Moved, Settled, renew, turn
from relevo.limits.limit import limit_of
from relevo.limits.store import limit
from relevo.queues.store import pause
from relevo.store.keys import QueueKeys
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id, plain

ENDED = ("done", "dead", "cancelled", "expired")


def decoded(ids: list[bytes]) -> list[str]:
    return [id.decode() for id in ids]


# --- handing out


def test_an_empty_queue_gives_nothing_and_no_time_to_ask_again(desk: Desk) -> None:
    found = desk.turn(5)
    assert (found.ids, found.bodies, found.refused, found.again, found.lost) == ([], [], [], {}, [])
    assert (found.wake_ms, found.now_ms) == (0, desk.now_ms)
    assert desk.members("idle") == [], "a taker with a loop of its own is never idle"


def test_outside_tests_the_time_is_that_of_the_server(desk: Desk) -> None:
    def server_ms() -> int:
        seconds, micros = desk.server.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    before = server_ms()
    found = desk.run(turn(QueueKeys(desk.keys.address), "w", Limits(LEASE_MS, 0, 10, 10), 1, Settled()))
    assert before <= found.now_ms <= server_ms()


def test_a_claim_lends_the_job_for_the_lease(desk: Desk) -> None:
    (id,) = desk.push("body")
    found = desk.turn(1, worker="w1", lease_ms=20_000)
    assert (found.ids, found.bodies, found.again) == ([id.encode()], [b"body"], {})
    assert desk.score("running", id) == found.now_ms + 20_000
    assert desk.ask("HGET", "claims", id).rstrip() == f"1 w1 {found.now_ms}".encode()
    assert desk.finish([id], worker="w1") == []


def test_claims_are_kept_where_one_is_found_without_walking_through_all(desk: Desk) -> None:
    desk.push(*["{}"] * 10)
    desk.claim(10)
    assert desk.server.command("OBJECT", "ENCODING", desk.keys.key("claims")) == b"hashtable"


def test_no_more_than_wanted_is_handed_out_and_each_to_one_worker_only(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 1230)
    assert [id for n in range(10) for id in desk.claim(3, worker=f"w{n}")] == ids[:30]
    assert desk.claim(0) == []
    assert len(desk.turn(5000).ids) == MOST == 1000
    assert desk.stats().ready == 200


def test_a_job_handed_out_again_comes_with_its_claim_story_and_wish_to_cancel(desk: Desk) -> None:
    first, second = desk.push("1", "2")
    desk.claim(1, worker="w1")
    desk.turn(0, moved(first, "retry", ms=0, text=b'{"spent":1}'), worker="w1")
    assert desk.members("ready") == [second, first], "a retry without delay queues behind the others"
    assert desk.claim(2, worker="w1") == [second, first]
    desk.ask("HSET", "claims", first, desk.ask("HGET", "claims", first) + b" c")
    desk.turn(0, moved(first, "back", token=2), worker="w1")
    lost, last = desk.push("3", "4")
    desk.ask("HDEL", "jobs", lost)
    found = desk.turn(5, worker="w2")
    assert (decoded(found.ids), found.bodies) == ([first, last], [b"1", b"4"]), "one without a body stops no other"
    assert list(found.again) == [0]
    claim, story = found.again[0]
    assert claim.split() == [b"3", b"w2", b"%d" % found.now_ms, b"c"]
    assert story == b'{"spent":1}'
    assert (desk.stats().totals["orphans"], desk.stats().ready, desk.stats().running) == (1, 0, 3)


def test_a_thousand_entries_without_a_body_do_not_stop_the_next(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 1000)
    desk.server.command("HDEL", desk.keys.key("jobs"), *ids)
    (good,) = desk.push()
    desk.ask("DEL", "stats")  # a week without traffic
    assert desk.claim(1000) == []
    assert desk.claim(1000) == [good]
    assert desk.stats().totals == {"orphans": 1000}
    assert desk.ask("PTTL", "stats") > 0


# --- settling


def test_a_plain_end_leaves_nothing_but_a_count(desk: Desk) -> None:
    ids = desk.push("{}", "{}")
    desk.claim(2)
    assert desk.turn(0, plain(ids)).refused == []
    stats = desk.stats()
    assert (stats.living, stats.done, stats.totals) == (0, 0, {"enqueued": 2, "done": 2})
    for key in ("jobs", "ready", "running", "claims", "story", "done", "clock"):
        assert desk.ask("EXISTS", key) == 0, key


def test_a_kept_end_leaves_its_record_for_its_time(desk: Desk) -> None:
    id, short, unlisted = desk.push("{}", "{}", "{}")
    desk.claim(3)
    found = desk.turn(0, kept([id], ttl_ms=500_000, record=b'{"state":"done","result":1}'))
    assert found.refused == []
    assert desk.record(id) == b'{"state":"done","result":1}'
    assert 0 < desk.ask("PTTL", f"ended:{id}") <= 500_000
    assert desk.score("done", id) == found.now_ms
    desk.turn(0, kept([short], ttl_ms=100_000))
    assert 100_000 < desk.ask("PTTL", "done") <= 500_000, "the index lives as long as its longest record"
    assert desk.stats().done == 2
    desk.turn(0, kept([unlisted]), done_max=0)
    assert (desk.members("done"), desk.record(unlisted) is None) == ([], False), "an index of none is possible"


@pytest.mark.parametrize("verb", ENDED)
def test_a_moved_end_files_its_record_if_it_has_a_time(desk: Desk, verb: str) -> None:
    id, traceless = desk.push("{}", "{}")
    desk.claim(2)
    desk.turn(0, moved(traceless, verb, ms=0, text=b"{}"))
    assert (desk.record(traceless), desk.members(verb)) == (None, [])
    record = f'{{"state":"{verb}"}}'.encode()
    found = desk.turn(0, moved(id, verb, ms=500_000, text=record))
    assert found.refused == []
    # With the last token, so that a second life goes on from there; a job that is done has none.
    assert desk.record(id) == (record if verb == "done" else record.replace(b"{", b'{"token":1,', 1))
    assert 0 < desk.ask("PTTL", f"ended:{id}") <= 500_000
    assert desk.members(verb) == [id]
    assert 0 < desk.ask("PTTL", verb) <= 500_000
    stats = desk.stats()
    assert (stats.living, getattr(stats, verb), stats.totals[verb]) == (0, 1, 2)


@pytest.mark.parametrize("verb", ENDED)
def test_an_end_removes_story_and_name(desk: Desk, verb: str) -> None:
    id = desk.push_one(name="n", scope="until_done")
    desk.claim()
    desk.turn(0, moved(id, "retry", ms=0, text=b'{"spent":1}'))
    desk.claim()
    desk.turn(0, moved(id, verb, token=2, text=b"{}", name="n"))
    for key in ("jobs", "claims", "story", "names", "running"):
        assert desk.ask("EXISTS", key) == 0, key


def test_a_retry_is_scheduled_with_its_story_and_tenant(desk: Desk) -> None:
    id = desk.push_one(priority=42, tenant="a", weight=2.0)
    desk.claim()
    retry = moved(id, "retry", ms=5000, text=b'{"spent":1}', priority=42, tenant="a", weight=2.0)
    found = desk.turn(0, retry)
    assert desk.score("scheduled", id) == (found.now_ms + 5000) * 1024 + 42
    assert desk.ask("HGET", "story", id) == b'{"spent":1}'
    assert desk.ask("HGET", "groups", id) == b"2.0 a"
    assert (desk.stats().scheduled, desk.stats().running, desk.stats().totals["retry"]) == (1, 0, 1)
    desk.advance(5001)
    desk.turn(0)
    assert desk.stats().scheduled == 1, "nothing is promoted by a worker without room"
    assert desk.claim() == [id]
    assert desk.ask("EXISTS", "groups") == 0


def test_what_is_handed_back_goes_before_what_came_later(desk: Desk) -> None:
    first, second, third = desk.push("{}", "{}", "{}")
    urgent = desk.push(priority=0)
    assert desk.claim(3) == [*urgent, first, second]
    desk.turn(0, Settled(moved=[*moved(second, "back").moved, *moved(first, "back").moved]))
    assert desk.members("ready") == [first, second, third]
    assert desk.stats().totals["back"] == 2


@pytest.mark.parametrize("verb", ["retry", "back", *ENDED])
def test_a_wrong_token_is_refused_and_changes_nothing(desk: Desk, verb: str) -> None:
    """A worker that lost its lease cannot commit."""
    (id,) = desk.push("body")
    desk.claim()
    before = (desk.score("running", id), desk.ask("HGET", "claims", id))
    for token in (0, 2, 11):
        assert desk.turn(0, moved(id, verb, token=token)).refused == [id.encode()]
        assert desk.turn(0, plain([id], token)).refused == [id.encode()]
        assert desk.turn(0, kept([id], token)).refused == [id.encode()]
    assert (desk.score("running", id), desk.ask("HGET", "claims", id)) == before
    assert desk.record(id) is None
    assert desk.stats().totals == {"enqueued": 1}
    assert desk.finish([id]) == []


def test_settling_twice_is_refused_the_second_time_and_does_not_hold_up_others(desk: Desk) -> None:
    a, b, c, d = desk.push("{}", "{}", "{}", "{}")
    desk.claim(4)
    settled = Settled(plain=[a], kept=[b], records=[60_000, b"{}"], moved=moved(c, "dead", text=b"{}").moved)
    assert desk.turn(0, settled).refused == []
    totals = desk.stats().totals
    assert desk.turn(0, settled).refused == [a.encode(), b.encode(), c.encode()]
    assert desk.stats().totals == totals
    strange = new_id()
    assert decoded(desk.turn(0, plain([a, strange, d])).refused) == [a, strange]
    assert desk.stats().living == 0


def test_a_thousand_of_each_kind_fit_in_one_turn(desk: Desk) -> None:
    a, b, c = desk.push(*["{}"] * 1000), desk.push(*["{}"] * 1000), desk.push(*["{}"] * 1000)
    for _ in range(3):
        desk.claim(1000)
    settled = Settled(
        plain(a).plain,
        kept(b, record=b"{}").kept,
        kept(b, record=b"{}").records,
        [Moved(id, 1, "dead", 100, f"g{n}", 1.0, 60_000, b"{}") for n, id in enumerate(c)],
    )
    assert desk.turn(0, settled, done_max=10).refused == []
    stats = desk.stats()
    assert (stats.living, stats.done, stats.dead) == (0, 10, 1000)


def test_a_thousand_retries_of_a_thousand_tenants_fit_in_one_turn(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 1000)
    desk.claim(1000)
    rows = [Moved(id, 1, "retry", 100, f"g{n}", 1.0, 10, b"{}") for n, id in enumerate(ids)]
    desk.turn(0, Settled(moved=rows))
    desk.advance(1000)
    assert [id for _ in range(4) for id in desk.claim(1000)] == ids
    back = [Moved(id, 2, "retry", 100, f"g{n}", 1.0, 0, b"{}") for n, id in enumerate(ids)]
    assert desk.turn(0, Settled(moved=back)).refused == []
    assert desk.stats().ready == 1000


def test_what_was_settled_as_back_can_be_claimed_in_the_same_turn(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim()
    found = desk.turn(1, moved(id, "back"))
    assert decoded(found.ids) == [id]
    assert found.again[0][0].startswith(b"2 ")


# --- limits of what is kept


def test_the_index_of_done_jobs_is_short_but_results_live_on(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 6)
    desk.claim(6)
    for id in ids[:3]:
        desk.turn(0, kept([id]), done_max=2)
    for id in ids[3:]:
        desk.turn(0, moved(id, "done", text=b"{}"), done_max=2)
    assert len(desk.members("done")) == 2
    assert all(desk.record(id) is not None for id in ids)
    assert "dropped" not in desk.stats().totals


def test_the_oldest_dead_letters_go_when_there_are_too_many(desk: Desk) -> None:
    """Record and entry go together, and are counted."""
    ids = desk.push(*["{}"] * 5)
    desk.claim(5)
    for id in ids:
        desk.advance(10)
        desk.turn(0, moved(id, "dead", text=b"{}"), dead_max=3)
    assert desk.members("dead") == ids[2:]
    assert [desk.record(id) is not None for id in ids] == [False, False, True, True, True]
    stats = desk.stats()
    assert (stats.dead, stats.totals["dead"], stats.totals["dropped"]) == (3, 5, 2)


def test_entries_whose_record_has_ended_leave_with_those_that_come(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 5)
    desk.claim(5)
    for id in ids:
        desk.advance(10)
        desk.turn(0, moved(id, "dead", text=b"{}"))
        if id == ids[3]:
            for old in ids[:3]:
                desk.ask("DEL", f"ended:{old}")  # its time is over
    assert desk.members("dead") == ids[3:]


# --- what follows


def test_a_follow_up_is_pushed_in_the_same_step(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim(worker="busy")
    desk.wait("idle")
    end = moved(id, "dead", follow_id=new_id(), follow_priority=50, follow_body=b'{"t":"onfail"}')
    desk.turn(0, end, worker="busy")
    assert desk.bell("idle") == [b""], "an idle worker is called"
    follow = end.moved[0].follow_id
    assert desk.members("ready") == [follow]
    assert desk.turn(0, end).refused == [id.encode()], "a refused end pushes none"
    found = desk.turn(1)
    assert (decoded(found.ids), found.bodies, found.again) == ([follow], [b'{"t":"onfail"}'], {})
    assert (desk.stats().living, desk.stats().totals["enqueued"]) == (1, 2)


@pytest.mark.parametrize("how", ["plain", "kept", "dead"])
def test_the_end_of_a_job_is_published_to_its_waiters(desk: Desk, server: Server, how: str) -> None:
    a, b = desk.push("{}", "{}")
    desk.ask("HSET", "waiters", a, "inbox1 inbox2")
    desk.claim(2)
    with redis.Redis.from_url(server.url, protocol=2) as client, client.pubsub(ignore_subscribe_messages=True) as sub:
        sub.subscribe("inbox1", "inbox2")
        sub.parse_response()
        sub.parse_response()
        record = b'{"state":"done"}'
        ways = {"plain": plain([a, b]), "kept": kept([a, b], record=record), "dead": moved(a, "dead", text=record)}
        desk.turn(0, ways[how])
        told = sorted((sub.parse_response()[1:] for _ in range(2)), key=str)
        assert told == [[b"inbox1", a.encode() + record], [b"inbox2", a.encode() + record]]
    assert desk.ask("EXISTS", "waiters") == 0


# --- promotion


def test_due_jobs_are_promoted_in_order_of_their_time(desk: Desk) -> None:
    late = desk.push_one(when="+3000")
    soon = desk.push_one(when="+1000")
    mid = desk.push_one(when="+2000")
    desk.advance(2500)
    assert desk.claim(10) == [soon, mid]
    assert desk.members("scheduled") == [late]


def test_at_most_250_are_promoted_per_turn_and_none_twice(desk: Desk) -> None:
    jobs = [NewJob(new_id(), 100, b"{}", when="+1000") for _ in range(2500)]
    for start in range(0, 2500, 1000):
        desk.run(push_rich(desk.keys, jobs[start : start + 1000]))
    desk.advance(1001)
    found = desk.turn(1)
    stats = desk.stats()
    assert (stats.ready, stats.scheduled, stats.running) == (99, 2400, 1)
    desk.finish(decoded(found.ids))
    found_later = desk.turn(1000)
    assert len(found_later.ids) == 99 + 250
    assert found_later.wake_ms <= found_later.now_ms, "more is due: it must ask again at once"
    desk.finish(decoded(found_later.ids))
    rest = [*decoded(found_later.ids), *desk.drain(1000)]
    assert sorted([*decoded(found.ids), *rest]) == sorted(job.id for job in jobs)


# --- lost leases


def test_a_lost_job_is_taken_back_under_a_higher_token(desk: Desk) -> None:
    (id,) = desk.push("body")
    began = desk.turn(1, worker="gone", lease_ms=5000).now_ms
    desk.advance(4000)
    assert desk.turn(1, worker="w2").lost == []
    desk.advance(1001)
    assert desk.turn(0).lost == [], "nothing is taken back by a worker without room"
    found = desk.turn(1, worker="w2", lease_ms=7000)
    assert found.ids == []
    ((lost, claim, body, story),) = found.lost
    assert (lost, claim.rstrip(), body, story) == (id.encode(), f"2 gone {began}".encode(), b"body", b"")
    assert desk.score("running", id) == found.now_ms + 7000
    assert desk.stats().totals["lost"] == 1


def test_a_stale_worker_can_neither_settle_nor_renew_after_its_lease_was_lost(desk: Desk) -> None:
    """Its late completion is refused."""
    (id,) = desk.push()
    desk.claim(worker="stale", lease_ms=1000)
    desk.advance(2000)
    desk.turn(1, worker="w2")
    for settled in (plain([id]), kept([id]), moved(id, "retry")):
        assert desk.turn(0, settled, worker="stale").refused == [id.encode()]
    assert desk.run(renew(desk.keys, [(id, 1)], 9000))[:2] == ([id], [])
    assert desk.turn(0, moved(id, "back", token=2), worker="w2").refused == []
    assert desk.claim(worker="w3") == [id]
    assert desk.turn(0, plain([id], 2), worker="w2").refused == [id.encode()]
    assert desk.finish([id], token=3, worker="w3") == []


def test_a_job_taken_back_by_a_worker_that_died_is_taken_back_again(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim(worker="w1", lease_ms=1000)
    desk.advance(1001)
    assert desk.turn(1, worker="w2", lease_ms=1000).lost[0][1].startswith(b"2 w1 ")
    desk.advance(1001)
    assert desk.turn(1, worker="w3", lease_ms=1000).lost[0][1].startswith(b"3 w1 ")
    assert desk.stats().running == 1
    desk.turn(0, moved(id, "dead", token=3))


def test_a_lost_job_comes_with_its_story_and_a_wish_to_cancel(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim()
    desk.turn(0, moved(id, "retry", ms=0, text=b'{"spent":1}'))
    desk.claim(lease_ms=1000)
    desk.ask("HSET", "claims", id, desk.ask("HGET", "claims", id) + b" c")
    desk.advance(1001)
    _, claim, _, story = desk.turn(1).lost[0]
    assert claim.startswith(b"3 w ")
    assert claim.endswith(b" c")
    assert story == b'{"spent":1}'


def test_at_most_20_lost_jobs_are_taken_back_per_turn_and_the_rest_at_once_after(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 50)
    desk.claim(50, lease_ms=1000)
    desk.advance(1001)
    seen: list[str] = []
    for many in (20, 20, 10):
        found = desk.turn(1)
        assert len(found.lost) == many
        seen += [row[0].decode() for row in found.lost]
        assert (found.wake_ms <= found.now_ms) == (many == 20)
    assert sorted(seen) == ids


def test_a_running_job_without_a_claim_is_taken_back_and_one_without_a_body_dropped(desk: Desk) -> None:
    gone, id = desk.push("1", "body")
    desk.claim(2, lease_ms=1000)
    desk.ask("HDEL", "jobs", gone)
    desk.ask("HDEL", "claims", id)
    desk.advance(1001)
    found = desk.turn(1)
    assert [(row[0], row[2]) for row in found.lost] == [(id.encode(), b"body")]
    assert (desk.stats().totals["orphans"], desk.ask("HEXISTS", "claims", gone)) == (1, 0)
    token = int(found.lost[0][1].split()[0])
    assert desk.turn(0, moved(id, "back", token=token)).refused == []
    assert desk.claim() == [id]


# --- idling, calling others, pausing


def test_a_worker_that_gets_less_than_it_wants_is_noted_as_idle(desk: Desk) -> None:
    desk.push()
    found = desk.turn(2, worker="w1", idle_ms=40_000)
    assert len(found.ids) == 1
    assert desk.score("idle", "w1") == found.now_ms + 40_000
    assert 0 < desk.ask("PTTL", "idle") <= 80_000
    assert desk.stats().idle_workers == 1
    desk.push_one(tenant="a")
    desk.wait("w1")
    assert desk.members("idle") == [], "not when it gets all it wants"


def test_the_time_to_ask_again_is_the_next_due_or_the_next_lease(desk: Desk) -> None:
    now = desk.turn(1).now_ms
    desk.push_one(when=str(now + 500_000), priority=1023)
    assert desk.turn(1).wake_ms == now + 500_000
    desk.push()
    found = desk.turn(2, lease_ms=20_000)
    assert found.wake_ms == found.now_ms + 20_000
    assert desk.turn(0).wake_ms == 0


def test_a_worker_passes_the_call_on_when_more_is_waiting(desk: Desk) -> None:
    """Chain: a bulk wakes as many as it needs, each of which wakes the next."""
    desk.push(*["{}"] * 3)
    for worker in ("w2", "w3"):
        desk.ask("ZADD", "idle", desk.now_ms + 60_000, worker)
    assert len(desk.turn(1, worker="w1").ids) == 1
    assert sorted([desk.bell("w2"), desk.bell("w3")]) == [[], [b""]]
    desk.turn(2, worker="w2")
    assert sorted([desk.bell("w2"), desk.bell("w3")]) == [[], [b""]], "nothing is left to call for"


@pytest.mark.parametrize(("verb", "want"), [("back", 0), ("retry", 0), ("retry", 1)])
def test_what_a_full_worker_gives_back_reaches_an_idle_one(desk: Desk, verb: str, want: int) -> None:
    """Else it would sleep past the new due time: its timer was set for a later one, or for none."""
    id, *second = desk.push(*["{}"] * (1 + want))
    desk.claim(worker="full")
    desk.ask("ZADD", "idle", desk.now_ms + 60_000, "idle")
    assert decoded(desk.turn(want, moved(id, verb, ms=2000), worker="full").ids) == second
    assert desk.bell("idle") == [b""]
    found = desk.wait("idle")
    assert decoded(found.ids) == [id] * (verb == "back")
    assert verb == "back" or 0 < found.wake_ms - found.now_ms <= 2000


def test_a_retry_that_is_due_after_another_calls_no_worker(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim(worker="full")
    desk.push_one(when="+1000")
    desk.wait("idle")
    desk.turn(0, moved(id, "retry", ms=60_000), worker="full")
    assert desk.bell("idle") == []


def test_a_paused_queue_hands_out_nothing_but_settles(desk: Desk) -> None:
    running, waiting = desk.push("{}", "{}")
    desk.claim(1)
    assert desk.run(pause(desk.keys, True)) is True
    found = desk.turn(5, plain([running]), worker="w1", idle_ms=40_000)
    assert (found.ids, found.refused, found.wake_ms) == ([], [], 0)
    assert desk.members("idle") == []
    assert desk.stats().paused
    assert desk.run(pause(desk.keys, False)) is True
    assert desk.bell("w1") == [b""], "workers that asked during the pause are called"
    assert desk.claim() == [waiting]


def test_a_paused_queue_neither_promotes_nor_takes_back(desk: Desk) -> None:
    desk.push()
    desk.claim(lease_ms=1000)
    desk.push_one(when="+1000")
    desk.run(pause(desk.keys, True))
    desk.advance(2000)
    assert desk.turn(5).lost == []
    stats = desk.stats()
    assert (stats.scheduled, stats.running, stats.ready) == (1, 1, 0)
    desk.run(pause(desk.keys, False))
    found = desk.turn(5)
    assert (len(found.lost), len(found.ids)) == (1, 1)


LARGE = '{"t":"shop.mail","a":["' + "x" * 1_500_000 + '"]}'


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
def test_a_turn_hands_out_some_megabytes_and_the_rest_with_the_next(desk: Desk, limited: bool) -> None:
    """Bodies of 4 MB at the most, as a worker takes in all of them at once; it asks for the others without a rest."""
    if limited:
        desk.run(limit(desk.keys, "q:", limit_of(concurrency=500)))
    pushed = [id for _ in range(3) for id in desk.push(*["{}"] * 20, LARGE, LARGE)]
    taken: list[str] = []
    while True:
        found = desk.turn(100, idle_ms=30_000)
        assert sum(map(len, found.bodies)) <= 4 << 20
        taken += decoded(found.ids)
        if found.wake_ms != found.now_ms:
            break
    assert taken == pushed


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
def test_a_job_larger_than_a_turn_goes_alone(desk: Desk, limited: bool) -> None:
    if limited:
        desk.run(limit(desk.keys, "q:", limit_of(concurrency=500)))
    body = '{"t":"shop.mail","a":["' + "x" * 5_000_000 + '"]}'
    pushed = [id for _ in range(3) for id in desk.push(body)]
    assert [desk.claim(10) for _ in range(4)] == [[one] for one in pushed] + [[]]


def test_large_jobs_of_silent_workers_are_taken_back_by_several_turns(desk: Desk) -> None:
    pushed = [id for _ in range(6) for id in desk.push(LARGE)]
    for _ in pushed:
        desk.claim(worker="gone", lease_ms=10_000)
    desk.advance(10_001)
    lost: list[str] = []
    for _ in range(3):
        found = desk.turn(1)
        assert sum(len(row[2]) for row in found.lost) < 6 << 20
        lost += decoded([row[0] for row in found.lost])
    assert lost == pushed
