"""engine/push.lua: putting jobs on a queue, once each, in order, and calling workers that wait for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import pytest

from relevo.engine.push import CHUNK, NewJob, push, push_plain, push_rich
from relevo.queues.store import clear
from relevo.store.plan import Ahead, Ask
from tests.eventually import eventually
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id, repeated

T = TypeVar("T")


# --- plain jobs


def test_a_plain_job_is_stored_and_counted(desk: Desk) -> None:
    (id,) = desk.push('{"t":"a"}')
    assert desk.members("ready") == [id]
    assert desk.ask("HGET", "jobs", id) == b'{"t":"a"}'
    assert desk.stats().totals == {"enqueued": 1}
    assert 0 < desk.ask("TTL", "stats") <= 7 * 86_400
    assert desk.drain() == [id]


def test_thousands_of_plain_jobs_of_one_call_come_out_in_order(desk: Desk) -> None:
    ids = desk.push(*[str(n) for n in range(2500)])
    found = desk.turn(1000)
    assert found.bodies == [str(n).encode() for n in range(1000)]
    assert not desk.finish([id.decode() for id in found.ids])
    assert desk.drain(777) == ids[1000:]
    assert desk.stats().totals["enqueued"] == 2500
    jobs = [NewJob(new_id(), 100, b"{}") for _ in range(10_000)]
    assert desk.run(push(desk.keys, jobs, LEASE_MS)) == [job.id for job in jobs]
    assert desk.drain(1000) == [job.id for job in jobs]


def test_jobs_stay_in_order_when_ids_are_not(desk: Desk) -> None:
    """The order is that of the calls, also between clients whose clocks differ."""
    ids = [new_id() for _ in range(50)]
    shuffled = random.sample(ids, len(ids))
    for id in shuffled:
        desk.run(push_plain(desk.keys, [(id, b"{}")], 100, LEASE_MS))
    assert desk.drain(7) == shuffled


def test_a_push_of_mixed_jobs_is_cut_and_keeps_their_order(desk: Desk) -> None:
    jobs = [NewJob(new_id(), 100, b"{}", name=f"n{n}" if n == CHUNK + 5 else "") for n in range(CHUNK + 10)]
    calls = list(calls_of(desk, jobs))
    assert calls == ["engine/push", "engine/push_with_options"]
    order = [id.decode() for id in desk.turn(CHUNK).ids] + [id.decode() for id in desk.turn(CHUNK).ids]
    assert order == [job.id for job in jobs]
    for job in jobs:
        desk.turn(0, moved(job.id, "done", ms=0, name=job.name))


def calls_of(desk: Desk, jobs: Sequence[NewJob]) -> list[str]:
    """Carry a push out and say by which scripts."""
    steps = push(desk.keys, jobs, LEASE_MS)
    shapes: list[str] = []
    try:
        step = next(steps)
        while True:
            assert not isinstance(step, Ask)
            calls = list(step.calls) if isinstance(step, Ahead) else [step]
            shapes += [call.script.name for call in calls if call.script is not None]
            answers = [desk.run(call) for call in calls]
            step = steps.send(answers if isinstance(step, Ahead) else answers[0])
    except StopIteration:
        return shapes


@pytest.mark.parametrize("since", ["ready", "running", "done"])
def test_a_repeated_push_stores_nothing_twice(desk: Desk, since: str) -> None:
    call = push_plain(desk.keys, [(id := new_id(), b"{}")], 100, LEASE_MS)
    assert desk.run(call) == 1
    if since != "ready":
        assert desk.claim() == [id]
    if since == "done":
        desk.turn(0, kept([id]))
    for _ in range(2):
        assert desk.run(repeated(call)) == 0
    stats = desk.stats()
    assert stats.totals["enqueued"] == 1
    assert (stats.ready, stats.running, stats.done) == (since == "ready", since == "running", since == "done")


def test_a_repeated_bulk_stores_only_what_is_missing(desk: Desk) -> None:
    rows = [(new_id(), b"{}") for _ in range(5)]
    assert desk.run(push_plain(desk.keys, rows[1:3], 100, LEASE_MS)) == 2
    assert desk.run(repeated(push_plain(desk.keys, rows, 100, LEASE_MS))) == 3
    assert desk.run(repeated(push_plain(desk.keys, rows, 100, LEASE_MS))) == 0
    assert desk.stats().totals == {"enqueued": 5}
    assert sorted(desk.drain()) == [row[0] for row in rows]


# --- calling workers


def test_a_single_job_is_handed_over_to_an_idle_worker(desk: Desk) -> None:
    desk.wait("w1")
    (id,) = desk.push('{"t":"a"}')
    assert desk.bell("w1") == [b"j" + id.encode() + b'{"t":"a"}']
    assert 0 < desk.ask("TTL", "bell:w1") <= 60
    assert (desk.members("ready"), desk.members("running")) == ([], [id])
    assert desk.ask("HGET", "claims", id).startswith(b"1 w1 ")
    assert desk.members("idle") == []
    (second,) = desk.push()
    assert desk.members("ready") == [second], "no idle worker is left"
    assert desk.drain() == [second]
    desk.wait("w2")
    rich = desk.push_one(tenant="tenant")
    assert (desk.bell("w2"), desk.members("ready")) == ([b""], [rich]), "a rich job rings and is not handed over"
    desk.drain()
    assert desk.finish([id], worker="w1") == []


def test_a_job_is_not_handed_over_past_those_that_wait(desk: Desk) -> None:
    first = desk.push_one(tenant="a")  # no worker is idle: it waits
    desk.ask("ZADD", "idle", desk.now_ms + 60_000, "w1")  # registered between the two, as after a bell that was lost
    (second,) = desk.push()
    assert desk.bell("w1") == [b""]
    assert desk.members("ready") == [first, second]
    assert desk.members("running") == []
    assert desk.drain() == [first, second]


def test_a_bulk_rings_one_idle_worker_per_job(desk: Desk) -> None:
    for worker in ("w1", "w2", "w3"):
        desk.wait(worker)
    desk.push("{}", "{}")
    bells = [desk.bell(worker) for worker in ("w1", "w2", "w3")]
    assert sorted(bells) == [[], [b""], [b""]]
    assert len(desk.members("idle")) == 1
    desk.drain()


def test_a_worker_that_died_while_idle_is_not_called(desk: Desk) -> None:
    desk.wait("dead", idle_ms=1000)
    desk.advance(2000)
    desk.push()
    assert desk.bell("dead") == []
    assert len(desk.members("ready")) == 1
    desk.drain()


def test_a_new_earliest_due_time_rings_one_idle_worker(desk: Desk) -> None:
    desk.wait("w1")
    first = desk.push_one(when="+60000")
    assert desk.bell("w1") == [b""]
    desk.wait("w1")
    later = desk.push_one(when="+90000")
    assert len(desk.bell("w1")) == 1, "a later one changes no timer"
    sooner = desk.push_one(when="+30000")
    assert len(desk.bell("w1")) == 2
    assert desk.members("scheduled") == [sooner, first, later]


# --- times


def test_a_delayed_job_keeps_its_priority(desk: Desk) -> None:
    for priority in (1023, 0, 512):
        desk.push_one(str(priority), when="+1000", priority=priority)
    assert desk.claim() == []
    desk.advance(500)
    assert desk.claim() == [], "after the server's clock, whatever the client's says"
    desk.advance(501)
    now = desk.push("100")
    found = desk.turn(10)
    assert found.bodies == [b"0", b"100", b"512", b"1023"]
    desk.finish([id.decode() for id in found.ids])
    assert now


def test_a_job_for_a_time_that_has_passed_is_ready(desk: Desk) -> None:
    ids = [desk.push_one(when=when) for when in ("1000", "-5", "+0", "0")]
    assert desk.members("ready") == ids
    assert desk.drain() == ids


@pytest.mark.parametrize("ahead_ms", [500_000, 100 * 366 * 86_400_000])
def test_a_job_for_a_time_is_due_then(desk: Desk, ahead_ms: int) -> None:
    due = desk.now_ms + ahead_ms
    id = desk.push_one(when=str(due), priority=1023)
    assert divmod(int(desk.score("scheduled", id) or 0), 1024) == (due, 1023), "to the millisecond"
    assert desk.stats().next_due_ms == due


def test_scheduled_jobs_remember_their_tenant(desk: Desk) -> None:
    for n in range(3):
        desk.push_one(f"a{n}", tenant="a", when="+1000")
    desk.push_one("b", tenant="b", weight=2.0, when="+1000")
    assert desk.ask("HLEN", "groups") == 4
    desk.advance(1001)
    found = desk.turn(10)
    assert found.bodies == [b"b", b"a0", b"a1", b"a2"]
    assert desk.ask("EXISTS", "groups") == 0
    desk.finish([id.decode() for id in found.ids])


# --- names


@pytest.mark.parametrize("verb", ["done", "dead"])
def test_a_name_gives_one_job_until_it_is_done(desk: Desk, verb: str) -> None:
    """Waiting, running and retrying count as living."""
    id = desk.push_one(name="n", scope="until_done")
    assert desk.push_one(name="n", scope="until_done") == id
    desk.claim()
    assert desk.push_one(name="n", scope="until_done") == id
    desk.turn(0, moved(id, "retry", ms=60_000, name="n"))
    assert desk.push_one(name="n", scope="until_done") == id
    assert (desk.stats().living, desk.stats().totals["enqueued"]) == (1, 1)
    desk.advance(60_001)
    assert desk.claim() == [id]
    desk.turn(0, moved(id, verb, 2, name="n"))
    assert desk.ask("EXISTS", "names") == 0
    assert desk.push_one(name="n", scope="until_done") != id


def test_a_name_held_while_queued_is_free_once_the_job_runs(desk: Desk) -> None:
    first = desk.push_one(name="n", scope="queued")
    assert desk.push_one(name="n", scope="queued") == first
    desk.claim()
    second = desk.push_one(name="n", scope="queued")
    assert second != first
    assert desk.push_one(name="n", scope="queued") == second
    desk.turn(0, moved(first, "done", ms=0, name="n"))
    assert desk.ask("HGET", "names", "n") == second.encode(), "the end of the first does not free what the second holds"
    desk.claim()
    desk.turn(0, moved(second, "done", ms=0, name="n"))


def test_a_name_held_for_a_time_outlives_its_job(desk: Desk) -> None:
    first = desk.push_one(name="n", scope="60000")
    assert desk.push_one(name="n", scope="60000") == first
    assert desk.drain() == [first]
    assert desk.push_one(name="n", scope="60000") == first
    assert desk.stats().living == 0
    assert 0 < desk.ask("PTTL", "unique:n") <= 60_000
    desk.ask("PEXPIRE", "unique:n", 1)
    eventually(lambda: not desk.ask("EXISTS", "unique:n"))
    second = desk.push_one(name="n", scope="60000")
    assert second != first
    assert desk.drain() == [second]


def test_a_name_whose_job_has_gone_is_taken_over(desk: Desk) -> None:
    """Nothing that happened to a job may leave its name blocked."""
    desk.ask("HSET", "names", "n", "01gonegonegonegonego")
    id = desk.push_one(name="n", scope="until_done")
    assert desk.ask("HGET", "names", "n") == id.encode()
    desk.claim()
    desk.turn(0, moved(id, "done", ms=0, name="n"))


@pytest.mark.parametrize("scope", ["until_done", "queued", "60000"])
def test_a_repeated_push_of_a_name_finds_its_own_job(desk: Desk, scope: str) -> None:
    job = NewJob(new_id(), 100, b"{}", name="n", scope=scope)
    call = push_rich(desk.keys, [job])
    assert desk.run(call) == [job.id]
    assert desk.run(repeated(call)) == [job.id]
    assert desk.stats().totals == {"enqueued": 1}
    desk.claim()
    assert desk.run(repeated(call)) == [job.id]
    desk.turn(0, moved(job.id, "done", name="n", text=b'{"state":"done"}'))
    assert desk.run(repeated(call)) == [job.id]
    assert desk.stats().totals == {"enqueued": 1, "done": 1}
    assert desk.stats().living == 0


def test_names_of_one_call_are_seen_by_the_same_call(desk: Desk) -> None:
    jobs = [NewJob(new_id(), 100, b"{}", name=name, scope="until_done") for name in ("a", "b", "a")]
    owners = desk.run(push_rich(desk.keys, jobs))
    assert owners == [jobs[0].id, jobs[1].id, jobs[0].id]
    assert desk.members("ready") == [jobs[0].id, jobs[1].id]


def test_64_pushes_of_one_name_at_once_give_one_job(desk: Desk) -> None:
    start = Barrier(64)

    def one(_: int) -> str:
        start.wait()
        return desk.push_one(name="the one", scope="until_done")

    with ThreadPoolExecutor(64) as threads:
        owners = set(threads.map(one, range(64)))
    assert owners == set(desk.members("ready"))
    assert len(owners) == 1
    assert desk.stats().totals["enqueued"] == 1


# --- order


def test_a_higher_priority_always_comes_first(desk: Desk) -> None:
    """Strict, for any interleaving of pushes and claims."""
    chance = random.Random(7)
    waiting: list[tuple[int, int]] = []
    ids: dict[str, tuple[int, int]] = {}
    for n in range(400):
        if waiting and chance.random() < 0.4:
            want = chance.randint(1, 3)
            got = desk.claim(want)
            waiting.sort()
            assert [ids[id] for id in got] == waiting[:want]
            del waiting[:want]
            desk.finish(got)
        else:
            priority = chance.choice((0, 50, 100, 150, 1023))
            (id,) = desk.push(priority=priority)
            ids[id] = (priority, n)
            waiting.append(ids[id])
    assert [ids[id] for id in desk.drain(9)] == sorted(waiting)


def test_tenants_get_shares_by_their_weights(desk: Desk) -> None:
    """Shares of 1 : 2 : 4 in every window of seven, while all three have work."""
    jobs = [
        NewJob(new_id(), 100, tenant.encode(), tenant=tenant, weight=weight)
        for tenant, weight, many in (("a", 1.0, 60), ("b", 2.0, 120), ("c", 4.0, 240))
        for _ in range(many)
    ]
    for start in range(0, len(jobs), 100):
        desk.run(push_rich(desk.keys, jobs[start : start + 100]))
    order: list[str] = []
    while (found := desk.turn(5)).ids:
        order += [body.decode() for body in found.bodies]
        desk.finish([id.decode() for id in found.ids])
    for start in range(len(order) - 7):
        window = Counter(order[start : start + 7])
        for tenant, share in (("a", 1), ("b", 2), ("c", 4)):
            assert abs(window[tenant] - share) <= 1, (start, window)


def test_a_flooding_tenant_does_not_delay_a_small_one(desk: Desk) -> None:
    flood = [NewJob(new_id(), 100, b"flood", tenant="flood") for _ in range(1000)]
    desk.run(push_rich(desk.keys, flood))
    for _ in range(5):
        desk.finish(desk.claim(50))
    small = desk.push_one("small", tenant="small")
    assert small in desk.claim(3)
    desk.finish([small])
    desk.run(push_rich(desk.keys, [NewJob(new_id(), 100, b"f", tenant="flood")]))
    again = desk.push_one("small", tenant="small")
    assert again in desk.claim(3)


def test_a_tenant_that_was_away_does_not_get_its_past_share_at_once(desk: Desk) -> None:
    """A tag is never older than what was last handed out: a tenant that comes late shares from now on."""
    for _ in range(100):
        desk.push_one("old", tenant="old")
    desk.finish(desk.claim(50))
    for _ in range(10):
        desk.push_one("new", tenant="new")
    window = Counter(body.decode() for body in desk.turn(20).bodies)
    assert abs(window["new"] - 10) <= 1
    desk.run(clear(desk.keys))
    desk.push(*["none"] * 20)
    for _ in range(5):
        desk.push_one("a", tenant="a")
    window = Counter(body.decode() for body in desk.turn(10).bodies)
    assert window == {"none": 5, "a": 5}, "those without a tenant share as tenants do"


@pytest.mark.parametrize("want", [1, 2])
def test_no_virtual_time_is_left_when_the_last_job_was_just_wanted(desk: Desk, want: int) -> None:
    desk.push(*["{}"] * want)
    desk.finish(desk.claim(want))
    assert desk.ask("EXISTS", "clock") == 0


def test_the_clock_forgets_tenants_that_have_gone_by(desk: Desk) -> None:
    """Ten thousand tenants must not leave a field each in a queue that never runs empty."""
    for _ in range(60):
        desk.push_one(tenant="always")
    for turn_number in range(200):
        jobs = [NewJob(new_id(), 100, b"{}", tenant=f"tenant-{turn_number}-{n}") for n in range(20)]
        desk.run(push_rich(desk.keys, jobs))
        desk.finish(desk.claim(20))
    assert desk.ask("HLEN", "clock") < 600  # of 4,000 tenants
    desk.finish(desk.drain())
    assert desk.ask("EXISTS", "clock") == 0
