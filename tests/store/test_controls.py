"""Limits of queues and tasks beside those of tenants, and pauses that end by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from relevo.engine import job_store as store_jobs
from relevo.engine.breaker import Breaker
from relevo.engine.job import Envelope, write
from relevo.engine.push import NewJob, push_rich
from relevo.engine.turn import Turn, rest
from relevo.health.vitals import Vitals
from relevo.health.vitals_store import vitals
from relevo.limits import store as limits
from relevo.limits.limit import NO_TERMS, limit_of
from relevo.limits.pause_store import pauses, written
from relevo.limits.store import LimitInfo
from relevo.queues import store as queues
from relevo.store.plan import Call
from tests.store.desk import LEASE_MS, Desk, moved, new_id, plain
from tests.store.test_limits import assert_nothing_is_left, commands, started


def body_of(task: str, tenant: str = "", **more: Any) -> str:
    return write(Envelope(task, tenant=tenant, **more)).decode()


def enqueue(desk: Desk, task: str, count: int = 1, *, tenant: str = "", priority: int = 100) -> list[str]:
    """Jobs of one task, with a tenant or plain; their ids in order."""
    body = body_of(task, tenant, priority=priority)
    if not tenant:
        return [id for _ in range(count) for id in desk.push(body, priority=priority)]
    return [desk.push_one(body, priority=priority, tenant=tenant) for _ in range(count)]


def flood(desk: Desk, task: str, tenant: str, count: int) -> list[str]:
    ids: list[str] = []
    body = body_of(task, tenant).encode()
    while len(ids) < count:
        some = [NewJob(new_id(), 100, body, tenant=tenant) for _ in range(min(1000, count - len(ids)))]
        ids += desk.run(push_rich(desk.keys, some))
    return ids


def limit(desk: Desk, name: str, **given: Any) -> bool:
    changed: bool = desk.run(limits.limit(desk.keys, name, limit_of(**given)))
    return changed


def standing(desk: Desk, name: str) -> LimitInfo:
    (found,) = desk.run(limits.gauge(desk.keys, [name]))
    assert isinstance(found, LimitInfo)
    return found


def looked(desk: Desk) -> Vitals:
    found: Vitals = desk.run(vitals(desk.keys, "default"))
    return found


def line(desk: Desk, name: str) -> list[str]:
    return desk.members(f"parked:{name}")


def declare(desk: Desk, name: str, **given: Any) -> bool:
    terms = limit_of(**given).terms if given else NO_TERMS
    changed: bool = desk.run(limits.declare(desk.keys, name, terms))
    return changed


def in_force(desk: Desk, name: str) -> tuple[int | None, str, bool]:
    """At once, the default of the code, and whether an operator set another limit."""
    one = standing(desk, name)
    return one.concurrency, one.default, one.is_overridden


# of a task


def test_a_default_of_the_code_is_in_force_until_an_operator_sets_a_limit(desk: Desk) -> None:
    assert declare(desk, "t:charge", concurrency=2, rate="10/s")
    assert not declare(desk, "t:charge", concurrency=2, rate="10/s")
    assert in_force(desk, "t:charge") == (2, "concurrency=2, rate=10/s, burst=10", False)
    assert declare(desk, "t:charge", concurrency=3)
    assert in_force(desk, "t:charge") == (3, "concurrency=3", False)

    assert limit(desk, "t:charge", concurrency=9)
    assert not declare(desk, "t:charge", concurrency=4)
    assert in_force(desk, "t:charge") == (9, "concurrency=4", True)

    assert desk.run(limits.unlimit(desk.keys, "t:charge")), "the default comes back"
    assert in_force(desk, "t:charge") == (4, "concurrency=4", False)
    assert not desk.run(limits.unlimit(desk.keys, "t:charge"))
    assert declare(desk, "t:charge")
    assert desk.run(limits.gauge(desk.keys, ["t:charge"])) == []
    assert not desk.run(Call([b"EXISTS", desk.keys.key("limits")]))


def test_a_limit_that_an_operator_set_before_is_kept_by_a_default(desk: Desk) -> None:
    limit(desk, "t:charge", concurrency=9)
    assert not declare(desk, "t:charge", concurrency=2)
    assert in_force(desk, "t:charge") == (9, "concurrency=2", True)
    assert not declare(desk, "t:charge"), "the code has none any more"
    assert in_force(desk, "t:charge") == (9, "", False)


def test_a_limit_that_equals_the_default_is_an_operators_all_the_same(desk: Desk) -> None:
    declare(desk, "t:charge", concurrency=2)
    assert not limit(desk, "t:charge", concurrency=2)
    assert not declare(desk, "t:charge", concurrency=5)
    assert in_force(desk, "t:charge") == (2, "concurrency=5", True)


def test_pauses_and_breakers_leave_a_default_alone(desk: Desk) -> None:
    desk.run(limits.pause(desk.keys, "t:charge"))
    assert declare(desk, "t:charge", concurrency=2)
    assert in_force(desk, "t:charge") == (2, "concurrency=2", False)
    desk.run(limits.resume(desk.keys, "t:charge"))
    assert in_force(desk, "t:charge") == (2, "concurrency=2", False)
    assert not standing(desk, "t:charge").paused


def test_jobs_keep_to_a_default_of_the_code(desk: Desk) -> None:
    declare(desk, "t:charge", concurrency=2)
    ids = enqueue(desk, "charge", 5)
    assert len(desk.claim(10)) == 2
    declare(desk, "t:charge", concurrency=4)
    assert len(desk.claim(10)) == 2
    declare(desk, "t:charge")
    assert len(desk.claim(10)) == 1
    assert len(ids) == 5


def test_no_more_jobs_of_a_task_run_than_its_limit_allows_and_other_tasks_are_not_affected(desk: Desk) -> None:
    limit(desk, "t:charge", concurrency=2)
    ids = [*enqueue(desk, "charge", 3), *enqueue(desk, "charge", 2, tenant="a")]
    others = enqueue(desk, "mail", 3)
    got = desk.claim(10)
    assert set(others) < set(got)
    assert len(got) == 5
    assert standing(desk, "t:charge") == LimitInfo(
        tenant="", concurrency=2, rate=None, burst=None, paused=False, running=2, parked=3, task="charge"
    )
    order = [id for id in got if id not in others]
    while held := [id for id in order if desk.score("running", id)]:
        order += started(desk.turn(10, plain(held[:1])))
    assert sorted(order) == sorted(ids)
    desk.finish(others)
    assert_nothing_is_left(desk)


def test_a_tenant_that_floods_a_limited_task_does_not_make_others_wait_behind_it(desk: Desk) -> None:
    """The line of a task is shared like a queue."""
    limit(desk, "t:charge", concurrency=1)
    big = flood(desk, "charge", "big", 500)
    while desk.turn(10).ids or desk.stats().ready:
        pass
    small = enqueue(desk, "charge", 3, tenant="small")
    desk.claim(5)
    order: list[str] = []
    done = big[:1]
    for _ in range(8):
        done = started(desk.turn(5, plain(done)))
        assert len(done) == 1
        order += done
    assert {*small} < {*order}, "one of the one, one of the other"
    desk.run(queues.clear(desk.keys))


def test_a_plain_job_of_a_limited_task_is_not_handed_over_to_an_idle_worker(desk: Desk) -> None:
    limit(desk, "t:charge", concurrency=1)
    desk.wait("idle")
    desk.push(body_of("mail"))
    assert desk.bell("idle")[0][:1] == b"j", "others are"
    desk.ask("DEL", "bell:idle")
    desk.wait("idle")
    desk.push(body_of("charge"))
    assert desk.bell("idle") == [b""]
    assert len(desk.claim(5, worker="idle")) == 1
    assert standing(desk, "t:charge").running == 1


def test_the_task_of_a_job_is_read_from_its_body(desk: Desk) -> None:
    desk.run(limits.pause(desk.keys, "t:charge"))
    for body in ("{}", "", "no json", '["t","charge"]', '{"t":7}', '{"t":""}', body_of("charge2")):
        assert desk.push(body) == desk.claim(), body
    ids = desk.push('{ "t" : "charge" }', '{"g":"","t":"charge"}', '{"t":"ch\\u0061rge"}')
    assert desk.claim(5) == []
    assert line(desk, "t:charge") == ids


# of the queue


def test_no_more_jobs_of_a_queue_run_than_its_limit_allows(desk: Desk) -> None:
    limit(desk, "q:", concurrency=2)
    ids = enqueue(desk, "charge", 5)
    found = desk.turn(10, idle_ms=30_000)
    assert started(found) == ids[:2]
    assert found.wake_ms > found.now_ms, "no worker needs to ask again before a job ends"
    assert (desk.stats().ready, desk.stats().waiting) == (3, 0), "they stay where they are"
    assert desk.claim(10, worker="other") == []
    assert started(desk.turn(10, plain(ids[:1]))) == ids[2:3]
    assert standing(desk, "q:") == LimitInfo(
        tenant="", concurrency=2, rate=None, burst=None, paused=False, running=2, parked=0
    )
    assert not desk.finish(ids[1:3])
    assert desk.drain() == ids[3:]
    assert_nothing_is_left(desk)


def test_jobs_that_ran_before_the_limit_of_the_queue_count(desk: Desk) -> None:
    ids = enqueue(desk, "charge", 6)
    assert desk.claim(3) == ids[:3]
    limit(desk, "q:", concurrency=2)
    assert standing(desk, "q:").running == 3
    assert started(desk.turn(10, plain(ids[:1]))) == []
    assert started(desk.turn(10, plain(ids[1:2]))) == ids[3:4]
    desk.run(limits.unlimit(desk.keys, "q:"))
    assert desk.claim(10) == ids[4:]
    desk.finish(ids[2:])
    assert_nothing_is_left(desk)


def test_a_queue_at_its_limit_keeps_priorities_and_shares(desk: Desk) -> None:
    limit(desk, "q:", concurrency=1)
    flood(desk, "charge", "big", 300)
    (small,) = enqueue(desk, "charge", tenant="small", priority=100)
    first = desk.claim(5)
    (urgent,) = enqueue(desk, "charge", priority=0)
    second = started(desk.turn(5, plain(first)))
    assert second == [urgent]
    order: list[str] = []
    for _ in range(3):
        second = started(desk.turn(5, plain(second)))
        order += second
    assert small in order
    desk.run(queues.clear(desk.keys))


def test_an_idle_worker_is_called_when_a_place_of_the_queue_is_free(desk: Desk) -> None:
    limit(desk, "q:", concurrency=1)
    first, *others = enqueue(desk, "charge", 4)
    assert desk.claim(1, worker="busy") == [first]
    changes: dict[str, Callable[[], Any]] = {
        "ended": lambda: desk.turn(0, plain([first]), worker="busy"),
        "higher": lambda: limit(desk, "q:", concurrency=2),
        "none": lambda: desk.run(limits.unlimit(desk.keys, "q:")),
    }
    for how, change in changes.items():
        desk.wait("idle")
        found = change()
        assert desk.bell("idle") == [b""], how
        assert how != "ended" or found.wake_ms == found.now_ms, "the worker that settled asks again at once"
        desk.ask("DEL", "bell:idle")
        assert desk.claim(1, worker="idle") == [others.pop(0)]


def test_the_rate_of_a_queue_gives_the_time_of_the_next_start(desk: Desk) -> None:
    limit(desk, "q:", rate="6/m", burst=2)
    ids = enqueue(desk, "charge", 5)
    found = desk.turn(10, idle_ms=30_000, lease_ms=3_600_000)
    assert started(found) == ids[:2]
    assert 0 < found.wake_ms - found.now_ms <= 10_000
    assert desk.run(rest(desk.keys, "w", LEASE_MS, 30_000))[1] == found.wake_ms, "a resting worker gets it, too"
    desk.advance(10_000)
    assert desk.claim(10, lease_ms=3_600_000) == ids[2:3]
    desk.advance(20_000)
    assert desk.claim(10, lease_ms=3_600_000) == ids[3:]
    desk.finish(ids)
    desk.advance(20_000)
    desk.turn(1)
    assert desk.ask("EXISTS", "parking") == 0


# several at once


def test_a_job_starts_when_all_its_limits_have_room_and_takes_a_place_in_each(desk: Desk) -> None:
    limit(desk, "t:charge", concurrency=2)
    limit(desk, "g:a", concurrency=1)
    limit(desk, "q:", concurrency=3)
    first, second = enqueue(desk, "charge", 2, tenant="a")
    (other,) = enqueue(desk, "charge", tenant="b")
    third = enqueue(desk, "charge", tenant="b")
    mails = enqueue(desk, "mail", 2)
    got = desk.claim(10)
    assert got[0] == first
    assert second not in got
    assert len(got) == 3
    assert {name: standing(desk, name).running for name in ("q:", "g:a", "t:charge")}["q:"] == 3
    held = desk.ask("HGET", "holding", first)
    assert sorted(held.split(b"\n")) == [b"g:a", b"q:", b"t:charge"]
    seen = list(got)
    while held_now := [id for id in seen if desk.score("running", id)]:
        seen += started(desk.turn(10, plain(held_now[:1])))
    assert sorted(seen) == sorted([first, second, other, *third, *mails])
    assert_nothing_is_left(desk)


def test_one_that_waits_for_its_tenant_waits_for_its_task_next_and_keeps_its_rank(desk: Desk) -> None:
    limit(desk, "g:a", concurrency=1)
    limit(desk, "t:charge", concurrency=1)
    (first,) = enqueue(desk, "mail", tenant="a")
    (holder,) = enqueue(desk, "charge")
    assert sorted(desk.claim(2)) == sorted([first, holder])
    (waiter,) = enqueue(desk, "charge", tenant="a")
    later = enqueue(desk, "charge", 2)
    assert desk.claim(5) == []
    assert line(desk, "g:a") == [waiter]
    assert line(desk, "t:charge") == later
    assert started(desk.turn(5, plain([first]))) == []
    assert line(desk, "t:charge") == [waiter, *later], "it came first"
    assert line(desk, "g:a") == []
    desk.run(limits.pause(desk.keys, "t:charge"))
    mails = enqueue(desk, "mail", 2, tenant="a")
    assert desk.claim(5) == mails[:1], "what a pause holds up takes no place of its tenant"
    assert started(desk.turn(5, plain(mails[:1]))) == mails[1:]
    desk.finish(mails[1:])
    desk.run(limits.resume(desk.keys, "t:charge"))
    desk.run(store_jobs.cancel(desk.keys, [(later[0], 60_000, "")], 1000))
    assert line(desk, "t:charge") == [waiter, later[1]], "one that waits can be cancelled"
    assert started(desk.turn(5, plain([holder]))) == [waiter]
    assert desk.run(queues.clear(desk.keys)) == (1, False)
    desk.finish([waiter])
    desk.run(store_jobs.discard(desk.keys, later[:1]))
    assert_nothing_is_left(desk)


def test_a_flood_under_two_limits_costs_each_turn_a_bounded_number_of_commands(desk: Desk) -> None:
    limit(desk, "g:a", concurrency=2)
    desk.run(limits.pause(desk.keys, "t:charge"))
    flood(desk, "charge", "a", 2_000)
    most = 0
    while desk.stats().ready:
        most = max(most, commands(desk, lambda: desk.turn(1, idle_ms=30_000)))
    assert most < 700, "a few for each of 250"
    assert len(line(desk, "t:charge")) == 2_000
    assert commands(desk, lambda: desk.turn(1)) < 40
    desk.run(limits.resume(desk.keys, "t:charge"))
    turns = 0
    while len(line(desk, "g:a")) < 1_998 and turns < 100:
        most = max(most, commands(desk, lambda: desk.turn(1, idle_ms=30_000)))
        turns += 1
    assert turns < 30
    assert most < 700
    assert desk.stats().running == 2
    desk.run(queues.clear(desk.keys))
    assert (line(desk, "g:a"), line(desk, "t:charge")) == ([], [])


# pauses that end


def test_a_paused_queue_goes_on_by_itself_when_its_time_has_come(desk: Desk) -> None:
    ids = enqueue(desk, "charge", 2)
    desk.ask("ZADD", "idle", desk.now_ms + 600_000, "idle")
    desk.ask("PEXPIRE", "idle", 60_000)
    ends_ms = desk.now_ms + 60_000
    assert desk.run(queues.pause(desk.keys, True, ends_ms, b'{"reason":"why"}')) is True
    assert desk.bell("idle") == [b""], "the idle worker asks, and gets the end of the pause"
    assert desk.run(queues.pause(desk.keys, True, ends_ms)) is False
    desk.ask("DEL", "bell:idle")
    found = desk.turn(5, worker="idle", idle_ms=30_000)
    assert (started(found), found.wake_ms) == ([], ends_ms)
    assert desk.stats().paused
    desk.advance(60_001)
    assert not desk.stats().paused
    assert desk.claim(5, worker="other") == ids
    assert desk.bell("idle") == [b""], "every worker that asked is called"
    assert desk.ask("EXISTS", "paused") == 0
    assert desk.ask("EXISTS", "pauses") == 0
    assert desk.run(queues.pause(desk.keys, False)) is False


@pytest.mark.parametrize("before_ms", [0, 3_600_000])
def test_a_worker_that_waits_for_the_end_of_a_pause_is_called_when_it_ends_sooner(desk: Desk, before_ms: int) -> None:
    now_ms = desk.now_ms
    desk.run(queues.pause(desk.keys, True, before_ms and now_ms + before_ms))
    assert desk.wait("asked").wake_ms == (before_ms and now_ms + before_ms)
    desk.run(queues.pause(desk.keys, True, now_ms + 60_000))
    assert desk.bell("asked") == [b""]
    assert desk.wait("asked").wake_ms == now_ms + 60_000
    desk.run(queues.pause(desk.keys, False))


@pytest.mark.parametrize("name", ["t:charge", "g:a"])
def test_a_paused_task_or_tenant_goes_on_by_itself_when_its_time_has_come(desk: Desk, name: str) -> None:
    desk.run(limits.pause(desk.keys, name, desk.now_ms + 60_000))
    desk.advance(60_001)
    desk.turn(1)
    kept = [desk.ask("EXISTS", key) for key in ("limits", "parking", "pauses", "lines")]
    assert kept == [0, 0, 0, 0], "without jobs it is removed by the next turn"
    ends_ms = desk.now_ms + 30_000
    assert desk.run(limits.pause(desk.keys, name, ends_ms)) is True
    ids = enqueue(desk, "charge", 3, tenant="a")
    found = desk.turn(5, idle_ms=30_000)
    assert (started(found), found.wake_ms) == ([], ends_ms)
    assert standing(desk, name).until_ms == ends_ms
    desk.advance(30_001)
    (gone,) = desk.run(limits.gauge(desk.keys, [name]))
    assert not gone.paused
    assert desk.claim(5) == ids
    assert desk.ask("EXISTS", "limits") == 0, "and it is forgotten"
    assert desk.ask("EXISTS", "pauses") == 0
    desk.finish(ids)
    limit(desk, name, concurrency=1)
    desk.run(limits.pause(desk.keys, name, desk.now_ms + 60_000))
    ids = enqueue(desk, "charge", 2, tenant="a")
    assert desk.claim(5) == []
    desk.advance(60_001)
    assert desk.claim(5) == ids[:1], "a limit outlives the pause"


def test_pauses_are_listed_with_their_times_and_reasons(desk: Desk) -> None:
    now_ms = desk.now_ms
    desk.run(limits.pause(desk.keys, "g:a", 0, b'{"reason":"bills","by":"ana"}'))
    desk.run(limits.pause(desk.keys, "t:charge", now_ms + 60_000))
    desk.run(limits.trip(desk.keys, "mail", 1, Breaker.after(1, "1m"), b'{"by":"breaker"}'))
    enqueue(desk, "mail")
    desk.claim()
    desk.run(queues.pause(desk.keys, True, now_ms + 90_000))
    desk.ask("HSET", "pauses", "x:nonsense", "?")

    def listed(at_ms: int) -> list[tuple[str, str]]:
        found = desk.run(pauses(desk.keys, "default", at_ms, desk.run(written(desk.keys))))
        return [(one.kind, one.name) for one in found]

    assert listed(now_ms) == [("queue", "default"), ("task", "charge"), ("breaker", "mail"), ("tenant", "a")]
    assert listed(now_ms + 90_001) == [("breaker", "mail"), ("tenant", "a")]
    rows = {one.kind: one for one in desk.run(pauses(desk.keys, "default", now_ms, desk.run(written(desk.keys))))}
    assert (rows["tenant"].reason, rows["tenant"].by, rows["tenant"].until_ms) == ("bills", "ana", None)
    assert 0 <= rows["tenant"].since_ms - now_ms < 10_000
    assert rows["task"].until_ms == now_ms + 60_000
    assert 29_000 < (rows["breaker"].until_ms or 0) - now_ms < 40_000
    desk.ask("DEL", "pauses")


# breakers


def test_a_breaker_opens_after_so_many_failures_in_its_window(desk: Desk) -> None:
    breaker = Breaker.after(3, "1m")

    def fails(count: int = 1) -> int:
        found: int = desk.run(limits.trip(desk.keys, "charge", count, breaker))
        return found

    assert [fails(), fails()] == [0, 0]
    assert 0 < desk.ask("PTTL", "breakers") <= 60_000
    assert desk.run(limits.limits(desk.keys)) == []
    desk.advance(60_001)
    assert [fails(), fails()] == [0, 0], "those before are too old"
    opened = fails()
    assert opened == desk.now_ms + 30_000
    assert fails(9) == 0, "it is open"
    assert standing(desk, "t:charge").breaker == "open"
    rests = []
    for _ in range(7):
        desk.advance(opened - desk.now_ms + 1)
        assert standing(desk, "t:charge").breaker == "half_open"
        opened = fails()
        rests.append(round((opened - desk.now_ms) / 1000))
    assert rests == [60, 120, 240, 480, 600, 600, 600]


def test_an_open_breaker_lets_one_probe_go_at_a_time_until_one_goes_well(desk: Desk) -> None:
    breaker = Breaker.after(1, "1m")
    ids = enqueue(desk, "charge", 6)
    assert desk.claim(2) == ids[:2]
    desk.run(limits.trip(desk.keys, "charge", 1, breaker))
    desk.run(limits.adopt_all(desk.keys, "t:charge"))
    assert started(desk.turn(5, moved(ids[0], "dead", text=b'{"state":"dead"}'))) == []
    assert started(desk.turn(5, plain(ids[1:2]))) == []
    assert standing(desk, "t:charge").breaker == "open", "one that ran before it opened closes nothing"
    desk.advance(30_001)
    assert desk.claim(5) == ids[2:3]
    assert desk.claim(5, worker="other") == []
    assert started(desk.turn(5, moved(ids[2], "back", tenant=""))) == ids[2:3], "neither well nor badly"
    desk.run(limits.trip(desk.keys, "charge", 1, breaker))
    assert started(desk.turn(5, moved(ids[2], "dead", 2, text=b'{"state":"dead"}'))) == []
    desk.advance(60_001)
    assert desk.claim(5) == ids[3:4]
    assert started(desk.turn(5, plain(ids[3:4]))) == ids[4:], "all go on"
    assert desk.run(limits.limits(desk.keys)) == []
    desk.finish(ids[4:])
    assert [desk.ask("EXISTS", key) for key in ("limits", "pauses", "parking", "holding")] == [0, 0, 0, 0]


@pytest.mark.parametrize("how", [lambda one: plain([one], 2), lambda one: moved(one, "done", 2)])
def test_a_probe_that_was_tried_before_closes_the_breaker_as_well(desk: Desk, how: Callable[[str], Any]) -> None:
    (id,) = enqueue(desk, "charge")
    desk.claim()
    desk.run(limits.trip(desk.keys, "charge", 1, Breaker.after(1, "1m")))
    desk.turn(0, moved(id, "retry", ms=1))
    desk.advance(30_001)
    assert desk.claim() == [id]
    assert desk.turn(0, how(id)).refused == []
    assert desk.run(limits.limits(desk.keys)) == []


def test_the_limit_of_a_task_outlives_its_breaker(desk: Desk) -> None:
    limit(desk, "t:charge", concurrency=3)
    desk.run(limits.trip(desk.keys, "charge", 1, Breaker.after(1, "1m")))
    ids = enqueue(desk, "charge", 5)
    assert desk.claim(9) == []
    desk.advance(30_001)
    assert desk.claim(9) == ids[:1]
    assert started(desk.turn(9, plain(ids[:1]))) == ids[1:4]
    assert standing(desk, "t:charge") == LimitInfo(
        tenant="", concurrency=3, rate=None, burst=None, paused=False, running=3, parked=1, task="charge"
    )


def test_a_line_whose_time_has_come_is_not_put_off_because_others_are_let_go(desk: Desk) -> None:
    limit(desk, "g:a", concurrency=1)
    (busy,) = enqueue(desk, "mail", tenant="a")
    assert desk.claim() == [busy]
    desk.run(limits.trip(desk.keys, "charge", 1, Breaker.after(1, "1m")))
    (first,) = enqueue(desk, "charge")
    (second,) = enqueue(desk, "charge", tenant="a")
    assert desk.claim(5) == []
    assert (line(desk, "t:charge"), line(desk, "g:a")) == ([first], [second])
    desk.advance(30_001)
    found = desk.turn(0, plain([busy]))
    look_at = desk.score("parking", "t:charge")
    assert look_at is not None and look_at <= found.now_ms
    assert desk.claim(5) == [first]


def test_a_probe_whose_worker_fell_silent_is_followed_by_another_one(desk: Desk) -> None:
    desk.run(limits.trip(desk.keys, "charge", 1, Breaker.after(1, "1m")))
    first, second = enqueue(desk, "charge", 2)
    desk.claim()
    desk.advance(30_001)
    assert desk.claim(5) == [first]
    desk.advance(LEASE_MS + 1)
    found = desk.turn(5, worker="other")
    assert [row[0].decode() for row in found.lost] == [first]
    assert started(desk.turn(5, moved(first, "dead", 2, text=b'{"state":"dead"}'))) == [second]


def test_a_breaker_with_nothing_to_probe_closes_by_itself(desk: Desk) -> None:
    """Else it would be open for ever, and so would be the alarm."""
    breaker = Breaker.after(1, "1m", rest="30s", longest="5m")
    desk.run(limits.trip(desk.keys, "charge", 1, breaker))
    found = desk.wait("w")
    assert found.wake_ms - found.now_ms <= 30_000
    assert [one.name for one in looked(desk).breakers] == ["charge"]
    desk.advance(30_001)
    found = desk.wait("w")
    assert standing(desk, "t:charge").breaker == "half_open"
    assert looked(desk).breakers == (), "no alarm: the next job is the probe"
    assert desk.run(pauses(desk.keys, "default", found.now_ms, desk.run(written(desk.keys)))) == []
    assert 290_000 < found.wake_ms - found.now_ms <= 300_000
    now, wake, *_ = desk.run(rest(desk.keys, "w", LEASE_MS, 30_000))
    assert wake - now <= 300_000, "a resting worker gets it, too"
    desk.advance(300_000)
    desk.wait("w")
    assert desk.run(limits.limits(desk.keys)) == []
    assert [desk.ask("EXISTS", key) for key in ("limits", "pauses", "parking", "lines")] == [0, 0, 0, 0]


@pytest.mark.parametrize("then", ["limit", "cancel", "pause"])
def test_a_breaker_whose_line_is_empty_closes_by_itself(desk: Desk, then: str) -> None:
    desk.run(limits.trip(desk.keys, "charge", 1, Breaker.after(1, "1m", longest="5m")))
    if then == "cancel":
        ids = enqueue(desk, "charge", 2)
        assert desk.claim(5) == []
        assert [one.name for one in looked(desk).breakers] == ["charge"]
        desk.run(store_jobs.cancel(desk.keys, [(id, 60_000, "") for id in ids], 1000))
    elif then == "limit":
        limit(desk, "t:charge", concurrency=2)
        desk.run(limits.unlimit(desk.keys, "t:charge"))
    else:
        desk.run(limits.pause(desk.keys, "t:charge", desk.now_ms + 40_000))
    for _ in range(3):
        desk.advance(120_000)
        desk.claim()
    assert desk.run(limits.limits(desk.keys)) == []
    assert_nothing_is_left(desk)
    assert desk.ask("EXISTS", "pauses") == 0


def test_a_breaker_waits_for_its_probe_however_long_that_takes(desk: Desk) -> None:
    breaker = Breaker.after(1, "1m", longest="5m")
    desk.run(limits.trip(desk.keys, "charge", 1, breaker))
    first, second = enqueue(desk, "charge", 2)
    assert desk.claim(5) == []
    desk.advance(30_001)
    assert desk.claim(5, lease_ms=3_600_000) == [first]
    desk.run(store_jobs.cancel(desk.keys, [(second, 60_000, "")], 1000))
    for _ in range(4):
        desk.advance(120_000)
        desk.claim()
    assert standing(desk, "t:charge").breaker == "half_open"
    assert desk.run(limits.trip(desk.keys, "charge", 1, breaker)) > 0
    desk.turn(0, moved(first, "dead", text=b'{"state":"dead"}'))
    desk.advance(60_001)
    desk.claim()
    assert standing(desk, "t:charge").breaker == "half_open"
    desk.advance(300_000)
    desk.claim()
    assert desk.run(limits.limits(desk.keys)) == []


# the cost for queues that do not use it


def test_a_queue_without_limits_and_pauses_costs_a_fixed_number_of_commands(desk: Desk) -> None:
    """The numbers were counted before there were limits of tasks and queues, pauses that end, and breakers;
    a turn asks once more when workers last reached the server, and a push is counted by its connection."""
    for _ in range(2):  # the second time the server knows the scripts
        desk.wait("idle")
        desk.ask("DEL", "bell:idle")
        found: list[Turn] = []
        handed_over = commands(desk, lambda: desk.push(body_of("charge")))
        desk.push(body_of("charge"))
        claim = commands(desk, lambda found=found: found.append(desk.turn(1)))  # type: ignore[misc]
        settle = commands(desk, lambda found=found: desk.turn(0, plain(started(found[0]))))  # type: ignore[misc]
        nothing = commands(desk, lambda: desk.turn(1))
        many = desk.push(*[body_of("charge")] * 50)
        desk.claim(50)
        both = commands(desk, lambda many=many: desk.turn(50, plain(many)))  # type: ignore[misc]
    assert (handed_over, claim, settle, nothing, both) == (11, 20, 12, 11, 17)
