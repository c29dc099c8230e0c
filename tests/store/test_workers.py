"""renew, rest, leave: what a worker says between its turns; and the list of workers."""

from __future__ import annotations

import pytest

from relevo import Relevo
from relevo.engine.job_store import cancel
from relevo.engine.turn import MOST, abandon, leave, renew, rest
from relevo.engine.workers import LOST_MS, WorkerInfo, forget_lost, gone, listed, present, roll
from relevo.limits import store as limits
from relevo.queues.store import clear
from tests.eventually import eventually
from tests.store.desk import LEASE_MS, Desk, moved, new_id

# --- renew


def test_a_renewal_lengthens_the_leases_that_are_held(desk: Desk) -> None:
    ids = desk.push("{}", "{}")
    desk.claim(2, lease_ms=1000)
    for _ in range(2):
        assert desk.run(renew(desk.keys, [(id, 1) for id in ids], 90_000))[:2] == ([], [])
    for id in ids:
        assert desk.score("running", id) == desk.now_ms + 90_000


def test_a_renewal_with_another_token_or_of_what_has_ended_is_refused(desk: Desk) -> None:
    id, ended = desk.push("{}", "{}")
    desk.claim(2, lease_ms=50_000)
    desk.finish([ended])
    before = desk.score("running", id)
    strange = new_id()
    assert desk.run(renew(desk.keys, [(id, 2), (strange, 1), (ended, 1)], 90_000))[:2] == ([id, strange, ended], [])
    assert desk.score("running", id) == before
    assert desk.members("running") == [id]


def test_a_renewal_lists_jobs_that_should_be_cancelled(desk: Desk) -> None:
    a, b = desk.push("{}", "{}")
    desk.claim(2)
    desk.run(cancel(desk.keys, [(b, 1000, "")], 10))
    for _ in range(2):
        assert desk.run(renew(desk.keys, [(a, 1), (b, 1)], 90_000))[:2] == ([], [b])


def test_a_thousand_leases_are_renewed_in_one_call(desk: Desk) -> None:
    ids = desk.push(*["{}"] * MOST)
    desk.claim(MOST)
    assert desk.run(renew(desk.keys, [(id, 1) for id in ids], 90_000))[:2] == ([], [])
    assert desk.run(renew(desk.keys, [], 90_000))[:2] == ([], [])


# --- rest


def test_a_resting_worker_stays_on_the_list(desk: Desk) -> None:
    desk.wait("w1", idle_ms=5000)
    now, wake, waits, errand = desk.run(rest(desk.keys, "w1", LEASE_MS, 60_000))
    assert (wake, waits, errand) == (0, True, 0)
    assert desk.score("idle", "w1") == now + 60_000
    assert 60_000 < desk.ask("PTTL", "idle") <= 120_000
    desk.push()
    assert desk.run(rest(desk.keys, "w1", LEASE_MS, 60_000))[2] is False, "one that was called is not put back"
    assert desk.members("idle") == []


def test_a_resting_worker_learns_when_it_is_needed_next(desk: Desk) -> None:
    now = desk.wait("w1").now_ms
    desk.push_one(when=str(now + 300_000), priority=1023)
    assert desk.run(rest(desk.keys, "w1", LEASE_MS, 60_000))[1] == now + 300_000
    desk.push()
    found = desk.turn(1, worker="w2", lease_ms=20_000)
    assert desk.run(rest(desk.keys, "w1", LEASE_MS, 60_000))[1] == found.now_ms + 20_000


# --- leave


def test_a_worker_that_leaves_gets_what_was_handed_over_in_the_last_moment(desk: Desk) -> None:
    desk.wait("w1")
    (id,) = desk.push("body")
    assert desk.run(leave(desk.keys, "w1")) == [b"j" + id.encode() + b"body"]
    assert desk.run(leave(desk.keys, "w1")) == []
    assert desk.finish([id], worker="w1") == []
    desk.push()
    assert desk.ask("EXISTS", "bell:w1") == 0, "it is called no more"


# --- the list of workers


def test_a_worker_is_listed_while_it_renews_its_presence(app: Relevo) -> None:
    info = WorkerInfo(id="w1", host="host", pid=7, queues=("default",), concurrency=10, started_ms=1)
    for _ in range(2):
        app.engine.run(present(app.engine.keys, info))
        app.engine.run(listed(app.engine.keys, info.id))
    now_ms = app.engine.run(app.engine.now_ms())
    assert app.engine.run(roll(app.engine.keys, now_ms)) == ([info], [])
    app.engine.run(gone(app.engine.keys, "w1"))
    app.engine.run(gone(app.engine.keys, "w1"))
    assert app.engine.run(roll(app.engine.keys, now_ms)) == ([], [])


def test_a_silent_worker_is_listed_as_lost_for_a_quarter_of_an_hour(app: Relevo, desk: Desk) -> None:
    """However often it is read: the answer must not depend on earlier readers."""
    app.engine.run(
        present(
            app.engine.keys, WorkerInfo(id="w1", host="host", pid=7, queues=("default",), concurrency=10, started_ms=1)
        )
    )
    app.engine.run(listed(app.engine.keys, "w1"))
    desk.server.command("PEXPIRE", app.engine.keys.worker("w1"), 1)
    eventually(lambda: not desk.server.command("EXISTS", app.engine.keys.worker("w1")))
    now_ms = int(desk.server.command("ZSCORE", app.engine.keys.workers, "w1"))
    for _ in range(2):
        assert app.engine.run(roll(app.engine.keys, now_ms)) == ([], ["w1"])
    assert app.engine.run(roll(app.engine.keys, now_ms + LOST_MS + 1)) == ([], [])
    assert app.engine.run(roll(app.engine.keys, now_ms)) == ([], ["w1"]), "reading changes nothing"


def test_workers_forget_those_that_have_been_silent_for_longer(app: Relevo, desk: Desk) -> None:
    info = WorkerInfo(id="w1", host="host", pid=7, queues=("default",), concurrency=10, started_ms=1)
    app.engine.run(present(app.engine.keys, info))
    for id in ("w1", "w2"):
        app.engine.run(listed(app.engine.keys, id))
    now_ms = app.engine.run(app.engine.now_ms())
    for _ in range(2):
        app.engine.run(forget_lost(app.engine.keys, now_ms))
        assert desk.server.command("ZCARD", app.engine.keys.workers) == 2, "not before they were listed as lost"
    for _ in range(2):
        app.engine.run(forget_lost(app.engine.keys, now_ms + LOST_MS + 1_000))
        assert desk.server.command("ZRANGE", app.engine.keys.workers, 0, -1) == [b"w1"], "one that lives stays"


def test_malformed_entries_of_the_worker_list_are_skipped(app: Relevo, desk: Desk) -> None:
    info = WorkerInfo(id="w1", host="host", pid=7, queues=("default",), concurrency=10, started_ms=1)
    app.engine.run(present(app.engine.keys, info))
    for id in ("w1", "w2", b"\xff"):
        desk.server.command("ZADD", app.engine.keys.workers, app.engine.run(app.engine.now_ms()), id)
    desk.server.command("SET", app.engine.keys.worker("w2"), '{"id":"w2","host":5}', "EX", 60)
    assert app.engine.run(roll(app.engine.keys, app.engine.run(app.engine.now_ms()))) == ([info], ["\ufffd"])
    desk.server.command("DEL", app.engine.keys.workers)


# --- abandon


def test_leases_of_a_worker_seen_dying_end_at_once(desk: Desk) -> None:
    a, b, other = desk.push("1", "2", "3")
    desk.claim(2, worker="dying")
    desk.claim(1, worker="alive")
    desk.wait("idle")
    assert desk.run(abandon(desk.keys, [(a, 1), (b, 1), (other, 2), (new_id(), 1)])) == 2
    assert desk.bell("idle") == [b""]
    found = desk.turn(5, worker="idle")
    assert sorted(row[0].decode() for row in found.lost) == [a, b]
    assert all(row[1].startswith(b"2 dying ") for row in found.lost)
    assert desk.finish([other], worker="alive") == []


def test_abandoning_twice_or_what_has_ended_changes_nothing(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim()
    assert desk.run(abandon(desk.keys, [(id, 1)])) == 1
    desk.wait("idle")
    assert desk.run(abandon(desk.keys, [(id, 1)])) == 0, "the worker that took it back has another token"
    desk.turn(0, moved(id, "done", token=2, ms=0))
    assert desk.run(abandon(desk.keys, [(id, 1), (id, 2)])) == 0
    assert desk.members("running") == []
    assert desk.run(abandon(desk.keys, [])) == 0


def test_a_worker_that_leaves_passes_an_unread_call_on(desk: Desk) -> None:
    desk.wait("stays")
    desk.wait("leaves")
    for _ in range(3):
        desk.push_one()
    desk.run(leave(desk.keys, "leaves"))
    assert desk.bell("stays"), "a worker must be called for the jobs"
    desk.drain()


@pytest.mark.parametrize("what", ["due", "parked", "errand"])
def test_a_worker_that_leaves_passes_on_for_when_its_alarm_was_set(desk: Desk, what: str) -> None:
    """Of all idle workers, perhaps only this one knows when it is needed."""
    if what == "due":
        desk.push_one(when="+60000")
    elif what == "parked":
        desk.run(limits.pause(desk.keys, "g:a", 9_000_000_000_000))
        desk.push_one('{"t":"x","g":"a"}', tenant="a")
    else:
        desk.ask("ZADD", "errands", 9_000_000_000_000, "@nightly")
    desk.wait("stays")
    desk.wait("leaves")
    desk.run(leave(desk.keys, "leaves"))
    assert desk.bell("stays") == [b""]
    desk.run(clear(desk.keys))
    desk.run(limits.resume(desk.keys, "g:a"))
    desk.ask("DEL", "errands")
