"""Limits of tenants: how many of a tenant run at once, how fast they start, and that others do not notice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from relevo.engine import job_store as store_jobs
from relevo.engine.job import Envelope, write
from relevo.engine.push import NewJob, push_rich
from relevo.engine.turn import Settled, Turn, rest
from relevo.limits import store as limits
from relevo.limits.limit import limit_of
from relevo.limits.store import LimitInfo
from relevo.queues import store as queues
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id, plain

#: The line of a tenant is looked at after so long, also if nothing happens.
LOOK_MS = 60_000
DAY_MS = 86_400_000


def body_of(tenant: str, weight: float = 1.0, **more: Any) -> str:
    if weight != 1.0:
        more["weight"] = weight
    return write(Envelope("shop.step", tenant=tenant, **more)).decode()


def enqueue(desk: Desk, tenant: str, count: int = 1, *, priority: int = 100, weight: float = 1.0) -> list[str]:
    """Jobs of one tenant; their ids in order."""
    body = body_of(tenant, weight, priority=priority)
    return [desk.push_one(body, priority=priority, tenant=tenant, weight=weight) for _ in range(count)]


def flood(desk: Desk, tenant: str, count: int) -> list[str]:
    """The same for many, a thousand a call."""
    ids: list[str] = []
    body = body_of(tenant).encode()
    while len(ids) < count:
        some = [NewJob(new_id(), 100, body, tenant=tenant) for _ in range(min(1000, count - len(ids)))]
        ids += desk.run(push_rich(desk.keys, some))
    return ids


def limit(desk: Desk, tenant: str, **given: Any) -> bool:
    changed: bool = desk.run(limits.limit(desk.keys, f"g:{tenant}", limit_of(**given)))
    return changed


def standing(desk: Desk, tenant: str) -> LimitInfo:
    (found,) = [one for one in desk.run(limits.limits(desk.keys)) if one.tenant == tenant]
    assert isinstance(found, LimitInfo)
    return found


def started(found: Turn) -> list[str]:
    return [id.decode() for id in found.ids]


def line(desk: Desk, tenant: str) -> list[str]:
    return desk.members(f"parked:g:{tenant}")


def assert_nothing_is_left(desk: Desk) -> None:
    """Of limits nothing is there without an end but the limits and pauses themselves."""
    keys: list[bytes] = desk.server.command("KEYS", f"{{{desk.keys.address}}}:*")
    endless = {key.rpartition(b"}:")[2] for key in keys if desk.server.command("PTTL", key) < 0}
    assert endless <= {b"limits", b"pauses"}


# how many at once


def test_no_more_jobs_of_a_tenant_run_than_its_limit_allows(desk: Desk) -> None:
    limit(desk, "a", concurrency=2)
    ids = enqueue(desk, "a", 5)
    assert desk.claim(10) == ids[:2]
    assert desk.claim(10, worker="other") == []
    stats = desk.stats()
    assert (stats.ready, stats.running, stats.waiting, stats.living) == (0, 2, 3, 5)
    assert started(desk.turn(10, plain(ids[:1]))) == ids[2:3], "a place is taken in the turn that gives it up"
    assert started(desk.turn(10, plain(ids[1:3]))) == ids[3:]
    assert not desk.finish(ids[3:])
    assert_nothing_is_left(desk)


@pytest.mark.parametrize(
    "settled",
    [
        plain,
        kept,
        lambda ids: kept(ids, ttl_ms=-300_000),
        lambda ids: moved(ids[0], "done"),
        lambda ids: moved(ids[0], "dead", text=b'{"state":"dead"}'),
        lambda ids: moved(ids[0], "cancelled", text=b'{"state":"cancelled"}'),
        lambda ids: moved(ids[0], "expired", text=b'{"state":"expired"}'),
        lambda ids: moved(ids[0], "retry", tenant="a"),
    ],
    ids=["plain", "kept", "published", "done", "dead", "cancelled", "expired", "retry"],
)
@pytest.mark.parametrize("want", [0, 5])
def test_whatever_becomes_of_a_job_it_gives_its_place_up(
    desk: Desk, settled: Callable[[list[str]], Settled], want: int
) -> None:
    limit(desk, "a", concurrency=1)
    first, second, third = enqueue(desk, "a", 3)
    assert desk.claim(5) == [first]
    found = desk.turn(want, settled([first]))
    assert found.refused == []
    assert (started(found) or desk.claim(5)) == [second]
    assert standing(desk, "a").running == 1
    assert started(desk.turn(5, plain([second]))) == [third]
    desk.finish([third])
    assert desk.ask("EXISTS", "holding") == 0


def test_a_job_that_is_handed_back_goes_before_the_line(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    first, second = enqueue(desk, "a", 2)
    assert desk.claim(5) == [first]
    assert desk.turn(0, moved(first, "back", tenant="a")).refused == []
    found = desk.turn(5)
    assert started(found) == [first]
    assert line(desk, "a") == [second]
    assert desk.finish([first], token=2) == []
    assert desk.claim(5) == [second]


def test_a_job_of_a_silent_worker_keeps_its_place(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    first, second = enqueue(desk, "a", 2)
    assert desk.claim(5) == [first]
    desk.advance(LEASE_MS + 1)
    found = desk.turn(5, worker="other")
    assert [row[0].decode() for row in found.lost] == [first]
    assert started(found) == [], "the worker that took it back decides; until then it runs"
    assert desk.finish([first]) == [first.encode()], "a late settlement frees no place"
    assert (desk.claim(5), standing(desk, "a").running) == ([], 1)
    assert started(desk.turn(5, moved(first, "dead", 2, text=b'{"state":"dead"}'))) == [second]


def test_a_place_of_a_job_without_a_body_is_given_up(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    first, second = enqueue(desk, "a", 2)
    assert desk.claim(5) == [first]
    desk.ask("HDEL", "jobs", first)
    desk.advance(LEASE_MS + 1)
    assert desk.claim(5) == [second]
    desk.finish([second])
    assert_nothing_is_left(desk)


def test_other_tenants_and_jobs_without_a_tenant_are_not_held_up(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    held = enqueue(desk, "a", 3)
    others = [*enqueue(desk, "b", 2), *desk.push("{}"), *enqueue(desk, "a b", 1), *enqueue(desk, "A", 1)]
    assert sorted(desk.claim(10)) == sorted([held[0], *others])


def test_jobs_that_ran_before_the_limit_count(desk: Desk) -> None:
    ids = enqueue(desk, "a", 5)
    others = enqueue(desk, "b", 2)
    assert len(desk.claim(5)) == 5
    ran = [id for id in ids if desk.score("running", id)]
    assert 2 < len(ran) < 5
    limit(desk, "a", concurrency=2)
    assert desk.run(limits.adopt(desk.keys, "g:a", [ran[0].encode(), b"0" * 20])) == 0, "counted once"
    assert desk.run(limits.adopt(desk.keys, "g:b", [ran[0].encode()])) == 0, "a tenant without a limit counts nothing"
    assert standing(desk, "a").running == len(ran)
    assert set(desk.claim(5)) <= set(others)
    desk.finish(ran[: len(ran) - 2])
    assert desk.claim(5) == [], "two run"
    assert len(started(desk.turn(5, plain(ran[len(ran) - 2 : len(ran) - 1])))) == 1


# order


def test_jobs_of_a_tenant_start_in_the_order_they_came_also_if_they_had_to_wait(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    ids: list[str] = []
    order: list[str] = []
    for _ in range(6):  # the queue runs empty in between, and the virtual times start anew
        ids += enqueue(desk, "a", 3)
        order += (got := desk.claim(2))
        assert got and not desk.finish(got)
    order += desk.drain()
    while left := desk.drain(1):
        order += left
    assert order == ids


def test_a_job_that_was_let_go_is_not_overtaken_by_a_later_one(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    first, second = enqueue(desk, "a", 2)
    assert desk.claim(5) == [first]
    (third,) = enqueue(desk, "a", weight=64.0)
    others = desk.push(*["{}"] * 5)
    assert desk.turn(0, plain([first])).refused == []
    assert desk.members("ready") == [third, second, *others], "its place is that of a new one"
    assert desk.claim(1) == [second], "and it starts when its tenant's turn comes"
    assert desk.members("ready") == [third, *others], "the other one has its place now"
    assert [*started(desk.turn(1, plain([second]))), *desk.drain(1)] == [third, *others]
    desk.finish([third])


def test_an_urgent_job_goes_before_the_line_of_its_tenant(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    ids = enqueue(desk, "a", 3)
    assert desk.claim(5) == ids[:1]
    (urgent,) = enqueue(desk, "a", priority=0)
    (later,) = enqueue(desk, "a", priority=150)
    assert desk.claim(5) == []
    assert line(desk, "a") == [urgent, *ids[1:], later]
    assert started(desk.turn(5, plain(ids[:1]))) == [urgent]
    desk.finish([urgent])
    assert desk.members("ready") == ids[1:2], "it was let go"
    (second,) = enqueue(desk, "a", priority=0)
    assert desk.claim(5) == [second], "also before one that was let go"
    assert (desk.stats().ready, line(desk, "a")) == (0, [*ids[1:], later])
    assert started(desk.turn(5, plain([second]))) == ids[1:2]


def test_a_tenant_at_its_limit_leaves_others_their_share(desk: Desk) -> None:
    """What is let go goes to the end of the line of tenants, not before it: a worker with one slot serves all."""
    limit(desk, "a", concurrency=1)
    tenants = dict.fromkeys(enqueue(desk, "a", 20), "a") | dict.fromkeys(enqueue(desk, "b", 20), "b")
    order: list[str] = []
    held = desk.claim(1)
    while held:
        order += [tenants[id] for id in held]
        held = started(desk.turn(1, plain(held)))
    assert len(order) == 40
    for at in range(0, 36, 4):
        assert order[at : at + 4].count("b") >= 1, f"{order} at {at}"
        assert order[at : at + 4].count("a") >= 1, f"{order} at {at}"


def test_a_tenant_that_waited_long_does_not_wait_behind_newer_ones(desk: Desk) -> None:
    """Its tags are those of a long line; the virtual times started anew since, and others count from there."""
    limit(desk, "a", concurrency=1)
    ids = flood(desk, "a", 400)
    while desk.turn(10).wake_ms == 0 or desk.stats().ready:
        pass
    assert desk.stats().waiting == 399
    others = enqueue(desk, "b", 50)
    assert desk.claim(5) == others[:5]
    desk.finish(ids[:1])
    assert ids[1] in desk.claim(5)


# how fast


def test_a_rate_lets_a_burst_start_and_then_one_after_the_other(desk: Desk) -> None:
    limit(desk, "a", rate="1/m", burst=3)
    ids = enqueue(desk, "a", 8)
    found = desk.turn(10, idle_ms=30_000, lease_ms=DAY_MS)
    assert started(found) == ids[:3]
    assert 120_000 < desk.ask("PTTL", "buckets") < 181_000, "a bucket ends when it is full"
    assert 0 < found.wake_ms - found.now_ms <= 60_000, "the worker gets the time at which the next may start"
    _, wake, waits, _ = desk.run(rest(desk.keys, "w", LEASE_MS, 30_000))
    assert (wake, waits) == (found.wake_ms, True), "so does a resting worker"
    desk.advance(found.wake_ms - found.now_ms - 20_000)
    assert desk.claim(10) == []
    desk.advance(20_000)
    assert desk.claim(10, lease_ms=DAY_MS) == ids[3:4]
    desk.advance(150_000)
    assert desk.claim(10, lease_ms=DAY_MS) == ids[4:6]
    desk.advance(30_000)
    assert desk.claim(10, lease_ms=DAY_MS) == ids[6:7]
    desk.advance(3_600_000)
    assert desk.claim(10, lease_ms=DAY_MS) == ids[7:]
    more = enqueue(desk, "a", 5)
    assert desk.claim(10) == more[:2], "an hour gives no more than a burst, of which one was taken"


@pytest.mark.parametrize(
    ("rate", "every_ms"), [("1/s", 1000), ("20/m", 3000), ("5/h", 720_000), ("1/d", 86_400_000), (1, 1000), (0.5, 2000)]
)
def test_a_token_comes_at_the_rate(desk: Desk, rate: Any, every_ms: int) -> None:
    limit(desk, "a", rate=rate, burst=1)
    ids = enqueue(desk, "a", 3)
    found = desk.turn(5)
    assert started(found) == ids[:1]
    # Real time passes as well, and more of it on a busy machine: not for what is asked in the same step.
    assert found.wake_ms - found.now_ms == min(every_ms, LEASE_MS)
    desk.advance(every_ms // 4)
    if every_ms > 60_000:
        assert desk.claim(5) == []
    desk.advance(every_ms * 3 // 4 + 1)
    assert desk.claim(5) == ids[1:2]


def test_rates_of_millions_and_fractions_are_exact(desk: Desk) -> None:
    limit(desk, "a", rate="7/m", burst=10)
    ids = flood(desk, "a", 50)
    got = desk.claim(100, lease_ms=DAY_MS)
    assert got == ids[:10]
    desk.advance(1)  # the time between two tokens is rounded up to a microsecond
    for minute in range(1, 6):
        desk.advance(60_000)
        got += desk.claim(100, lease_ms=DAY_MS)
        assert len(got) == 10 + 7 * minute
    limit(desk, "a", rate=1_000_000)
    desk.advance(1)
    assert [*got, *desk.claim(100)] == ids


def test_a_clock_that_steps_back_holds_up_no_line(desk: Desk) -> None:
    """What was noted before, when the next token comes and when to look, is an hour ahead then."""
    desk.advance(3_600_000)
    limit(desk, "a", rate="6/m", burst=2)
    limit(desk, "b", concurrency=1)
    ends_ms = desk.now_ms + 7_200_000
    desk.run(limits.pause(desk.keys, "g:c", ends_ms))
    ids, others = enqueue(desk, "a", 4), enqueue(desk, "b", 2)
    assert {*desk.claim(10)} == {*ids[:2], others[0]}
    desk.advance(-3_600_000)
    found = desk.turn(10)
    assert (found.ids, found.wake_ms - found.now_ms) == ([], 10_000), "the next token, counted from now on"
    assert desk.score("parking", "g:c") == ends_ms, "the end of a pause does not change"
    desk.advance(10_000)
    assert desk.claim(10) == ids[2:3]
    desk.advance(10_000)
    assert desk.claim(10) == ids[3:]
    assert started(desk.turn(10, plain(others[:1]))) == others[1:]


def test_a_clock_that_steps_back_holds_up_none_of_many_lines(desk: Desk) -> None:
    desk.advance(3_600_000)
    tenants = [f"g{n}" for n in range(70)]
    for tenant in tenants:
        limit(desk, tenant, rate="6/m", burst=1)
        enqueue(desk, tenant, 2)
    while desk.claim(200):
        pass
    assert desk.stats().waiting == 70
    desk.advance(-3_600_000)
    begun: list[str] = []
    for _ in range(10):  # with each look some more of them are found
        begun += desk.claim(200, lease_ms=3_600_000)
        desk.advance(10_001)
    assert len(begun) == 70


def test_rate_and_concurrency_hold_together(desk: Desk) -> None:
    limit(desk, "a", concurrency=2, rate="1/m", burst=3)
    ids = enqueue(desk, "a", 6)
    assert desk.claim(9) == ids[:2]
    assert started(desk.turn(9, plain(ids[:2]), lease_ms=DAY_MS)) == ids[2:3], "two places, one token"
    desk.advance(600_000)
    assert desk.claim(9) == ids[3:4], "many tokens, one place"
    assert started(desk.turn(9, plain(ids[2:4]))) == ids[4:]


def test_a_job_that_is_too_late_takes_neither_place_nor_token(desk: Desk) -> None:
    """It will not run: tokens are for those that do."""
    limit(desk, "a", concurrency=1, rate="1/h", burst=1)
    late = body_of("a", expires_ms=1)
    gone = [desk.push_one(late, tenant="a") for _ in range(5)]
    ids = enqueue(desk, "a", 2)
    assert desk.claim(9) == [*gone, ids[0]]
    assert standing(desk, "a").running == 1
    later = [desk.push_one(late, tenant="a") for _ in range(3)]
    assert desk.claim(9) == [], "a new job without room must wait all the same"
    desk.finish([*gone, ids[0]])
    limit(desk, "a", concurrency=1)
    assert desk.claim(9) == ids[1:]
    assert started(desk.turn(9, plain(ids[1:]))) == later, "one after the other, in one turn"
    desk.finish(later)
    assert_nothing_is_left(desk)


# change


def test_a_changed_limit_counts_at_once_and_lets_run_what_runs(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    ids = enqueue(desk, "a", 6)
    assert desk.claim(9) == ids[:1]
    assert limit(desk, "a", concurrency=3) is True
    assert limit(desk, "a", concurrency=3) is False
    assert desk.claim(9) == ids[1:3]
    limit(desk, "a", concurrency=1)
    assert started(desk.turn(9, plain(ids[:1]))) == []
    assert started(desk.turn(9, plain(ids[1:2]))) == []
    assert started(desk.turn(9, plain(ids[2:3]))) == ids[3:4]


def test_one_that_was_let_go_waits_again_if_the_limit_is_lowered(desk: Desk) -> None:
    limit(desk, "a", concurrency=2)
    ids = enqueue(desk, "a", 4)
    assert desk.claim(9) == ids[:2]
    desk.finish(ids[:1])
    assert (desk.stats().ready, desk.stats().waiting) == (1, 1)
    limit(desk, "a", concurrency=1)
    assert desk.claim(9) == []
    assert (desk.stats().ready, desk.stats().waiting, line(desk, "a")) == (0, 2, ids[2:])
    assert started(desk.turn(9, plain(ids[1:2]))) == ids[2:3]


def test_a_faster_rate_does_not_wait_for_the_slow_ones_token(desk: Desk) -> None:
    limit(desk, "a", rate="1/d")
    ids = enqueue(desk, "a", 3)
    assert desk.claim(9, lease_ms=DAY_MS) == ids[:1]
    limit(desk, "a", rate="1/m", burst=1)
    desk.advance(60_000)
    assert desk.claim(9) == ids[1:2]
    limit(desk, "a", concurrency=5)
    assert desk.claim(9) == ids[2:], "without a rate no token is needed"
    assert desk.ask("HGETALL", "buckets") == {}


def test_without_its_limit_a_tenant_goes_on_in_bounded_steps_and_in_order(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    ids = flood(desk, "a", 1000)
    assert desk.claim(1) == ids[:1]
    while desk.stats().ready:
        assert desk.claim(1) == []
    assert desk.run(limits.unlimit(desk.keys, "g:a")) is True
    assert desk.run(limits.unlimit(desk.keys, "g:a")) is False
    assert (desk.run(limits.limits(desk.keys)), desk.ask("EXISTS", "limits")) == ([], 0)
    (late,) = enqueue(desk, "a")
    order: list[str] = []
    while got := desk.claim(170):
        order += got
    assert order == [*ids[1:], late]
    assert line(desk, "a") == []
    desk.finish([*ids, late])
    assert_nothing_is_left(desk)


# pause


def test_a_paused_tenant_starts_nothing_until_it_is_resumed(desk: Desk) -> None:
    assert desk.run(limits.pause(desk.keys, "g:a")) is True
    assert desk.run(limits.pause(desk.keys, "g:a")) is False
    ids, others = enqueue(desk, "a", 3), enqueue(desk, "b", 2)
    found = desk.turn(9)
    assert started(found) == others
    desk.finish(others)
    found = desk.turn(9)
    assert found.wake_ms - found.now_ms == LOOK_MS, "a line is looked at once a minute, even if nothing happens"
    assert standing(desk, "a") == LimitInfo(
        tenant="a", concurrency=None, rate=None, burst=None, paused=True, running=0, parked=3
    )
    assert desk.run(limits.resume(desk.keys, "g:a")) is True
    assert desk.run(limits.resume(desk.keys, "g:a")) is False
    assert desk.claim(9) == ids
    assert desk.ask("EXISTS", "limits") == 0


def test_pause_and_limit_do_not_know_of_each_other(desk: Desk) -> None:
    limit(desk, "a", concurrency=1, rate="5/h")
    desk.run(limits.pause(desk.keys, "g:a"))
    limit(desk, "a", concurrency=2)
    ids = enqueue(desk, "a", 3)
    assert desk.claim(9) == []
    desk.run(limits.resume(desk.keys, "g:a"))
    assert desk.claim(9) == ids[:2], "the limit is still there"
    desk.run(limits.pause(desk.keys, "g:a"))
    assert desk.run(limits.unlimit(desk.keys, "g:a")) is True
    assert desk.claim(9) == [], "and so is the pause"
    assert standing(desk, "a").running == 2, "what runs goes on"
    desk.run(limits.resume(desk.keys, "g:a"))
    assert desk.claim(9) == ids[2:]


def test_a_whole_queue_that_is_paused_hands_out_nothing_of_what_was_let_go(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    ids = enqueue(desk, "a", 2)
    desk.claim(5)
    desk.run(queues.pause(desk.keys, True))
    assert started(desk.turn(5, plain(ids[:1]))) == []
    desk.run(queues.pause(desk.keys, False))
    assert desk.claim(5) == ids[1:]


# bodies


ANYTHING = '"g":"paused"'
HELD = [
    body_of("paused"),
    body_of("paused", weight=2.5, priority=7, name="x", tags=("g",)),
    write(Envelope("shop.step", tenant="paused", args=[{"g": "other"}])).decode(),  # type: ignore[arg-type]
    '{"t":"shop.step","p":100,"g":"paused","a":[{"g":"other"}],"k":{"g":"other"}}',
    '{"t":"quoted \\" \\\\","g":"paused"}',
    '{ "t" : "spaced" , "g" : "paused" }',
    '{"g":"paused","t":"another order"}',
    '{"t":"ñ","g":"p\\u0061used"}',
]
FREE = [
    "{}",
    "",
    "no json " + ANYTHING,
    '{"t":"shop.step","a":["\\"g\\":\\"paused\\"",{"g":"paused"}],"k":{"g":"paused"}}',
    '{"t":"\\",\\"g\\":\\"paused\\"","a":[]}',
    '{"t":"shop.step","g":"","k":{"g":"paused"}}',
    '{"t":"shop.step","g":["paused"]}',
    '{"t":"shop.step","g":7}',
    '["g","paused"]',
    body_of("other"),
    body_of("Paused"),
    body_of("paused "),
    "[" * 100_000 + '"g"',
    '{"t":"x","g":"\\ud800"}',
]


@pytest.mark.parametrize("body", HELD)
def test_the_tenant_of_a_job_is_read_from_its_body(desk: Desk, body: str) -> None:
    desk.run(limits.pause(desk.keys, "g:paused"))
    id = desk.push_one(body, tenant="paused")
    assert desk.claim() == []
    assert line(desk, "paused") == [id]


@pytest.mark.parametrize("body", FREE)
def test_what_is_no_tenant_of_a_job_has_no_limit(desk: Desk, body: str) -> None:
    desk.run(limits.pause(desk.keys, "g:paused"))
    id = desk.push_one(body)
    assert desk.claim() == [id], "also if it cannot be read: a worker decides about it"
    assert desk.ask("EXISTS", "holding") == 0


@pytest.mark.parametrize(
    "tenant", ['"', "\\", 'a"b\\c', "ñandú", "日本", "a b", "g:a", "#a", "x" * 200, "a:b{c}*", "'", "%d%s"]
)
def test_a_tenant_may_have_any_printable_name(desk: Desk, tenant: str) -> None:
    limit(desk, tenant, concurrency=1)
    first, second = enqueue(desk, tenant, 2)
    assert desk.claim(5) == [first]
    assert standing(desk, tenant) == LimitInfo(
        tenant=tenant, concurrency=1, rate=None, burst=None, paused=False, running=1, parked=1
    )
    assert started(desk.turn(5, plain([first]))) == [second]
    desk.finish([second])
    assert desk.run(limits.unlimit(desk.keys, f"g:{tenant}"))
    assert_nothing_is_left(desk)


def test_the_weight_of_a_tenant_counts_for_what_was_let_go(desk: Desk) -> None:
    limit(desk, "a", concurrency=4)
    ids = enqueue(desk, "a", 9, weight=4.0)
    assert desk.claim(9) == ids[:4]
    others = enqueue(desk, "b", 3)
    desk.finish(ids[:4])
    assert desk.members("ready").index(others[0]) >= 3, "four times the share"


# what people do with jobs that wait


def test_a_parked_job_is_seen_as_waiting_and_can_be_cancelled_and_revived(desk: Desk) -> None:
    desk.run(limits.pause(desk.keys, "g:a"))
    first, second = enqueue(desk, "a", 2)
    desk.claim(5)
    seen = desk.run(store_jobs.look(desk.keys, first))
    assert (seen.state, seen.open, seen.body) == ("waiting", 0, body_of("a").encode())
    rows = desk.run(queues.page(desk.keys, "waiting", 0, 10))
    assert [(row.id, row.envelope.tenant) for row in rows] == [(first, "a"), (second, "a")]
    assert desk.run(store_jobs.cancel(desk.keys, [(first, 60_000, "")], 1000)) == (["cancelled"], False)
    assert line(desk, "a") == [second]
    seen = desk.run(store_jobs.look(desk.keys, first))
    assert (seen.state, seen.record.queue_from) == ("cancelled", "waiting")
    assert desk.run(store_jobs.revive(desk.keys, first, Envelope("x", tenant="a"), body_of("a").encode(), 0))[0] == 1
    assert desk.claim(5) == []
    assert line(desk, "a") == [second, first], "it comes as a new one"
    limit(desk, "a", concurrency=1)
    desk.run(limits.resume(desk.keys, "g:a"))
    desk.turn(0)
    assert desk.run(store_jobs.cancel(desk.keys, [(second, 60_000, "")], 1000))
    assert desk.claim(5) == [first], "the next goes if one that was let go is cancelled"
    desk.finish([first], token=2)
    assert desk.run(store_jobs.discard(desk.keys, [second])) == (1, False)
    assert_nothing_is_left(desk)


def test_clearing_a_queue_clears_its_lines(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    desk.run(limits.pause(desk.keys, "g:b"))
    ids = enqueue(desk, "a", 3)
    enqueue(desk, "b", 700)
    while desk.turn(20).ids or desk.stats().ready:
        pass
    desk.finish(ids[:1])
    assert desk.run(queues.clear(desk.keys)) == (702, False)
    assert desk.stats().living == 0
    assert_nothing_is_left(desk)


def test_what_was_removed_behind_our_back_is_dropped_when_it_is_met(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    ids = enqueue(desk, "a", 60)
    assert desk.claim(9, lease_ms=3_600_000) == ids[:1]
    for n, id in enumerate(ids[1:41]):
        if n % 2:
            desk.ask("ZREM", "waiting", id)
        desk.ask("HDEL", "jobs", id)
    assert started(desk.turn(9, plain(ids[:1]), lease_ms=3_600_000)) == ids[41:42]
    desk.run(limits.pause(desk.keys, "g:a"))
    for id in ids[42:]:
        desk.ask("ZREM", "waiting", id)
        desk.ask("HDEL", "jobs", id)
    desk.advance(LOOK_MS)
    for _ in range(10):
        desk.turn(1)
    assert line(desk, "a") == [], "also of a tenant that is paused"
    desk.finish(ids[41:42])
    assert_nothing_is_left(desk)


# calls


def test_an_idle_worker_is_called_for_what_is_let_go(desk: Desk) -> None:
    limit(desk, "a", concurrency=1)
    first, second = enqueue(desk, "a", 2)
    assert desk.claim(1, worker="busy") == [first]
    desk.wait("idle")
    found = desk.turn(0, plain([first]), worker="busy")
    assert desk.bell("idle") == [b""]
    assert found.wake_ms == found.now_ms, "the worker that settled asks again at once"
    assert desk.claim(1, worker="idle") == [second]


@pytest.mark.parametrize("change", ["limit", "unlimit", "resume"])
def test_an_idle_worker_is_called_when_more_may_start(desk: Desk, change: str) -> None:
    limit(desk, "a", concurrency=1)
    desk.wait("idle")
    desk.run(limits.pause(desk.keys, "g:a"))
    if change != "resume":
        desk.run(limits.resume(desk.keys, "g:a"))
    assert desk.bell("idle") == [], "not for a tenant without parked jobs"
    enqueue(desk, "a", 2)
    desk.claim(1)
    desk.ask("DEL", "bell:idle")
    desk.wait("idle")
    match change:
        case "limit":
            limit(desk, "a", concurrency=2)
        case "unlimit":
            desk.run(limits.unlimit(desk.keys, "g:a"))
        case "resume":
            desk.run(limits.resume(desk.keys, "g:a"))
    assert desk.bell("idle") == [b""]
    assert len(desk.claim(1, worker="idle")) == 1


def test_an_idle_worker_is_called_for_a_token_when_the_other_is_busy(desk: Desk) -> None:
    limit(desk, "a", rate="1/m")
    first, _ = enqueue(desk, "a", 2)
    (plain_one,) = desk.push("{}")
    desk.ask("ZADD", "idle", desk.now_ms + 600_000, "idle")
    desk.ask("PEXPIRE", "idle", 60_000)
    found = desk.turn(2, worker="busy")
    assert (started(found), found.wake_ms) == ([first, plain_one], 0), "it has no room left, and parked something"
    assert desk.bell("idle") == [b""]


# bounds


def commands(desk: Desk, call: Callable[[], Any]) -> int:
    return desk.commands(call).total()


def test_a_flood_of_one_tenant_costs_each_turn_a_bounded_number_of_commands(desk: Desk) -> None:
    """Each job is looked at a bounded number of times, and a worker that finds nothing is asked to go on."""
    limit(desk, "a", concurrency=2)
    ids = flood(desk, "a", 3_000)
    assert desk.claim(2) == ids[:2]
    for _ in range(5):
        other = enqueue(desk, "b")
        assert desk.claim(1, worker="other") == other, "those of others are found in one turn"
        desk.finish(other)
    turns, most = 0, 0
    while True:
        found: list[Turn] = []
        most = max(most, commands(desk, lambda found=found: found.append(desk.turn(1, idle_ms=30_000))))  # type: ignore[misc]
        turns += 1
        assert found[0].ids == []
        if not desk.stats().ready:
            break
        assert found[0].wake_ms == found[0].now_ms, "there is more to look at"
    assert turns <= 3_000 / 250 + 5
    assert most < 100
    assert found[0].wake_ms > found[0].now_ms
    assert standing(desk, "a").parked == 2_998
    assert commands(desk, lambda: desk.turn(1)) < 30, "once all are parked, they are not looked at any more"
    assert commands(desk, lambda: desk.turn(1, plain(ids[:1]))) < 60
    desk.run(queues.clear(desk.keys))


def test_large_bodies_are_parked_in_steps_that_are_bounded_in_bytes(desk: Desk) -> None:
    desk.run(limits.pause(desk.keys, "g:a"))
    body = body_of("a", name="x" * 300_000)
    for _ in range(30):
        desk.push_one(body, tenant="a")
    parked = [0]
    while (left := desk.stats()).ready:
        found = desk.turn(1)
        assert found.wake_ms <= found.now_ms or not desk.stats().ready
        parked.append(desk.stats().waiting)
        assert parked[-1] - parked[-2] <= 8
    assert left.waiting == 30
    desk.run(queues.clear(desk.keys))


@pytest.mark.parametrize(("tenants", "tasks", "at_once"), [(400, 400, 1), (300, 3, 100), (1000, 20, 5)])
def test_two_limits_on_many_tenants_cost_each_turn_a_bounded_number_of_commands(
    desk: Desk, tenants: int, tasks: int, at_once: int
) -> None:
    """The worst that is known: every job is under two limits, of another tenant and task than the one before."""
    chance = random.Random(7)
    for number in range(tenants):
        limit(desk, f"g{number}", concurrency=1)
    for number in range(tasks):
        desk.run(limits.limit(desk.keys, f"t:t{number}", limit_of(concurrency=at_once)))
    for _ in range(2):
        some = []
        for _ in range(1000):
            tenant, task = f"g{chance.randrange(tenants)}", f"t{chance.randrange(tasks)}"
            some.append(NewJob(new_id(), 100, write(Envelope(task, tenant=tenant)), tenant=tenant))
        desk.run(push_rich(desk.keys, some))
    held: list[str] = []
    done, most = 0, 0
    while done < 2000:
        found: list[Turn] = []
        settled = plain(held)
        most = max(most, commands(desk, lambda found=found, settled=settled: found.append(desk.turn(400, settled))))  # type: ignore[misc]
        done, held = done + len(held), started(found[0])
        assert held or done == 2000 or found[0].wake_ms <= found[0].now_ms, "no job is forgotten"
    assert most < 3_000


def test_one_that_gave_its_turn_to_another_is_not_forgotten(desk: Desk) -> None:
    """It was let go from the line of its task, and one of its tenant whose line was not looked at yet went first."""
    tenants = [f"g{number:02}" for number in range(30)]  # more lines than are looked at in one turn
    desk.run(limits.limit(desk.keys, "t:pay", limit_of(concurrency=1)))
    blocker = desk.push_one(write(Envelope("pay")).decode())
    assert desk.claim() == [blocker]
    parked = desk.push_one(write(Envelope("pay", tenant=tenants[-1])).decode(), tenant=tenants[-1])
    assert desk.claim() == []
    running = []
    for tenant in tenants:
        limit(desk, tenant, concurrency=1)
        running += enqueue(desk, tenant)
    assert sorted(desk.claim(100)) == sorted(running)
    urgent = [id for tenant in tenants for id in enqueue(desk, tenant, priority=50)]
    assert desk.claim(100) == []
    for tenant in tenants:
        limit(desk, tenant, concurrency=2)
    began = started(desk.turn(21, plain([blocker])))
    assert urgent[-1] in began and parked not in began
    rest = [id for id in urgent if id not in began]
    assert sorted(desk.claim(100)) == sorted(rest)
    desk.finish(running + urgent)
    assert desk.claim(10) == [parked]


def test_a_queue_without_limits_asks_one_question_more(desk: Desk) -> None:
    ids = enqueue(desk, "a", 2)
    desk.in_contact()
    without = commands(desk, lambda: desk.turn(1))
    limit(desk, "b", concurrency=1)
    assert commands(desk, lambda: desk.turn(1, plain(ids[:1]))) > without
    desk.run(limits.unlimit(desk.keys, "g:b"))
    desk.finish(ids)
    enqueue(desk, "a", 2)
    assert commands(desk, lambda: desk.turn(1)) == without, "also after there was one"
