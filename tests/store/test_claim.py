"""engine/claim_job: one job is claimed by its id, or changes hands. queues/promote_jobs: what is due becomes ready."""

from __future__ import annotations

from relevo.engine.job_store import cancel
from relevo.engine.turn import Claimed, claim
from relevo.limits.limit import Limit
from relevo.limits.store import limit
from relevo.queues.store import PROMOTED, promote
from tests.store.desk import LEASE_MS, Desk, moved, new_id, plain, repeated

BODY = '{"t":"shop.charge","g":"acme","a":[7]}'


def taken(desk: Desk, id: str, worker: str = "w", token: str = "", lease_ms: int = LEASE_MS) -> Claimed | None:
    found: Claimed | None = desk.run(claim(desk.keys, id, worker, lease_ms, token))
    return found


def test_a_ready_job_is_claimed_before_those_ahead_of_it(desk: Desk) -> None:
    first, second = desk.push(BODY, BODY)
    found = taken(desk, second)
    assert found is not None
    assert (found.claim.split()[:2], found.body, found.story) == ([b"1", b"w"], BODY.encode(), b"")
    assert (desk.members("ready"), desk.members("running")) == ([first], [second])
    assert desk.score("running", second) == found.now_ms + LEASE_MS
    assert desk.finish([second]) == []
    assert desk.drain() == [first]


def test_it_is_given_to_one_caller_only(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    assert taken(desk, id, "a") is not None
    assert taken(desk, id, "b") is None
    assert desk.run(repeated(claim(desk.keys, id, "a", LEASE_MS))) is None
    assert desk.finish([id]) == []


def test_what_waits_for_something_or_is_not_there_is_not_claimed(desk: Desk) -> None:
    later = desk.push_one(BODY, when=str(desk.now_ms + 60_000))
    (parent,) = desk.push(BODY)
    child = desk.push_one(BODY, needs="w 1 60000 ")
    assert [taken(desk, id) for id in (later, child, new_id())] == [None, None, None]
    assert desk.stats().running == 0
    assert desk.drain() == [parent]
    assert desk.run(cancel(desk.keys, [(later, 1000, ""), (child, 1000, "")], 100))[0] == ["cancelled", "cancelled"]


def test_a_job_that_was_handed_out_before_has_a_new_token_and_its_story(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    desk.claim()
    desk.turn(0, moved(id, "back", text=b'{"crashes":1}'))
    found = taken(desk, id)
    assert found is not None
    assert (found.claim.split()[0], found.story) == (b"2", b'{"crashes":1}')
    assert desk.turn(0, plain([id], 2)).refused == []


def test_a_parked_job_leaves_its_line(desk: Desk) -> None:
    desk.run(limit(desk.keys, "g:acme", Limit(concurrency=1)))
    ids = desk.push(BODY, BODY, BODY)
    assert desk.claim(10) == ids[:1]
    assert desk.stats().waiting == 2
    assert taken(desk, ids[2]) is not None
    assert desk.finish(ids[2:]) == []
    assert desk.finish(ids[:1]) == []
    assert desk.drain() == [ids[1]]


def test_a_running_job_changes_hands_under_its_token(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    desk.claim(worker="a")
    assert taken(desk, id, "b", token="2") is None
    found = taken(desk, id, "b", token="1", lease_ms=90_000)
    assert found is not None
    assert found.claim.split()[:2] == [b"1", b"b"]
    assert desk.score("running", id) == found.now_ms + 90_000
    assert desk.finish([id]) == []
    assert taken(desk, id, "b", token="1") is None


def test_a_cancel_that_was_asked_for_is_kept(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    desk.claim(worker="a")
    desk.run(cancel(desk.keys, [(id, 1000, "")], 100))
    found = taken(desk, id, "b", token="1")
    assert found is not None
    assert found.claim.endswith(b" c")
    assert desk.finish([id]) == []


# --- promote


def test_all_jobs_that_are_due_become_ready_in_their_order(desk: Desk) -> None:
    soon = desk.now_ms + 60_000
    low = desk.push_one(when=str(soon), priority=150)
    first, second = (desk.push_one(when=str(soon + n), priority=50) for n in (0, 1))
    later = desk.push_one(when=str(soon + 60_000))
    assert desk.run(promote(desk.keys)) == 0
    desk.advance(60_001)
    assert desk.run(promote(desk.keys)) == 3
    assert desk.run(promote(desk.keys)) == 0
    assert (desk.members("ready"), desk.members("scheduled")) == ([first, second, low], [later])
    desk.advance(60_000)
    assert desk.drain() == [first, second, later, low]


def test_more_jobs_than_one_call_moves_are_promoted(desk: Desk) -> None:
    soon = desk.now_ms + 60_000
    for _ in range(PROMOTED + 1):
        desk.push_one(when=str(soon))
    desk.advance(60_000)
    call = next(promote(desk.keys))
    assert [desk.run(call), desk.run(call), desk.run(call)] == [PROMOTED, 1, 0]
    assert len(desk.drain()) == PROMOTED + 1


def test_an_idle_worker_is_called_and_tenants_keep_their_shares(desk: Desk) -> None:
    soon = desk.now_ms + 60_000
    for tenant in ("acme", "acme", "acme", "bolt"):
        desk.push_one(BODY.replace("acme", tenant), when=str(soon), tenant=tenant)
    desk.wait("w1", idle_ms=600_000)
    desk.advance(60_000)
    assert desk.run(promote(desk.keys)) == 4
    assert desk.bell("w1") == [b""]
    assert desk.ask("EXISTS", "groups") == 0
    bodies = [body for _ in range(4) for body in desk.turn(1).bodies]
    assert bodies[1] == BODY.replace("acme", "bolt").encode(), "the other tenant comes second"
    assert len(desk.members("running")) == 4
    desk.finish(desk.members("running"))
